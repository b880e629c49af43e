"""Allocations that took a queue to get and were used: neither Ctrl-C nor trouble with them ends them."""

from __future__ import annotations

import contextlib

import pytest

from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeScheduler
from milkweed.errors import DeadlineError, RanksFailedError, UnreachableError
from milkweed.job import base, leaving
from milkweed.job.connection import Connection
from milkweed.job.load import SpecJob
from unit.jobs import PATH, listed, make_spec
from unit.spmd_runs import Runs, replace_runs

CANCEL = make_spec(client={"stream_logs": False, "on_interrupt": "cancel"})
SCRIPT = ["train.py"]

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _queued(world: FakeScheduler) -> None:
    world.capabilities = Capabilities(queued=True, resize=True)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Torchrun programs that are run nowhere."""
    return replace_runs(monkeypatch)


# Ctrl-C while the scheduler does not answer


def test_a_program_that_is_interrupted_ends_no_hosts_that_may_run(
    world: FakeScheduler, runs: Runs
) -> None:
    """Nobody can tell whether it still waits in the queue: it ends with its program, and not before."""
    job = SpecJob(make_spec())
    runs.error, runs.meanwhile = KeyboardInterrupt(), world.go_silent
    with pytest.raises(KeyboardInterrupt):
        job.torchrun(SCRIPT, cached_path=None)
    assert world.alive == [job.apply_id] == listed()
    leaving.leave_all()
    assert world.alive == listed() == []


@pytest.mark.parametrize("path", [None, PATH])
@pytest.mark.parametrize("silent", [True, False])
def test_a_wait_that_is_interrupted_ends_no_hosts_that_may_run(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, path: str | None, *, silent: bool
) -> None:
    """What was said of Ctrl-C is about jobs that wait."""
    job = SpecJob(CANCEL)
    job.state(path)

    def look(*_: object) -> None:
        world.go_silent(int(silent))
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "look", look)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert world.alive == [job.apply_id] == listed()
    assert world.count("cancel") == 0


def test_a_connection_that_is_interrupted_ends_no_hosts_that_may_run(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is there for the next program, which finds out."""
    job = SpecJob(CANCEL)

    def wait(*_: object) -> None:
        world.go_silent()
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "_wait_running", wait)
    with pytest.raises(KeyboardInterrupt):
        job.state(PATH)
    assert world.alive == [job.apply_id] == listed()


@pytest.mark.parametrize("path", [None, PATH])
def test_what_waits_for_certain_is_cancelled(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    """It went back to its queue: who interrupts it there wants it gone, by a word or for want of a record."""
    job = SpecJob(CANCEL)
    job.state(path)

    def look(*_: object) -> None:
        world.requeue(str(job.apply_id), polls=10)
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "look", look)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert world.alive == listed() == []


# Trouble after a program has run


def fail(monkeypatch: pytest.MonkeyPatch, job: SpecJob) -> None:
    """A connection to its hosts fails."""

    def wait(*_: object) -> None:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(Connection, "_wait_running", wait)
    with pytest.raises(UnreachableError):
        job.state(None)


@pytest.mark.parametrize("error", [None, RanksFailedError("rank 1 failed")])
def test_hosts_that_ran_a_program_outlive_trouble_with_them(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, runs: Runs, error: BaseException | None
) -> None:
    """They took a queue to get, and served, however the program ended: the end of this one is theirs."""
    job = SpecJob(make_spec())
    runs.error, runs.meanwhile = error, runs.gather
    with contextlib.suppress(RanksFailedError):
        job.torchrun(SCRIPT, cached_path=None)
    fail(monkeypatch, job)
    assert world.alive == [job.apply_id] == listed()
    leaving.leave_all()
    assert world.alive == listed() == []


def test_hosts_that_no_program_had_end_with_the_wait_for_them(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    """A program that failed before its hosts were there has not used them."""
    job = SpecJob(make_spec())
    runs.error = DeadlineError("there were too few hosts")
    with pytest.raises(DeadlineError):
        job.torchrun(SCRIPT, cached_path=None)
    fail(monkeypatch, job)
    assert world.alive == listed() == []
