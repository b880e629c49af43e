"""A crew with real sessions: keepers on real sockets, a scheduler that says what it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from milkweed import pki
from milkweed.backends.base import Capabilities
from milkweed.spec import JobSpec, make_meshes
from milkweed.spmd.crew import Crew
from milkweed.spmd.target import Target
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock
from milkweed.worker import wire
from unit.keepers import WAIT_S, FakeKeeper, make_credentials

RUNNING = Status(liveness=Liveness.RUNNING)
PENDING = Status(liveness=Liveness.PENDING, reason="Slurm job 7 is PENDING, reason Priority")
UNKNOWN = Status(liveness=Liveness.UNKNOWN, reason="nobody answered")
ENDED = Status(liveness=Liveness.ENDED, reason="Slurm job 7 is CANCELLED")
BEGAN_S = 1000.0


def until(true: Callable[[], object]) -> None:
    """Wait for what a thread does soon."""
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.001)


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
        """Hosts that are lost for good, and why."""
        self.unheard: set[str] = set()
        """Those of them that are only not heard."""
        self.admitted: list[list[str]] = []

    @property
    def now_s(self) -> float:
        """Seconds since the test began."""
        return self.clock.now_s - BEGAN_S

    def glance(self, _handle: object, *, fresh: bool = False) -> Status:
        """What it says now."""
        return self.says(self.now_s)

    def controls(self, _handle: object) -> Sequence[str]:
        """Where keepers take orders now."""
        return self.gives(self.now_s)

    def explain(self, _handle: object, label: str) -> HostStatus:
        """What it knows of a host."""
        state = HostState.FAILED if label in self.failed else HostState.UNKNOWN
        unheard = label in self.unheard
        return HostStatus(
            host=label, state=state, reason=self.failed.get(label, ""), unheard=unheard
        )

    def admit(self, _handle: object, hosts: Sequence[str]) -> None:
        """Take down whom it was asked to let in."""
        self.admitted.append(list(hosts))


class RankKeeper(FakeKeeper):
    """A keeper whose ranks end at once, and whose failed hosts can be started again."""

    def _take(self, order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        super()._take(order, writer)
        for answer in self._answers(order):
            writer.write(wire.encode(answer))

    def _answers(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        about = {"id": order.get("id"), "host": order.get("host")}
        if order["op"] == "prepare":
            return [{"ev": "prepared", **about, "nproc": 1, "port": 4321}]
        if order["op"] == "launch":
            ends = [
                {"ev": "rank-exit", **about, "rank": rank["rank"], "code": 0, "halted": False}
                for rank in order["ranks"]
            ]
            return [{"ev": "launched", **about, "pids": {}, "logs": ""}, *ends]
        if order["op"] == "revive":
            [found] = [host for host in self.hosts if host["host"] == order["host"]]
            found |= {"state": "ready", "reason": ""}
            return [{"ev": "host", **found}]
        return []


class World:
    """A crew of a job of so many hosts, and their keepers."""

    def __init__(self, tmp_path: Path, clock: FakeClock) -> None:
        self.folder = tmp_path
        self.clock = clock
        self.backend = Backend(clock)
        self.keepers: list[FakeKeeper] = []
        self.shown: list[Mapping[str, Any]] = []
        self.made: Crew | None = None
        self.sleep: Callable[[float], object] = clock.sleep
        self.credentials = Path()
        self.prepared: list[list[str]] = []
        """Which doors were brought to their image, each time."""

    def keeper(self, *hosts: str | Mapping[str, Any], node: str = "") -> RankKeeper:
        """A keeper of this machine."""
        number = len(self.keepers)
        made = RankKeeper(*hosts, node=node or f"n{number}")
        self.keepers.append(made)
        return made.listen_unix(self.folder / f"ctl{number}")

    def remote(self, *hosts: str | Mapping[str, Any], port: int = 0) -> RankKeeper:
        """A keeper behind TLS, as on another machine."""
        if self.credentials == Path():
            self.credentials = make_credentials(self.folder / "tls", pki.make_authority("job"))
        made = RankKeeper(*hosts, node=f"n{len(self.keepers)}")
        self.keepers.append(made)
        return made.listen_tls(self.credentials, port)

    def away(self, label: str) -> str:
        """The door of a host that does not answer."""
        return f"tls://127.0.0.1:1/{label}#{self.folder}/none"

    def target(self, sizes: Mapping[str, int], mesh: str = "w") -> Target:
        """The allocation."""
        spec = JobSpec(name="demo", backend="slurm", meshes=make_meshes(sizes))
        return Target(backend=cast("Any", self.backend), handle={}, spec=spec, mesh=mesh)

    def crew(self, hosts: int = 2, **more: int) -> Crew:
        """The crew; all keepers there are can be found unless a test says otherwise."""
        doors = [self.door(keeper) for keeper in self.keepers]
        if not self.backend.gives(0.0):
            self.backend.gives = lambda _s: doors
        target = self.target({"w": hosts, **more})
        self.made = Crew(
            target, self.shown.append, sleep=self._sleep, clock=self.clock, prepare=self._prepare
        )
        return self.made

    def _prepare(self, _spec: JobSpec, doors: Sequence[str], **_more: object) -> None:
        if doors:
            self.prepared.append(list(doors))

    def _sleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def door(self, keeper: FakeKeeper) -> str:
        """Where a keeper takes orders."""
        return keeper.door(self.credentials) if keeper.port else keeper.address

    def gather(self, least: int, most: int, **more: float) -> list[str]:
        """Gather hosts with the crew, making it if need be."""
        crew = self.made or self.crew()
        waits = {"timeout_s": float("inf"), "last_call_s": 30.0, **more}
        return crew.gather(
            least, most, timeout_s=waits["timeout_s"], last_call_s=waits["last_call_s"]
        )

    def heard(self) -> Mapping[str, Any]:
        """What the inbox has next."""
        assert self.made
        return self.made.inbox.get(timeout=WAIT_S)

    @property
    def waited_s(self) -> float:
        """How long it has taken so far."""
        return self.backend.now_s

    def close(self) -> None:
        """Leave, and end the keepers."""
        if self.made:
            self.made.close()
        for keeper in self.keepers:
            keeper.close()
