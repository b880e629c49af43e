"""A scheduler in memory that does what it is told: queues, refuses, loses answers, goes silent."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field, replace

from ..errors import BackendError, MilkweedError, UnreachableError
from ..hosts import Host
from ..spec import JobSpec
from ..status import HostState, HostStatus, Liveness, Status
from .base import Capabilities, LogLine, Request


class FakeMesh(tuple[Host, ...]):
    """What `job.state()` hands out on the fake backend: a mesh's hosts, in rank order."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The mesh's name."""
        return self[0].mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """One thing the scheduler was asked."""

    name: str
    apply_id: str = ""
    answer: str = "ok"
    """«ok»; nothing was done: «silent», «refused»; done, but nobody heard: «lost»."""


@dataclass(slots=True, kw_only=True, eq=False)
class FakeAllocation:
    """One allocation, as the scheduler knows it."""

    request: Request
    number: int
    spec: JobSpec
    polls_left: int
    """How often it must still be looked at before it runs."""
    liveness: Liveness = Liveness.PENDING
    reason: str = ""
    exit_code: int | None = None
    cancelled: bool = False
    failed: dict[str, HostStatus] = field(default_factory=dict[str, HostStatus])
    lines: list[LogLine] = field(default_factory=list[LogLine])

    @property
    def apply_id(self) -> str:
        """The id it carries."""
        return self.request.apply_id

    @property
    def alive(self) -> bool:
        """Whether it holds hosts, or waits for them."""
        return self.liveness.alive

    def hosts(self) -> list[Host]:
        """Its hosts, mesh by mesh."""
        return [
            Host(
                name=f"fake-{self.number}-{mesh}-{rank}",
                mesh=mesh,
                rank=rank,
                address=f"fake://{self.number}/{mesh}/{rank}",
            )
            for mesh, size in self.spec.sizes.items()
            for rank in range(size)
        ]

    def status(self) -> Status:
        """What the scheduler says of it."""
        running = self.liveness is Liveness.RUNNING
        return Status(
            liveness=self.liveness,
            reason=self.reason,
            exit_code=self.exit_code,
            hosts=tuple(self._host_status(host) for host in self.hosts()) if running else (),
        )

    def _host_status(self, host: Host) -> HostStatus:
        return self.failed.get(host.label, HostStatus(host=host.label, state=HostState.READY))

    def end(self, reason: str, exit_code: int | None = None) -> None:
        """Be over, for good; ended already is fine."""
        if self.alive:
            self.liveness, self.reason, self.exit_code = Liveness.ENDED, reason, exit_code

    def look(self) -> None:
        """Pass the time: every look brings a queued allocation nearer to its hosts."""
        if self.liveness is not Liveness.PENDING:
            return
        if self.polls_left <= 0:
            self.liveness, self.reason = Liveness.RUNNING, ""
        else:
            self.polls_left -= 1


@dataclass(slots=True, kw_only=True, eq=False)
class FakeScheduler:
    """The world behind the fake backend; tests tell it what to do and read what it was asked."""

    capabilities: Capabilities = field(default_factory=Capabilities)
    queue_polls: int = 0
    """How many polls an allocation stays queued."""
    max_hosts: int | None = None
    """More hosts than this it could never give."""
    unreachable_at: frozenset[int] = frozenset()
    """The calls, counted from 0, that get no answer."""
    allocations: dict[str, FakeAllocation] = field(default_factory=dict[str, FakeAllocation])
    calls: list[FakeCall] = field(default_factory=list[FakeCall])
    _silent_calls: int = 0
    _refusals: list[MilkweedError] = field(default_factory=list[MilkweedError])
    _lost: list[MilkweedError] = field(default_factory=list[MilkweedError])

    # What tests tell it

    def go_silent(self, calls: int = 1) -> None:
        """Give no answer to the next calls, and do nothing."""
        self._silent_calls = calls

    def calm_down(self) -> None:
        """Answer everything from now on, and forget what else was scripted."""
        self._silent_calls, self.unreachable_at = 0, frozenset()
        self._refusals.clear()
        self._lost.clear()

    def refuse_next(self, reason: str = "no such partition") -> None:
        """Say no to the next submission."""
        self._refusals.append(
            BackendError("the scheduler refused the job", seen=reason, hint="correct what it names")
        )

    def lose_next_answer(self, error: MilkweedError | None = None) -> None:
        """Accept the next submission, and let the one who asked hear an error."""
        self._lost.append(error or UnreachableError("the scheduler's answer was lost"))

    def fail_host(
        self, apply_id: str, host: str, reason: str = "it died", exit_code: int | None = 1
    ) -> None:
        """Let a host (`trainers/0`) fail."""
        self.allocations[apply_id].failed[host] = HostStatus(
            host=host, state=HostState.FAILED, reason=reason, exit_code=exit_code
        )

    def end(self, apply_id: str, reason: str = "time limit", exit_code: int | None = None) -> None:
        """End an allocation, as its scheduler may at any time."""
        self.allocations[apply_id].end(reason, exit_code)

    def requeue(self, apply_id: str, polls: int = 1) -> None:
        """Take the hosts away and queue the allocation again."""
        found = self.allocations[apply_id]
        if found.alive:
            found.liveness, found.reason, found.polls_left = Liveness.PENDING, "requeued", polls
            found.failed.clear()

    def forget(self, apply_id: str) -> None:
        """Lose every trace of an allocation, as schedulers do with old ones."""
        del self.allocations[apply_id]

    def write_log(self, apply_id: str, host: str, text: str) -> None:
        """Let a host write a line."""
        self.allocations[apply_id].lines.append(LogLine(host=host, text=text))

    # What tests read

    @property
    def alive(self) -> list[str]:
        """The ids of all allocations that hold hosts or wait for them."""
        return [found.apply_id for found in self.allocations.values() if found.alive]

    def count(self, name: str) -> int:
        """How often it was asked that."""
        return sum(call.name == name for call in self.calls)

    # What the backend asks

    def ask(self, name: str, apply_id: str = "") -> None:
        """Take one call; UnreachableError when it gets no answer."""
        silent = self._silent_calls > 0 or len(self.calls) in self.unreachable_at
        self._silent_calls = max(0, self._silent_calls - 1)
        answer = "silent" if silent else "ok"
        self.calls.append(FakeCall(name=name, apply_id=apply_id, answer=answer))
        if silent:
            raise UnreachableError("the fake scheduler does not answer", seen=f"asked to {name}")

    def accept(self, request: Request) -> FakeAllocation:
        """Take a submission, unless told otherwise."""
        if self._refusals:
            self._correct_last("refused")
            raise self._refusals.pop(0)
        if request.apply_id in self.allocations:
            self._correct_last("refused")
            raise BackendError(f"the id {request.apply_id} is taken", hint="ask for a new one")
        made = FakeAllocation(
            request=request,
            number=len(self.allocations) + 1,
            spec=request.spec,
            polls_left=self.queue_polls,
            reason="waiting for hosts",
        )
        self.allocations[request.apply_id] = made
        if self._lost:
            self._correct_last("lost")
            raise self._lost.pop(0)
        return made

    def _correct_last(self, answer: str) -> None:
        self.calls[-1] = replace(self.calls[-1], answer=answer)


_worlds: list[FakeScheduler] = [FakeScheduler()]


def current_scheduler() -> FakeScheduler:
    """The scheduler that `fake` jobs talk to now."""
    return _worlds[-1]


@contextlib.contextmanager
def use_scheduler(scheduler: FakeScheduler | None = None) -> Generator[FakeScheduler]:
    """Let `fake` jobs talk to this scheduler, or to a new one, for a while."""
    world = FakeScheduler() if scheduler is None else scheduler
    _worlds.append(world)
    try:
        yield world
    finally:
        _worlds.pop()
