"""A path, a scheduler and up to two clients, to whom anything may happen; what must hold is checked always."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeCall, FakeScheduler, use_scheduler
from milkweed.errors import BackendError, MilkweedError
from milkweed.job import connection, leaving
from milkweed.job.load import SpecJob, job_load
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile
from milkweed.status import Liveness
from milkweed.testing import Crash, FakeClock

Op = tuple[str, int, int, str | None]
"""What is done, by which client, with which declaration, and with which `on_change`."""


def make_spec(sizes: dict[str, int], **more: object) -> JobSpec:
    """A declaration for the fake backend, without a thread for output."""
    return JobSpec(
        name="story",
        backend="fake",
        meshes=make_meshes(sizes),
        client={"stream_logs": False},
        **more,  # type: ignore[arg-type]
    )


@contextlib.contextmanager
def isolated() -> Iterator[Path]:
    """A folder, a home and a time of its own; a property's examples must not meet."""
    clock = FakeClock()
    defaults = connection.Connection.__init__.__kwdefaults__
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.dict(os.environ, {registry.HOME_ENV: f"{name}/home"}),
        mock.patch.dict(defaults, {"sleep": clock.sleep, "clock": clock}),
        mock.patch.object(connection, "connections", set[connection.Connection]()),
        mock.patch.dict(leaving.last_deeds, clear=True),
    ):
        yield Path(name)


