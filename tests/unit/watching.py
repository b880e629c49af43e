"""A watch, with a scheduler that says what it is told to, sessions, and time that passes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest  # noqa: TC002  annotations are read at run time too

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.control import Session
from milkweed.errors import BackendError, UnreachableError
from milkweed.events import Events
from milkweed.job import watch as module
from milkweed.job.watch import Watch
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock
from unit.keepers import host
from unit.slurm_fake import APPLY_ID

RUNNING = Status(liveness=Liveness.RUNNING)
PENDING = Status(liveness=Liveness.PENDING, reason="Slurm job 7 is PENDING")
ENDED = Status(liveness=Liveness.ENDED, reason="Slurm job 7 is CANCELLED")
UNKNOWN = Status(liveness=Liveness.UNKNOWN, reason="nobody answered")


class Backend:
    """A scheduler that says what it is told to, and what became of hosts."""

    name = "slurm"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.says = [RUNNING]
        """What it says, look by look; the last word stays."""
        self.looks = 0
        self.words = "Slurm says that node n1 is down*\nlast line"
        self.state = HostState.FAILED
        self.logs: dict[str, list[str]] = {}
        """The last lines of each host's log."""
        self.away = self.broken = self.unheard = False

    def glance(self, _handle: object, *, fresh: bool = False) -> Status:
        """What it says now."""
        assert fresh
        self.looks += 1
        if self.broken:
            raise BackendError("there is no squeue here")
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    def explain(self, _handle: object, host: str) -> HostStatus:
        """What it knows of a host."""
        if self.away:
            raise UnreachableError("Slurm's controller did not answer")
        return HostStatus(host=host, state=self.state, reason=self.words, unheard=self.unheard)

    def last_lines(self, _handle: object, hosts: Sequence[str]) -> dict[str, list[str]]:
        """The end of the logs of hosts."""
        return {host: self.logs[host] for host in hosts if host in self.logs}


class FakeSession:
    """A session, as far as a watch knows it."""

    def __init__(self, *labels: str, node: str = "n1") -> None:
        self.labels = list(labels or ("w/0",))
        self.node = node
        self.address = f"unix:///{node}"
        self.left = False
        self.keeper = "first"


@dataclass
class World:
    """A watch, and all that it does."""

    watch: Watch
    backend: Backend
    clock: FakeClock
    events: Events
    gave_up: list[int]
    rejoined: list[float] = field(default_factory=list[float])
    """When a session was tried again."""
    back_at_s: float = float("inf")
    """From when on a host answers again."""

    keeper: str = "first"
    """Which keeper is behind the door then."""

    def rejoin(self, session: Session) -> Session | None:
        """Try a session again."""
        self.rejoined.append(self.clock.now_s)
        again = FakeSession(*session.labels)
        again.keeper = self.keeper
        return cast("Session", again) if self.clock.now_s >= self.back_at_s else None

    def hear(self, session: FakeSession, **message: Any) -> None:
        """Let a session say something."""
        self.watch.hear(cast("Session", session), message)

    def ready(self, *sessions: FakeSession) -> None:
        """Let the hosts of sessions be ready."""
        for session in sessions:
            for label in session.labels:
                self.hear(session, ev="host", **host(label))

    @property
    def told(self) -> list[tuple[str, str]]:
        """The events so far, and whose they are."""
        return [(event.what, event.host) for event in self.events.load()]


def make_world(clock: FakeClock, patch: pytest.MonkeyPatch) -> World:
    """A watch of an allocation that runs; nothing was heard yet."""
    registry.folder_of(APPLY_ID).mkdir(parents=True)
    gave_up: list[int] = []
    patch.setattr(module, "give_up", lambda: gave_up.append(1))
    backend, events = Backend(), Events(APPLY_ID)
    watch = Watch("demo", "me", cast("Any", backend), {}, events, None)
    made = World(watch, backend, clock, events, gave_up)
    watch.rejoin, watch.pause, watch.clock = made.rejoin, clock.sleep, clock
    return made
