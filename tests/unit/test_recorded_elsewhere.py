"""An allocation that is recorded at another path meanwhile: whoever held it before goes by that record."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.base import Capabilities, Handle
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.errors import DeadlineError, StateBusyError, UnreachableError
from milkweed.job import held, job_load, leaving
from milkweed.job.attending import Attendance
from milkweed.job.connection import Connection
from milkweed.job.load import SpecJob
from milkweed.plan import Action, Renewal
from milkweed.state import StateFile
from milkweed.status import Liveness, Status
from unit.follow_ups import NAME, Story, running, tell_story
from unit.jobs import PATH, listed, make_spec, recorded, start

pytestmark = pytest.mark.usefixtures("folder")

SPEC = make_spec(backend=NAME, client={"stream_logs": False, "renew": "30m"})


@pytest.fixture(autouse=True)
def _queued(world: FakeScheduler) -> None:
    world.capabilities = Capabilities(queued=True, resize=True)


@pytest.fixture
def story(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Story:
    """An allocation with a time limit."""
    del world
    return tell_story(monkeypatch)


def connect() -> SpecJob:
    """A program whose allocation is recorded nowhere; it has follow-ups asked for."""
    job = SpecJob(SPEC)
    job.state(None)
    return job


def take_over(job: SpecJob) -> SpecJob:
    """Another client finds it in the list, and records it in a file of its own."""
    other = job_load(registry.own_state_path(str(job.apply_id)))
    other.state(PATH)
    assert isinstance(other, SpecJob)
    return other


def renew(job: SpecJob) -> None:
    """Have the thread look once that asks for follow-ups."""
    assert job._held
    assert job._held.renewer
    job._held.renewer._check()


def leave(*jobs: SpecJob) -> None:
    """These programs end, one after the other."""
    for job in jobs:
        assert job._held
        assert job._held.connection
        job._let_go()
        leaving.connections.discard(job._held.connection)


def test_a_follow_up_is_recorded_where_the_job_is_now(world: FakeScheduler, story: Story) -> None:
    """Who asked for the job first asks for it still; it is another client's, and outlives that program."""
    job = connect()
    other = take_over(job)
    story.renewal = Renewal.DUE
    renew(job)
    assert ("renew", 0) in story.asked
    assert not registry.own_state_path(str(job.apply_id)).exists()
    story.renewal = Renewal.WAITING
    leave(other, job)
    leaving.leave_all()
    assert world.alive == [recorded()] == listed()


