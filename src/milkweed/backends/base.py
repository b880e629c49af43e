"""The seam between milkweed and one scheduler: what a backend must offer, and nothing more.

A backend is thin. It holds no state between calls: everything it needs to find an allocation
again is in the handle, which is plain JSON data, or follows from the `apply_id` it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from ..hosts import Host
from ..plan import Renewal
from ..spec import JobSpec
from ..status import HostStatus, Status

Handle = Mapping[str, Any]
"""What a backend needs to find an allocation again: plain JSON data."""

TAIL_LINES = 6
"""How much of a log is shown with an end."""

Look: TypeAlias = Callable[[Handle], Status]
"""One look at an allocation, as `poll` does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do, so that the planner explains instead of failing."""

    queued: bool = True
    """Allocations take a queue to get, so replacing one needs a person's word."""
    resize: bool = False
    repairs: bool = False
    """Resizing to the sizes that there are has others take the place of lost hosts."""
    batch: bool = False
    """It can run the client inside the allocation."""
    machine_bound: bool = False
    """Its allocations are processes of this machine, so a record made elsewhere is foreign."""
    extends: bool = False
    """Renewing gives its allocations more time, and asks for no other."""
    shares_files: bool = True
    """Its hosts may have this machine's folders; else they have what was sent to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All a backend is told when it is asked for an allocation."""

    spec: JobSpec
    apply_id: str
    keep: bool = True
    """False: nobody will look for it later, so it must end with this client."""
    client_script: Sequence[str] = ()
    """In batch mode, the command line of the client to run inside the allocation."""
    state_path: str = ""
    """In batch mode, where the client finds the record of its own job."""
    follows_until: float | None = None
    """Of a follow-up: when the time of those that it follows is over, in seconds since the epoch."""
    waits: bool = True
    """Whether hosts from a queue wait for their first client however long it takes: it need not be there yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a host's log."""

    host: str
    text: str


@runtime_checkable
class Backend(Protocol):
    """One scheduler. `milkweed.testing` has a suite that a backend runs against itself."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def validate(self, spec: JobSpec) -> None:
        """Raise SpecError for what this scheduler could never give; ask the scheduler nothing that costs."""
        ...

    def submit(self, request: Request) -> Handle:
        """Ask for an allocation that carries `request.apply_id`; return as soon as it can be found again."""
        ...

    def find(self, apply_id: str) -> Handle | None:
        """Find an allocation by the id it carries; None only when it certainly does not exist.

        Raises UnreachableError when the scheduler did not answer.
        """
        ...

    def poll(self, handle: Handle) -> Status:
        """Read once what the scheduler says; UNKNOWN when it did not answer. Changes nothing."""
        ...

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """The hosts of a running allocation, with the address of each host's worker."""
        ...

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """The lines that one host (`trainers/3`), or every host, has written."""
        ...

    def cancel(self, handle: Handle) -> None:
        """End the allocation and all that belongs to it; return when it is gone. Ended already is fine."""
        ...


@runtime_checkable
class Checks(Protocol):
    """A backend whose `validate` compares with what its scheduler has now, which may change while a job runs."""

    def check(self, spec: JobSpec) -> None:
        """Raise SpecError for what is wrong with a declaration whatever the scheduler has; ask it nothing."""
        ...


@runtime_checkable
class Resizes(Protocol):
    """A backend whose capabilities say `resize`."""

    def resize(self, handle: Handle, spec: JobSpec) -> Handle:
        """Give meshes the sizes of `spec`; lost hosts come anew, others are not touched."""
        ...


@runtime_checkable
class Renews(Protocol):
    """A backend whose allocations have time limits, and can be followed by others."""

    def renewal(self, handle: Handle, renew: str | None, look: Look | None = None) -> Renewal:
        """How it stands with a follow-up; `renew` says when one is due: `before time limit`, `30m`, or never.

        `look` is used for `poll`: whoever asks looks at the same allocations, and each is looked at once.
        """
        ...

    def renew(self, handle: Handle, spec: JobSpec) -> Handle:
        """Ask for a follow-up with the same id; what is left of one that has failed is ended first.

        When there is one that may be used yet, do nothing.
        """
        ...

    def move(self, handle: Handle) -> Handle:
        """The handle of the follow-up, which takes the place of this one."""
        ...

    def retire(self, handle: Handle) -> None:
        """End what the allocation of this handle has followed, if that is still there."""
        ...


