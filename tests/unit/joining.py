"""A connection to hosts that are keepers of this machine, and a scheduler that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.errors import UnreachableError
from milkweed.events import Events
from milkweed.job.connection import Connection
from milkweed.spec import JobSpec, MeshSpec
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock
from unit.keepers import FakeKeeper
from unit.slurm_fake import APPLY_ID

RUNNING = Status(liveness=Liveness.RUNNING)
PENDING = Status(liveness=Liveness.PENDING, reason="Slurm job 7 is PENDING, reason Priority")
UNKNOWN = Status(liveness=Liveness.UNKNOWN, reason="nobody answered")
ENDED = Status(liveness=Liveness.ENDED, reason="Slurm job 7 is CANCELLED")
SPEC = JobSpec(
    name="demo",
    backend="slurm",
    meshes=(MeshSpec(name="w", hosts=2),),
    client={"stream_logs": False},
)


class Backend:
    """A scheduler whose hosts are keepers of this machine; what it says changes as time passes."""

    name = "slurm"
    capabilities = Capabilities()

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.says: Callable[[float], Status] = lambda _s: RUNNING
        """What it says so many seconds after the test began."""
        self.gives: Callable[[float], Sequence[str]] = lambda _s: []
        """Where keepers take orders then."""
        self.failed: dict[str, str] = {}
        self.unheard = False
        self.looks = 0
        self.admitted: list[list[str]] = []
        self.mute = False

    @property
    def now_s(self) -> float:
        """Seconds since the test began."""
        return self.clock.now_s - 1000.0

    def glance(self, _handle: object, *, fresh: bool = False) -> Status:
        """What it says now."""
        self.looks += 1
        return self.says(self.now_s)

    def controls(self, _handle: object) -> Sequence[str]:
        """Where keepers take orders now."""
        return self.gives(self.now_s)

    def explain(self, _handle: object, label: str) -> HostStatus:
        """What it knows of a host."""
        state = HostState.FAILED if label in self.failed else HostState.STARTING
        reason = self.failed.get(label, "")
        return HostStatus(host=label, state=state, reason=reason, unheard=self.unheard)

    def admit(self, _handle: object, hosts: Sequence[str]) -> None:
        """Take down whom it was asked to let in."""
        self.admitted.append(list(hosts))
        if self.mute:
            raise UnreachableError("Slurm's controller did not answer")


class World:
    """A connection to an allocation of two hosts, and their keepers."""

    def __init__(self, tmp_path: Path, clock: FakeClock) -> None:
        registry.folder_of(APPLY_ID).mkdir(parents=True)
        self.clock = clock
        self.backend = Backend(clock)
        self.keepers = [
            FakeKeeper(f"w/{rank}", node=f"n{rank}").listen_unix(tmp_path / f"ctl{rank}")
            for rank in range(2)
        ]
        self.gone = f"tls://127.0.0.1:1/w/1#{tmp_path}/none"
        self.events = Events(APPLY_ID)
        self.connection = Connection(
            cast("Any", self.backend),
            SPEC,
            {},
            self.events,
            owner=False,
            sleep=clock.sleep,
            clock=clock,
        )

    @property
    def addresses(self) -> list[str]:
        """Where both keepers take orders."""
        return [keeper.address for keeper in self.keepers]

    def joined(self) -> list[int]:
        """How often each keeper was greeted."""
        return [sum(o["op"] == "hello" for o in keeper.orders) for keeper in self.keepers]

    def close(self) -> None:
        """Leave, and end the keepers."""
        self.connection.close()
        for keeper in self.keepers:
            keeper.close()
