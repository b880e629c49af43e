"""Allocations that are recorded after they were asked for: from then on they outlive who asked."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from milkweed.backends.base import Capabilities, Handle
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.errors import DeadlineError, StateBusyError, StateError, UnreachableError
from milkweed.job import base, job_load
from milkweed.job.load import SpecJob
from milkweed.job.waiting import insist
from milkweed.registry import own_state_path
from milkweed.state import StateFile
from milkweed.status import Status
from unit.jobs import OTHER, PATH, listed, make_spec, recorded, start

pytestmark = pytest.mark.usefixtures("folder")

WAITING = make_spec(client={"stream_logs": False, "start_timeout": 0.001})


@pytest.fixture(autouse=True)
def _queued(world: FakeScheduler) -> None:
    world.capabilities, world.queue_polls = Capabilities(queued=True), 10**6


def wait_in_vain(path: str | None, job: SpecJob | None = None) -> SpecJob:
    """A job that still waits in the queue at its deadline."""
    job = job or SpecJob(WAITING)
    with pytest.raises(DeadlineError):
        job.state(path)
    return job


def is_kept(world: FakeScheduler) -> bool:
    """Whether hosts that start now outlive their client, of the only job that waits."""
    [apply_id] = world.alive
    return world.allocations[apply_id].request.keep


def test_hosts_that_come_later_outlive_who_asked_for_them(world: FakeScheduler) -> None:
    """They were told otherwise when they were asked for, and nobody may be there when they start."""
    job = wait_in_vain(None)
    assert not is_kept(world)
    wait_in_vain(PATH, job)
    assert is_kept(world)


def test_so_do_those_that_another_client_has_recorded(world: FakeScheduler) -> None:
    """It has not asked for them, and finds them in the list."""
    path = own_state_path(str(wait_in_vain(None).apply_id))
    with pytest.raises(DeadlineError):
        job_load(path).state(PATH)
    assert is_kept(world)


def test_so_do_those_whose_answer_was_lost(world: FakeScheduler) -> None:
    """They are there, and found by their id."""
    world.lose_next_answer()
    job = SpecJob(WAITING)
    with pytest.raises(UnreachableError):
        job.state(None)
    wait_in_vain(PATH, job)
    assert is_kept(world)


def test_what_never_came_to_be_is_told_nothing(world: FakeScheduler) -> None:
    """The scheduler was silent, and has nothing of it; what is asked for then is kept from the start."""
    world.go_silent(1)
    job = SpecJob(make_spec())
    with pytest.raises(UnreachableError):
        job.state(None)
    world.queue_polls = 0
    job.state(PATH)
    assert world.count("keep") == 0
    assert is_kept(world)


def test_hosts_are_told_before_it_is_recorded(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that fails nothing has changed: it is recorded, and found, where it was before."""
    job = wait_in_vain(None)

    def keep(*_: object) -> None:
        raise StateError("the disk is full")

    monkeypatch.setattr(FakeBackend, "keep", keep)
    with pytest.raises(StateError, match="disk is full"):
        job.state(PATH)
    own = str(own_state_path(str(job.apply_id)))
    assert recorded() is None
    assert recorded(own) == job.apply_id
    assert listed() == world.alive


def test_a_path_that_is_taken_changes_nothing(world: FakeScheduler) -> None:
    """Another allocation is recorded there and lives, so this one stays as it was."""
    world.queue_polls = 0
    before = start(OTHER).apply_id
    world.queue_polls = 10**6
    job = wait_in_vain(None)
    with pytest.raises(StateError, match="another allocation"):
        job.state(PATH)
    assert recorded() == before
    assert world.count("keep") == 0


def keep_after(monkeypatch: pytest.MonkeyPatch, first: Callable[[], None]) -> None:
    """Something happens just before hosts are told."""
    tell = FakeBackend.keep

    def keep(backend: FakeBackend, handle: Handle) -> None:
        first()
        tell(backend, handle)

    monkeypatch.setattr(FakeBackend, "keep", keep)


def glance(backend: FakeBackend, handle: Handle, *, fresh: bool = False) -> Status:
    """What the scheduler alone says."""
    del fresh
    return backend.poll(handle)


def test_a_scheduler_that_is_silent_is_waited_for(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As everywhere in `state()` where its backend is patient: nothing is lost meanwhile."""
    job = wait_in_vain(None)
    silences = [1, 1]
    monkeypatch.setattr(base, "insist", functools.partial(insist, sleep=lambda _s: None))
    monkeypatch.setattr(FakeBackend, "glance", glance, raising=False)
    keep_after(monkeypatch, lambda: world.go_silent(silences.pop() if silences else 0))
    monkeypatch.setattr(job, "_spec", make_spec())
    world.allocations[str(job.apply_id)].polls_left = 0
    job.state(PATH)
    assert is_kept(world)
    assert recorded() == job.apply_id


def test_nobody_ends_it_while_it_goes_over(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who would end what only its own file records must hold that file's lock, and the mover holds it."""
    job = wait_in_vain(None)
    own = StateFile(own_state_path(str(job.apply_id)))
    busy: list[bool] = []

    def attempt() -> None:
        with pytest.raises(StateBusyError), own.lock(timeout_s=0.0, sleep=lambda _s: None):
            pass
        busy.append(True)

    keep_after(monkeypatch, attempt)
    wait_in_vain(PATH, job)
    assert busy == [True]
    assert is_kept(world)