@runtime_checkable
class Keeps(Protocol):
    """A backend whose hosts are told when they are asked for whether they outlive who asked for them."""

    def keep(self, handle: Handle) -> None:
        """Have those that start from now on outlive it, follow-ups and added ones too: the job was recorded since.

        Gone already is fine, and so is what was told before.
        """
        ...


@runtime_checkable
class Reroutes(Protocol):
    """A backend whose handles have a client's own way to what is there; the next client may have another."""

    WAYS: ClassVar[Sequence[str]]
    """The client's settings that say it."""

    def reroute(self, handle: Handle, spec: JobSpec) -> Handle:
        """The same allocation's handle with the way that is declared now; BackendError if it leads elsewhere."""
        ...


@runtime_checkable
class Forgets(Protocol):
    """A backend that may have something on this machine of an allocation that never came to be."""

    def forget(self, apply_id: str) -> None:
        """Remove it; called only when `find` gave None."""
        ...


@runtime_checkable
class Controls(Protocol):
    """A backend whose hosts have keepers: they hold leases, print, and run commands."""

    def controls(self, handle: Handle) -> Sequence[str]:
        """Where the keepers of an allocation take orders, such as `unix:///…`."""
        ...


@runtime_checkable
class Lists(Protocol):
    """A backend whose scheduler can be asked for all that milkweed ever started, with every local file gone."""

    def allocations(self) -> Mapping[str, str]:
        """Names of jobs by the id of their allocation, of this user and not ended; UnreachableError else."""
        ...


@runtime_checkable
class Glances(Protocol):
    """A backend for which asking the scheduler alone is much cheaper than asking every host, too."""

    def glance(self, handle: Handle, *, fresh: bool = False) -> Status:
        """What the scheduler says, without hosts; not asked more often than it is worth unless `fresh`."""
        ...


@runtime_checkable
class LooksAgain(Protocol):
    """A backend whose `poll` may go by answers that it, or another look, was given a moment ago."""

    def look_again(self, handle: Handle) -> Status:
        """The same as `poll`, but the scheduler and the hosts are asked for all of it from now on."""
        ...


@runtime_checkable
class Admits(Protocol):
    """A backend whose hosts may not see the job's files, and must be let in by its owner."""

    def admit(self, handle: Handle, hosts: Sequence[str]) -> None:
        """Let in those of the named hosts that wait for it; called again and again while some do not answer."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A backend that tells a host which is gone from one that has not come yet by what its clients saw."""

    def joined(self, handle: Handle, hosts: Sequence[str]) -> None:
        """The keepers of these hosts have answered a client just now."""
        ...


@runtime_checkable
class Explains(Protocol):
    """A backend that can tell what became of a host which no longer answers."""

    def explain(self, handle: Handle, host: str) -> HostStatus:
        """The scheduler's own words about it and the last lines of its log; FAILED only when that is certain."""
        ...


@runtime_checkable
class KeepsLogs(Protocol):
    """A backend that has the logs of hosts when they, or the whole allocation, are gone."""

    def last_lines(self, handle: Handle, hosts: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The end of the log of each of these hosts that has one; neither they nor the scheduler are asked."""
        ...


@runtime_checkable
class Adopts(Protocol):
    """A backend some of whose hosts were made by others, so that they have no keeper."""

    def adopted_labels(self, handle: Handle) -> Sequence[str]:
        """Which hosts these are."""
        ...

    def adopted(self, handle: Handle) -> Sequence[Host]:
        """These hosts, with their addresses; UnreachableError as long as one of them does not serve."""
        ...


@runtime_checkable
class Connects(Protocol):
    """A backend that makes its own meshes instead of having the engine attach to addresses."""

    def connect(self, spec: JobSpec, handle: Handle, client: str) -> Mapping[str, Any]:
        """Meshes by name; `client` is how this client is known to the hosts."""
        ...
