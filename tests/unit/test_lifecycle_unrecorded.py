"""Allocations that are recorded nowhere: they end with the program that asked for them, whatever it waits for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milkweed.backends.base import Capabilities, Handle
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.errors import BackendError, DeadlineError, UnreachableError
from milkweed.job import base, job_load, leaving
from milkweed.job.attending import Attendance
from milkweed.job.connection import Connection
from milkweed.job.load import SpecJob
from milkweed.job.programs import Program
from milkweed.registry import own_state_path
from milkweed.status import Liveness
from unit.jobs import PATH, listed, make_spec, recorded

pytestmark = pytest.mark.usefixtures("folder")

WAITING = make_spec(client={"stream_logs": False, "start_timeout": 0.001})
QUEUED = Capabilities(queued=True, resize=True)


@pytest.fixture(autouse=True)
def _queued(world: FakeScheduler) -> None:
    world.capabilities, world.queue_polls = QUEUED, 10**6


def wait_in_vain(path: str | None = None) -> SpecJob:
    """A job that still waits in the queue at its deadline."""
    job = SpecJob(WAITING)
    with pytest.raises(DeadlineError):
        job.state(path)
    return job


def interrupt(monkeypatch: pytest.MonkeyPatch, job: SpecJob, path: str | None = None) -> None:
    """A person presses Ctrl-C while the job goes on waiting."""

    def wait(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "_wait_running", wait)
    with pytest.raises(KeyboardInterrupt):
        job.state(path)


def test_what_still_waits_ends_with_its_program(
    world: FakeScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deadline cancels nothing, and the program may go on waiting; when it does not, nobody would."""
    wait_in_vain()
    assert len(world.alive) == 1
    leaving.leave_all()
    assert world.alive == listed() == []
    assert "milkweed: job 'demo' ends with this program: it is" in capsys.readouterr().err
    leaving.leave_all()
    assert world.count("cancel") == 1


def test_what_is_recorded_outlives_its_program(world: FakeScheduler) -> None:
    """The next one goes on waiting: asked for with a path, by `apply()`, or given a path later."""
    wait_in_vain(PATH)
    SpecJob(WAITING).apply()
    job = wait_in_vain()
    with pytest.raises(DeadlineError):
        job.state("later.json")
    leaving.leave_all()
    assert len(world.alive) == 3
    assert world.count("cancel") == 0


def test_what_another_client_has_recorded_outlives_its_program(world: FakeScheduler) -> None:
    """It is that client's now, in a file of its own; the program that asked for it does not know."""
    job = wait_in_vain()
    with pytest.raises(DeadlineError):
        job_load(own_state_path(str(job.apply_id))).state(PATH)
    leaving.leave_all()
    assert world.alive == [job.apply_id] == [recorded()] == listed()
    assert world.count("cancel") == 0


def test_what_another_client_has_ended_leaves_nothing(world: FakeScheduler, home: Path) -> None:
    """The scheduler says that it has ended, and no folder is made to look."""
    job = wait_in_vain()
    job_load(own_state_path(str(job.apply_id))).kill()
    leaving.leave_all()
    assert world.count("cancel") == 1
    assert not home.exists()


def test_hosts_in_use_end_by_themselves(world: FakeScheduler) -> None:
    """Their keepers see that the program leaves: nothing is asked of the scheduler."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.state(None)
    before = len(world.calls)
    leaving.leave_all()
    assert len(world.calls) == before


def test_hosts_that_went_back_to_the_queue_end_with_their_program(world: FakeScheduler) -> None:
    """It had them, and would not see them again."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.state(None)
    assert job.apply_id
    world.requeue(job.apply_id, polls=10)
    assert job._held
    assert job._held.connection
    job._held.connection._watch.end("it is back in the queue")
    leaving.leave_all()
    assert world.alive == []


def test_what_has_ended_stays_to_be_looked_at(world: FakeScheduler) -> None:
    """Why it ended is in its folder."""
    job = wait_in_vain()
    world.end(job.apply_id or "")
    leaving.leave_all()
    assert listed() == [job.apply_id]
    assert world.count("cancel") == 0