def test_a_renewal_that_waits_for_the_record_finds_it(
    world: FakeScheduler, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for while the same program has the job recorded at another path."""
    job = connect()
    story.renewal = Renewal.DUE
    asking = threading.Thread(target=renew, args=[job])

    def keep(_backend: FakeBackend, _handle: Handle) -> None:
        asking.start()
        asking.join(0.2)

    monkeypatch.setattr(FakeBackend, "keep", keep)
    job.state(PATH)
    asking.join(10.0)
    assert ("renew", 0) in story.asked
    assert job._held
    assert job._held.file.target == StateFile(PATH).target
    assert not registry.own_state_path(str(job.apply_id)).exists()
    job.kill()
    assert world.alive == listed() == []
    assert recorded() is None


def test_sizes_that_another_client_has_changed_are_recorded_too(world: FakeScheduler) -> None:
    """What is recorded at the new path is what the old one says, and not what this client remembers."""
    job = SpecJob(make_spec())
    job.state(None)
    job_load(registry.own_state_path(str(job.apply_id))).resize("a", 3)
    assert job._held
    job._held.move(job._wish(keep=True), StateFile(PATH))
    record = StateFile(PATH).load()
    assert record
    assert record.spec.sizes == {"a": 3}
    assert job_load(PATH).plan(PATH).action is Action.NOTHING
    assert job.plan(PATH).action is Action.RESIZE
    assert len(world.alive) == 1


def test_the_hosts_of_a_follow_up_outlive_who_had_its_job_recorded(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there when the job is recorded, and nobody has been with them yet."""
    job = connect()
    story.renewal = Renewal.WAITING
    job.state(PATH)
    owners: list[bool] = []

    class Seen(Attendance):
        def __init__(self, backend: Any, *, owner: bool, **more: Any) -> None:
            owners.append(owner)
            super().__init__(backend, owner=owner, **more)

    monkeypatch.setattr(held, "Attendance", Seen)
    renew(job)
    assert owners == [False]
    leave(job)


def test_a_job_whose_hosts_took_its_folder_along_is_cancelled(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts of the part that runs see their owner leave, and end, before the part that waits is cancelled."""
    world.queue_polls = 10**6
    job = SpecJob(make_spec(client={"stream_logs": False, "start_timeout": 0.001}))
    with pytest.raises(DeadlineError):
        job.state(None)
    folder, close = registry.folder_of(str(job.apply_id)), Connection.close

    def take_along(connection: Connection, *, back_s: float = 0.0) -> None:
        close(connection, back_s=back_s)
        shutil.rmtree(folder, ignore_errors=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "close", take_along)
    monkeypatch.setattr(Connection, "_wait_running", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.state(None)
    assert world.alive == []
    assert not folder.exists()


def test_hosts_that_were_told_to_stay_end_where_that_could_not_be_recorded(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would not end with their program by themselves any more."""
    job = SpecJob(make_spec())
    job.state(None)

    def fail(_backend: FakeBackend, _handle: Handle) -> None:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(FakeBackend, "keep", fail)
    assert job._held
    with pytest.raises(UnreachableError):
        job._held.move(job._wish(keep=True), StateFile(PATH))
    assert len(world.alive) == 1
    leaving.leave_all()
    assert world.alive == listed() == []


def test_a_follow_up_of_what_hangs_in_its_end_is_waited_for(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken over as soon as its hosts serve."""
    job = SpecJob(SPEC)
    job.apply()
    ending = Status(liveness=Liveness.UNKNOWN, reason="COMPLETING", ending=True)
    story.says, story.renewal = [[ending], [running()]], Renewal.READY
    backend = type(job._backend())
    monkeypatch.setattr(backend, "glance", lambda *_, **__: ending, raising=False)
    assert job.wait(1.0, until="running").ready


# One record


def share() -> tuple[SpecJob, SpecJob]:
    """A program whose allocation was recorded nowhere, and the one that has recorded it meanwhile."""
    job = SpecJob(make_spec())
    job.state(None)
    return job, take_over(job)


def test_what_another_client_has_recorded_is_recorded_once(
    world: FakeScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third path gets no record: of two, one would be wrong as soon as anything changes."""
    job, other = share()
    job.state("third.json")
    assert not Path("third.json").exists()
    assert f"another client has recorded it in {StateFile(PATH).target}" in capsys.readouterr().err
    job.resize("a", 3)
    assert other.plan().action is Action.RESIZE
    assert job_load(PATH).spec.sizes == {"a": 3}
    leaving.leave_all()
    assert world.alive == [recorded()] == listed()


def test_the_path_that_another_client_has_named_is_as_good(world: FakeScheduler) -> None:
    """Both mean the same record."""
    job, _other = share()
    job.state(PATH)
    assert job._held
    assert not job._held.unrecorded
    assert world.alive == [recorded()] == listed()


def test_a_plan_goes_by_what_another_client_has_recorded(world: FakeScheduler) -> None:
    """Hosts that it has given back are not lost ones."""
    job, other = share()
    other.resize("a", 1)
    plan = job.plan()
    assert (plan.action, plan.spec.sizes) == (Action.RESIZE, {"a": 2})
    assert world.count("resize") == 1


def test_an_end_removes_the_record_that_another_client_has_made(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is held meanwhile, so that client sees all of it or nothing."""
    job, _other = share()
    cancel, busy = FakeBackend.cancel, list[bool]()

    def attempt(backend: FakeBackend, handle: Handle) -> None:
        with (
            pytest.raises(StateBusyError),
            StateFile(PATH).lock(timeout_s=0.0, sleep=lambda _: None),
        ):
            pass
        busy.append(True)
        cancel(backend, handle)

    monkeypatch.setattr(FakeBackend, "cancel", attempt)
    job.kill()
    assert busy == [True]
    assert world.alive == listed() == []
    assert recorded() is None


def test_a_record_that_changes_hands_while_its_lock_is_waited_for_is_not_taken(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other client ends the allocation, and records another one: that is its own."""
    job, other = share()
    lock, late, mine = StateFile.lock, [True], job._require().connection
    assert mine

    def wait(file: StateFile, **more: Any) -> Any:
        if late and file.target == StateFile(PATH).target:
            late.clear()
            other.kill()
            start()
            mine._watch.end("it was ended")
        return lock(file, **more)

    monkeypatch.setattr(StateFile, "lock", wait)
    job.state("third.json")
    assert recorded() != job.apply_id == recorded("third.json")
    assert world.alive == [recorded(), job.apply_id]


# What is made at a path where another client looks


def end(world: FakeScheduler, *jobs: SpecJob) -> None:
    """Its allocation has ended, and these programs have heard of it; another one would wait."""
    world.queue_polls = 10**6
    for job in jobs:
        world.end(str(job.apply_id))
        connection = job._require().connection
        assert connection
        connection._watch.end("it was ended")


def ask_again(job: SpecJob) -> None:
    """Connect, and wait in vain."""
    job._spec = make_spec(client={"stream_logs": False, "start_timeout": 0.001})
    with pytest.raises(DeadlineError):
        job.state(None)


def resize(job: SpecJob) -> None:
    """Other sizes of what has ended are another allocation."""
    job.resize("a", 3)


@pytest.mark.parametrize("ask", [ask_again, resize])
def test_what_takes_its_place_is_recorded_there_and_kept(
    world: FakeScheduler, ask: Callable[[SpecJob], None]
) -> None:
    """The other client waits for it as for any that it finds there: it must not end with this program."""
    job, other = share()
    end(world, job, other)
    ask(job)
    assert world.alive == [job.apply_id] == [recorded()] == listed()
    assert world.allocations[str(job.apply_id)].request.keep
    ask_again(other)
    assert other.apply_id == job.apply_id
    leaving.leave_all()
    assert world.alive == [recorded()] == listed()


def test_trouble_with_what_takes_its_place_does_not_end_it(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This program has never used it; the other one may be waiting for it."""
    job, other = share()
    end(world, job, other)

    def fail(*_: object) -> None:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(Connection, "_wait_running", fail)
    with pytest.raises(UnreachableError):
        job.state(None)
    assert world.alive == [recorded()] == listed()


def test_an_answer_to_it_that_was_lost_is_found_by_both(world: FakeScheduler) -> None:
    """Nobody knows whether it was granted: the record is the other client's, and so is what it tells of."""
    job, other = share()
    end(world, job, other)
    world.lose_next_answer()
    with pytest.raises(UnreachableError):
        job.state(None)
    leaving.leave_all()
    assert world.alive == [recorded()] == listed()


def test_hosts_there_do_not_end_with_who_asked_for_them_first(world: FakeScheduler) -> None:
    """Neither the new ones nor those that were there: it is no owner of them."""
    job, other = share()
    job._let_go()
    job.state(None)
    connection = job._require().connection
    assert connection
    assert not connection._owner
    end(world, job, other)
    world.queue_polls = 0
    job.state(None)
    connection = job._require().connection
    assert connection
    assert not connection._owner


def test_hosts_of_this_machine_that_are_recorded_at_a_path_are_kept(world: FakeScheduler) -> None:
    """Also where `apply()` has asked for them, in place of what had ended."""
    world.capabilities = Capabilities(queued=False)
    job = start()
    world.end(str(job.apply_id))
    job.apply()
    assert world.alive == [recorded()]
    assert world.allocations[str(job.apply_id)].request.keep
    assert not job._require().unrecorded
