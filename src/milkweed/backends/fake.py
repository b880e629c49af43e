"""Hosts that exist in memory only: the whole life of a job, with no scheduler and no engine.

For trying milkweed out, and for tests. What the scheduler does is scripted:

    with use_scheduler(FakeScheduler(queue_polls=3)) as world:
        world.lose_next_answer()
        job.state()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..errors import BackendError, HostFailedError, SpecError, UnreachableError, UnsupportedError
from ..hosts import Host, cut_hosts
from ..option_tables import FAKE_OPTIONS
from ..options import OptionField
from ..spec import JobSpec
from ..status import Liveness, Status
from .base import TAIL_LINES, Capabilities, Handle, LogLine, Request
from .fake_world import (
    FakeAllocation,
    FakeCall,
    FakeMesh,
    FakeScheduler,
    current_scheduler,
    use_scheduler,
)

__all__ = [
    "FakeAllocation",
    "FakeBackend",
    "FakeCall",
    "FakeMesh",
    "FakeScheduler",
    "current_scheduler",
    "use_scheduler",
]

_GONE = "call state() for another one"
_WAIT = "wait for them with state()"


class FakeBackend:
    """Talks to the current FakeScheduler, and keeps nothing itself."""

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[Capabilities] = Capabilities()
    OPTIONS: ClassVar[Mapping[str, OptionField]] = FAKE_OPTIONS

    def __init__(self, scheduler: FakeScheduler | None = None) -> None:
        self.scheduler = scheduler or current_scheduler()
        # What it can do is up to the world it talks to, so the object hides what the class says.
        vars(self)["capabilities"] = self.scheduler.capabilities

    def validate(self, spec: JobSpec) -> None:
        """Refuse more hosts than the scheduler could ever give."""
        limit = self.scheduler.max_hosts
        if limit is not None and spec.host_count > limit:
            raise SpecError(
                f"meshes: {spec.host_count} hosts, and the scheduler has {limit}",
                hint="ask for less",
            )

    def submit(self, request: Request) -> Handle:
        """Queue the allocation."""
        self.scheduler.ask("submit", request.apply_id)
        if request.client_script and not self.capabilities.batch:
            raise UnsupportedError("the fake scheduler runs no clients")
        return _handle(self.scheduler.accept(request))

    def find(self, apply_id: str) -> Handle | None:
        """Look it up, whatever has become of it."""
        self.scheduler.ask("find", apply_id)
        found = self.scheduler.allocations.get(apply_id)
        return None if found is None else _handle(found)

    def allocations(self) -> Mapping[str, str]:
        """List all that hold hosts or wait for them."""
        self.scheduler.ask("list")
        alive = (found for found in self.scheduler.allocations.values() if found.alive)
        return {found.apply_id: found.spec.name for found in alive}

    def poll(self, handle: Handle) -> Status:
        """Look once; a queued allocation comes one poll nearer to its hosts."""
        try:
            self.scheduler.ask("poll", handle["apply_id"])
        except UnreachableError as error:
            return Status(liveness=Liveness.UNKNOWN, reason=error.what)
        found = self.scheduler.allocations.get(handle["apply_id"])
        if found is None:
            return Status(liveness=Liveness.ENDED, reason="the scheduler has no trace of it")
        found.look()
        return found.status()

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """The hosts of a running allocation."""
        self.scheduler.ask("hosts", handle["apply_id"])
        return self._running(handle).hosts()

    def connect(self, spec: JobSpec, handle: Handle, client: str) -> Mapping[str, Any]:
        """Meshes that are the hosts themselves; a failed host does not connect."""
        del client
        hosts = self.hosts(handle)
        if failed := self._running(handle).status().failed_hosts:
            raise HostFailedError(f"host {failed[0].host} did not start", seen=failed[0].reason)
        return {name: FakeMesh(cut) for name, cut in cut_hosts(spec.sizes, hosts).items()}

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """What hosts were told to write; nobody writes meanwhile, so following ends at once."""
        del follow
        self.scheduler.ask("logs", handle["apply_id"])
        found = self._known(handle)
        labels = [item.label for item in found.hosts()]
        if host is not None and host not in labels:
            raise BackendError(f"there is no host {host!r}", hint=f"they are {', '.join(labels)}")
        yield from [line for line in found.lines if host in (None, line.host)]

    def last_lines(self, handle: Handle, hosts: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The end of what each host was told to write; of what is not known, nothing."""
        known = self.scheduler.allocations.get(handle["apply_id"])
        lines = known.lines if known else []
        found = {host: [line.text for line in lines if line.host == host] for host in hosts}
        return {host: lines[-TAIL_LINES:] for host, lines in found.items() if lines}

    def cancel(self, handle: Handle) -> None:
        """End the allocation; ended already is fine."""
        self.scheduler.ask("cancel", handle["apply_id"])
        found = self.scheduler.allocations.get(handle["apply_id"])
        if found is not None and found.alive:
            found.end("it was cancelled")
            found.cancelled = True

    def resize(self, handle: Handle, spec: JobSpec) -> Handle:
        """Give meshes other sizes; hosts that were lost come anew."""
        self.scheduler.ask("resize", handle["apply_id"])
        if not self.capabilities.resize:
            raise UnsupportedError("the fake scheduler changes no sizes")
        found = self._known(handle)
        found.spec = found.spec.resized(spec.sizes)
        found.failed.clear()
        return _handle(found)

    def keep(self, handle: Handle) -> None:
        """From now on somebody looks for it."""
        self.scheduler.ask("keep", handle["apply_id"])
        if found := self.scheduler.allocations.get(handle["apply_id"]):
            found.request = replace(found.request, keep=True)

    def _known(self, handle: Handle) -> FakeAllocation:
        found = self.scheduler.allocations.get(handle["apply_id"])
        if found is None:
            raise BackendError(f"the scheduler has no trace of {handle['apply_id']}", hint=_GONE)
        return found

    def _running(self, handle: Handle) -> FakeAllocation:
        found = self._known(handle)
        if found.liveness is not Liveness.RUNNING:
            raise BackendError(
                "the allocation has no hosts", seen=found.status().describe(), hint=_WAIT
            )
        return found


def _handle(found: FakeAllocation) -> Handle:
    return {"apply_id": found.apply_id, "number": found.number}