def test_a_fork_of_the_program_ends_nothing(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was born with is its parent's."""
    wait_in_vain()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        leaving.leave_all()
    assert len(world.alive) == 1


@pytest.mark.parametrize("trouble", [UnreachableError("no answer"), BackendError("no scancel")])
def test_an_end_that_cannot_be_had_is_told(
    world: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    trouble: BackendError,
) -> None:
    """The program is over; who ends the job now is a person."""

    def cancel(*_: object) -> None:
        raise trouble

    job = wait_in_vain()
    monkeypatch.setattr(FakeBackend, "cancel", cancel)
    leaving.leave_all()
    told = capsys.readouterr().err
    assert f"job 'demo' could not be ended: {trouble.what}" in told
    assert f"`milkweed kill {job.apply_id}`" in told
    assert listed() == world.alive


def test_an_end_that_is_interrupted_leaves_nothing_out(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while one job is ended: the others are ended all the same, and hosts in use are left."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.state(PATH)
    world.queue_polls = 10**6
    for _ in range(2):
        wait_in_vain()
    calls: list[Handle] = []

    def cancel(_backend: FakeBackend, handle: Handle) -> None:
        calls.append(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeBackend, "cancel", cancel)
    with pytest.raises(KeyboardInterrupt):
        leaving.leave_all()
    assert len(calls) == 2
    assert job._held
    assert job._held.connection not in leaving.connections


def test_an_answer_that_was_lost_is_looked_for(world: FakeScheduler) -> None:
    """It was asked for, and nobody heard whether it was given: the scheduler knows."""
    world.lose_next_answer()
    with pytest.raises(UnreachableError):
        SpecJob(make_spec()).state(None)
    assert len(world.alive) == 1
    leaving.leave_all()
    assert world.alive == listed() == []


def test_a_second_wait_is_interrupted_like_the_first(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupts a job that nobody records wants it gone, however often it was waited for."""
    job = wait_in_vain()
    interrupt(monkeypatch, job)
    assert world.alive == listed() == []
    assert job.apply_id is None


def take_over(job: SpecJob) -> None:
    """Another client finds a job in the list, and records it in a file of its own."""
    with pytest.raises(DeadlineError):
        job_load(own_state_path(str(job.apply_id))).state(PATH)


@pytest.mark.parametrize("how", ["Ctrl-C", "trouble"])
def test_what_another_client_has_recorded_outlives_a_wait_that_fails(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is that client's now: whoever asked for it gives up only what nobody else looks for."""
    job = wait_in_vain()
    apply_id = str(job.apply_id)
    take_over(job)
    trouble = KeyboardInterrupt() if how == "Ctrl-C" else BackendError("no way there")

    def wait(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(Connection, "_wait_running", wait)
    with pytest.raises(type(trouble)):
        job.state(None)
    assert world.alive == [apply_id] == [recorded()] == listed()
    assert world.count("cancel") == 0
    leaving.leave_all()
    assert world.alive == [apply_id] == [recorded()] == listed()


def test_what_another_client_has_recorded_outlives_a_program_on_it(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a torchrun program waits for its hosts is no other than while `state()` does."""
    job = wait_in_vain()
    take_over(job)

    def run(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Program, "check", lambda *_: None)
    monkeypatch.setattr(Program, "run", run)
    with pytest.raises(KeyboardInterrupt):
        job.torchrun(["train.py"], cached_path=None)
    assert world.alive == [recorded()] == listed()


def test_what_is_recorded_elsewhere_now_is_not_cancelled_by_a_word_for_it(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person is told that it stays, and how to end it all the same; `kill()` does end it."""
    job = SpecJob(make_spec(client={**WAITING.client, "on_interrupt": "cancel"}))
    job.apply()
    apply_id = str(job.apply_id)
    take_over(job)

    def look(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "look", look)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert world.alive == [apply_id] == [recorded()]
    assert f"`milkweed kill {apply_id}` ends it" in capsys.readouterr().err
    job_load(PATH).kill()
    assert world.alive == listed() == []


def test_what_was_used_is_not_ended_by_trouble_with_it(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a queue to get: a second `state()` that fails ends nothing, the end of the program does."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.state(None)
    job._let_go()

    def fail(*_: object) -> None:
        raise BackendError("no way there")

    monkeypatch.setattr(Connection, "_wait_running", fail)
    with pytest.raises(BackendError, match="no way"):
        job.state(None)
    assert len(world.alive) == 1
    leaving.leave_all()
    assert world.alive == []


def test_what_takes_the_place_of_an_unrecorded_one_is_unrecorded(world: FakeScheduler) -> None:
    """Other sizes of an allocation that has ended are another one, and it ends with its program like the first."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.state(None)
    assert job.apply_id
    world.end(job.apply_id)
    world.queue_polls = 10**6
    job.resize("a", 3)
    [found] = world.alive
    assert not world.allocations[found].request.keep
    assert world.allocations[found].liveness is Liveness.PENDING
    leaving.leave_all()
    assert world.alive == []


def test_what_takes_the_place_of_a_recorded_one_is_recorded(world: FakeScheduler) -> None:
    """It goes to the same path, and outlives its program."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.state(PATH)
    assert job.apply_id
    world.end(job.apply_id)
    job.resize("a", 3)
    [found] = world.alive
    assert world.allocations[found].request.keep
    assert Path(PATH).exists()
    leaving.leave_all()
    assert world.alive == [found]


Seen = list[tuple[bool, object, int]]


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Where a program is present while ranks run: as an owner or not, beside which sessions, at how many hosts."""
    seen: Seen = []

    def stay(attendance: Attendance, _handle: object, *, known: object, hosts: int) -> None:
        seen.append((attendance._presence._owner, known, hosts))

    monkeypatch.setattr(Attendance, "stay", stay)
    monkeypatch.setattr(Program, "check", lambda *_: None)
    monkeypatch.setattr(Program, "run", lambda *_: None)
    return seen


@pytest.mark.parametrize(("path", "seen"), [(None, [(True, None, 2)]), (PATH, [])])
def test_hosts_that_run_a_program_see_their_owner(
    world: FakeScheduler, stays: Seen, path: str | None, seen: Seen
) -> None:
    """Ranks are started by guests: hosts that end with their owner must see that it is there, too."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.torchrun(["train.py"], cached_path=path)
    assert stays == seen
    job.kill()


def test_hosts_that_are_added_between_two_programs_see_it_too(
    world: FakeScheduler, stays: Seen
) -> None:
    """From the moment on that they were asked for, and while the next program runs."""
    world.queue_polls = 0
    job = SpecJob(make_spec())
    job.torchrun(["train.py"], cached_path=None)
    job.resize("a", 4)
    assert stays[1:] == [(True, None, 4)]
    job.torchrun(["train.py"], cached_path=None)
    assert stays[2:] == [(True, None, 4)]
    job.kill()


def test_a_program_on_hosts_that_were_waited_for_in_vain_is_seen(stays: Seen) -> None:
    """The connection that still waits for them is none that they see; those that it has are left to it."""
    job = wait_in_vain()
    assert job._held
    assert job._held.connection
    job.torchrun(["train.py"], cached_path=None)
    assert stays == [(True, job._held.connection.presence, 2)]
    job.kill()