@dataclass
class Story:
    """Plays operations, and after each of them checks that nothing was lost and nothing leaked."""

    folder: Path
    world: FakeScheduler
    specs: Sequence[JobSpec]
    jobs: list[SpecJob] = field(default_factory=list[SpecJob])
    asides: set[str] = field(default_factory=set[str])
    """Allocations that somebody asked to keep beside a new one."""

    def __post_init__(self) -> None:
        self.jobs = [SpecJob(self.specs[0]), SpecJob(self.specs[0])]

    @property
    def path(self) -> Path:
        """The state file that all clients share."""
        return self.folder / "job.json"

    @property
    def recorded(self) -> str | None:
        """The allocation that the path records."""
        record = StateFile(self.path).load()
        return record.apply_id if record else None

    # Operations

    def play(self, op: Op) -> None:
        """Do one thing, whatever comes of it, and check what must hold."""
        what, who, which, word = op
        if what == "change":
            self.jobs[who] = SpecJob(self.specs[which], on_change=word)
        before = len(self.world.calls), set(self.world.alive), self.recorded
        job = self.jobs[who]
        if job.on_change == "new" and self.recorded:
            self.asides.add(self.recorded)
        try:
            getattr(self, f"do_{what}")(job)
        except MilkweedError:
            pass
        except Crash:
            self.jobs[who] = SpecJob(job.spec, on_change=job.on_change)
        self.check(what, job, *before)

    def play_alone(self, what: str, job: SpecJob) -> None:
        """Do one thing to a job that has no path."""
        alive = self.world.allocations.get(job.apply_id or "")
        try:
            if what == "end" and alive is not None:
                self.world.end(alive.apply_id)
            elif what == "fail" and alive is not None and alive.liveness is Liveness.RUNNING:
                self.world.fail_host(alive.apply_id, alive.hosts()[0].label)
            elif what in {"apply", "kill"}:
                getattr(job, what)()
            elif what not in {"end", "fail"}:
                getattr(self, f"do_{what}")(job)
        except MilkweedError:
            pass
        self.check_known()

    def do_change(self, job: SpecJob) -> None:
        """Connect with another declaration."""
        job.state(self.path)

    do_state = do_change

    def do_apply(self, job: SpecJob) -> None:
        """Ask again for what is there, or for the first time."""
        if job.apply_id is None:
            job.state(self.path)
        else:
            job.apply()

    def do_plan(self, job: SpecJob) -> None:
        """Only look."""
        job.plan(self.path)

    def do_kill(self, job: SpecJob) -> None:
        """End the allocation."""
        if job.apply_id is None and self.path.exists():
            job_load(self.path).kill()
        job.kill()

    def do_restart(self, job: SpecJob) -> None:
        """A client ends, and a new one comes."""
        self.jobs[self.jobs.index(job)] = SpecJob(job.spec, on_change=job.on_change)

    def do_silence(self, _job: SpecJob) -> None:
        """The scheduler does not answer twice."""
        self.world.go_silent(2)

    def do_refuse(self, _job: SpecJob) -> None:
        """The scheduler will refuse the next submission."""
        self.world.refuse_next()

    def do_lose(self, _job: SpecJob) -> None:
        """The next submission will be accepted without anybody hearing of it."""
        self.world.lose_next_answer()

    def do_garble(self, _job: SpecJob) -> None:
        """The next submission will be accepted, and answered with an error."""
        self.world.lose_next_answer(BackendError("the scheduler's answer made no sense"))

    def do_end(self, _job: SpecJob) -> None:
        """The scheduler ends the recorded allocation."""
        if self.recorded in self.world.alive:
            self.world.end(str(self.recorded))

    def do_fail(self, _job: SpecJob) -> None:
        """A host of the recorded allocation fails, once it has one."""
        found = self.world.allocations.get(self.recorded or "")
        if found is not None and found.liveness is Liveness.RUNNING:
            self.world.fail_host(found.apply_id, found.hosts()[0].label, reason="")

    def do_requeue(self, _job: SpecJob) -> None:
        """The scheduler takes the hosts away for a while."""
        if self.recorded in self.world.alive:
            self.world.requeue(str(self.recorded))

    # What must hold

    def check(
        self, what: str, job: SpecJob, calls: int, alive: set[str], recorded: str | None
    ) -> None:
        """After an operation: nothing lost, nothing leaked, nothing done without knowing."""
        asked = self.world.calls[calls:]
        self.check_known()
        self.check_written_by_right(asked)
        gone = {name for name in alive if self.world.allocations[name].cancelled}
        may_replace = job.on_change == "replace" or (
            job.on_change is None and not self.world.capabilities.queued
        )
        if what != "kill" and not may_replace:
            assert not gone, f"{what} (on_change={job.on_change}) cancelled {gone}"
        submits = [call for call in asked if call.name == "submit"]
        assert len(submits) <= 1, "one operation asked for two allocations"
        if recorded in alive and not may_replace and job.on_change != "new":
            assert not submits, f"{what} asked for a second allocation"
        if what == "plan":
            assert {call.name for call in asked} <= {"find", "poll"}, f"a plan did {asked}"

    def check_known(self) -> None:
        """Every living allocation is in the state file or in the registry."""
        known = {entry.apply_id for entry in registry.load_entries()} | {self.recorded}
        leaked = set(self.world.alive) - known
        assert not leaked, f"alive, and in no record: {leaked}"

    def check_written_by_right(self, asked: Sequence[FakeCall]) -> None:
        """Nothing is written on the ground of an answer that never came."""
        silent = False
        for call in asked:
            if call.name in {"find", "poll"}:
                silent = call.answer == "silent"
            elif call.name in {"submit", "cancel", "resize"}:
                assert not silent, f"{call} after a question without an answer"

    # The end

    def recover(self, spec: JobSpec) -> None:
        """A new client comes when all is quiet again, and finds one allocation, its own."""
        self.world.calm_down()
        job = SpecJob(spec, on_change="replace")
        state = job.state(self.path)
        assert {name: len(mesh) for name, mesh in state.items()} == spec.sizes
        assert self.recorded == job.apply_id
        assert job.apply_id in self.world.alive
        others = set(self.world.alive) - {job.apply_id}
        assert others <= self.asides, f"alive beside the one of the path: {others - self.asides}"
        job.kill()

    def end_all(self) -> None:
        """Everything that still lives is found by the registry, and nothing is left of it."""
        for entry in list(registry.load_entries()):
            job_load(entry.state_path).kill()
        assert self.world.alive == []
        left = [path for path in self.folder.rglob("*") if path.is_file()]
        assert left == [], f"left behind: {left}"


@contextlib.contextmanager
def story(specs: Sequence[JobSpec], capabilities: Capabilities) -> Iterator[Story]:
    """A new story, in a folder and with a scheduler of its own."""
    world = FakeScheduler(capabilities=capabilities, queue_polls=1)
    with isolated() as folder, use_scheduler(world):
        yield Story(folder, world, specs)
