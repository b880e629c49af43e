"""Changed declarations, lost hosts, and looking at it all without touching it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeScheduler
from milkweed.backends.programs import is_late
from milkweed.errors import (
    AllocationEndedError,
    ChangedError,
    NotAppliedError,
    SpecError,
)
from milkweed.job.load import SpecJob, job_load, load_current_job
from milkweed.job.watch import Watch
from milkweed.plan import Action
from milkweed.status import Liveness
from milkweed.testing import Crash, crash_at
from milkweed.worker.wire import STATE_ENV
from unit.jobs import OTHER, PATH, SPEC, listed, make_spec, recorded, start

pytestmark = pytest.mark.usefixtures("folder")


# Changing


def test_a_change_is_shown_and_nothing_is_done(world: FakeScheduler) -> None:
    """Where there is a queue, a changed declaration is an error with the difference in it."""
    before = start().apply_id
    with pytest.raises(ChangedError) as caught:
        SpecJob(OTHER).state(PATH)
    assert "+ meshes.a.env.A" in caught.value.seen
    assert world.alive == [before] == [recorded()]


def test_replacing_ends_the_old_one_first(world: FakeScheduler) -> None:
    """On a person's word the old allocation is ended, forgotten, and the new one made."""
    before = start().apply_id
    job = SpecJob(OTHER, on_change="replace")
    job.state(PATH)
    assert world.alive == [job.apply_id] == [recorded()] == listed()
    assert world.allocations[str(before)].cancelled


@pytest.mark.parametrize("by", ["word", "size"])
def test_only_what_was_lost_is_replaced(world: FakeScheduler, by: str) -> None:
    """Said before or by asking for the size that there is: the allocation stays, and is whole again."""
    world.capabilities = Capabilities(queued=True, resize=True, repairs=True)
    before = str(start().apply_id)
    world.fail_host(before, "a/1")
    with pytest.raises(ChangedError) as caught:
        SpecJob(SPEC).state(PATH)
    assert 'on_change="repair" asks for others' in caught.value.hint
    job = SpecJob(SPEC, on_change="repair") if by == "word" else job_load(PATH)
    if by == "size":
        job.resize("a", 2)
    job.state(PATH)
    assert world.alive == [before] == [recorded()]
    assert job.status().ready


@pytest.mark.parametrize("word", ["ask", "repair", "replace", "new"])
def test_a_resize_ends_no_host_that_is_well(world: FakeScheduler, word: str) -> None:
    """Whatever was declared for changes: who asks for a size means the hosts that there are."""
    world.capabilities = Capabilities(queued=True, resize=True, repairs=True)
    job = SpecJob(SPEC, on_change=word)
    job.state(PATH)
    world.fail_host(str(job.apply_id), "a/1")
    job.resize("a", 2)
    job.state(PATH)
    assert world.alive == [job.apply_id] == [recorded()]
    assert world.count("submit") == 1
    assert job.status().ready


# Within the job


@pytest.fixture
def inside(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an allocation that has lost a host; the program runs for it, as `milkweed run` has it."""
    world.capabilities = Capabilities(queued=True, resize=True, repairs=True)
    apply_id = str(start().apply_id)
    world.fail_host(apply_id, "a/1")
    monkeypatch.setenv(STATE_ENV, str(Path(PATH).absolute()))
    return apply_id


@pytest.mark.parametrize("by", ["word", "size"])
def test_who_runs_for_a_job_may_repair_it(world: FakeScheduler, inside: str, by: str) -> None:
    """A repair ends nothing, so it needs no word of anybody else."""
    job = SpecJob(SPEC, on_change="repair") if by == "word" else load_current_job()
    if by == "size":
        job.resize("a", 2)
    job.state()
    assert world.alive == [inside] == [recorded()]
    assert job.status().ready


@pytest.mark.parametrize("word", [None, "ask", "replace", "new"])
def test_who_runs_for_a_job_ends_it_for_no_word(
    world: FakeScheduler, inside: str, word: str | None
) -> None:
    """It would end with it; the error tells of the one thing that it can do."""
    with pytest.raises(ChangedError) as caught:
        SpecJob(SPEC, on_change=word).state()
    assert caught.value.hint == 'on_change="repair" asks for others in place of what was lost'
    assert caught.value.seen.endswith("needs your word: on_change repair")
    assert world.alive == [inside]


def test_who_cannot_repair_the_job_it_runs_for_is_told_so(
    world: FakeScheduler, inside: str
) -> None:
    """It declares just what is there, so it is not told to declare that, and no word is asked of it."""
    world.capabilities = Capabilities(queued=True)
    with pytest.raises(ChangedError) as caught:
        SpecJob(SPEC, on_change="repair").state()
    assert "must not end it" in caught.value.hint
    assert "on_change" not in caught.value.seen
    assert world.alive == [inside]


@pytest.mark.parametrize("word", ["ask", "repair", "replace"])
def test_who_declares_something_else_within_a_job_is_told_so(
    world: FakeScheduler, inside: str, word: str
) -> None:
    """Whatever word it gives: another declaration would end the job that it runs for."""
    with pytest.raises(ChangedError) as caught:
        SpecJob(OTHER, on_change=word).state()
    assert "declare the same" in caught.value.hint
    assert "needs your word" not in caught.value.seen
    assert world.alive == [inside]


# Replacing, and keeping


def test_new_keeps_the_old_one_beside(world: FakeScheduler) -> None:
    """The old allocation stays, listed with a record of its own, from which it can be ended."""
    before = start().apply_id
    job = SpecJob(OTHER, on_change="new")
    job.state(PATH)
    assert sorted(world.alive) == sorted([str(before), str(job.apply_id)])
    assert recorded() == job.apply_id
    (entry,) = [entry for entry in registry.load_entries() if entry.apply_id == before]
    job_load(entry.state_path).kill()
    assert world.alive == [job.apply_id] == listed()


def test_sizes_change_in_place(world: FakeScheduler) -> None:
    """Where the backend can, other sizes touch nothing else; the record follows."""
    world.capabilities = Capabilities(resize=True)
    before = start().apply_id
    job = SpecJob(make_spec({"a": 5}))
    assert len(job.state(PATH).a) == 5
    assert job.apply_id == before
    assert start(make_spec({"a": 5})).apply_id == before
    assert world.count("resize") == world.count("submit") == 1


# Losing hosts


@pytest.mark.parametrize("reason", ["killed\nand more", ""])
def test_lost_hosts_need_a_word_where_there_is_a_queue(world: FakeScheduler, reason: str) -> None:
    """An allocation that lost a host is not what was declared; what to do is a person's choice."""
    before = str(start().apply_id)
    world.fail_host(before, "a/1", reason)
    with pytest.raises(ChangedError) as caught:
        SpecJob(SPEC).state(PATH)
    assert "hosts were lost: a/1" in caught.value.seen
    assert world.alive == [before]
    job = SpecJob(SPEC, on_change="replace")
    job.state(PATH)
    assert world.alive == [job.apply_id]


def test_lost_hosts_are_replaced_where_there_is_no_queue(world: FakeScheduler) -> None:
    """Local hosts are disposable."""
    world.capabilities = Capabilities(queued=False)
    world.fail_host(str(start().apply_id), "a/1")
    job = SpecJob(SPEC)
    job.state(PATH)
    assert world.alive == [job.apply_id]


def test_new_keeps_an_allocation_with_lost_hosts(world: FakeScheduler) -> None:
    """Who says «new» keeps the old allocation, lost hosts or not."""
    before = str(start().apply_id)
    world.fail_host(before, "a/1")
    job = SpecJob(SPEC, on_change="new")
    job.state(PATH)
    assert set(world.alive) == {before, job.apply_id} == set(listed())


def test_lost_hosts_are_seen_when_sizes_change(world: FakeScheduler) -> None:
    """A larger job has them anew; a smaller one that would keep them needs a person's word."""
    world.capabilities = Capabilities(resize=True)
    before = str(start().apply_id)
    world.fail_host(before, "a/1")
    job = SpecJob(make_spec({"a": 3}))
    assert len(job.state(PATH).a) == 3
    assert world.alive == [before]
    world.fail_host(before, "a/0")
    smaller = SpecJob(make_spec({"a": 2}), on_change="ask")
    with pytest.raises(ChangedError, match="would keep hosts that were lost: a/0"):
        smaller.state(PATH)
    smaller.on_change = "replace"
    assert len(smaller.state(PATH).a) == 2
    assert before not in world.alive


# Looking


def test_a_plan_is_what_will_be_done(world: FakeScheduler) -> None:
    """For a new job, a running one, a changed one and an ended one, the plan says it and does nothing."""
    assert SpecJob(SPEC).plan(PATH).action is Action.CREATE
    job = start()
    assert job.plan(PATH).action is Action.NOTHING
    assert SpecJob(SPEC).plan(PATH).action is Action.REUSE
    assert SpecJob(OTHER).plan(PATH).action is Action.REPLACE
    world.end(str(job.apply_id))
    assert SpecJob(OTHER).plan(PATH).action is Action.CREATE
    assert world.count("submit") == 1
    assert world.count("cancel") == 0


def test_a_plan_knows_what_the_job_holds(world: FakeScheduler) -> None:
    """A record that somebody deleted does not make a connected job plan a second allocation."""
    job = start()
    Path(PATH).unlink()
    assert job.plan(PATH).action is Action.NOTHING
    job.apply()
    assert world.count("submit") == 1


def test_looking_at_nothing_is_an_error() -> None:
    """Without an allocation there is no status, no log and no event, and ending is fine."""
    job = SpecJob(SPEC)
    for look in (job.status, job.events, job.logs, job.wait):
        with pytest.raises(NotAppliedError):
            look()
    assert not job.active
    job.kill()


def test_logs_are_found_after_a_lost_answer(world: FakeScheduler) -> None:
    """A job known by its intent only is looked up by its id."""
    with crash_at("submit"), pytest.raises(Crash):
        start()
    world.write_log(str(recorded()), "a/0", "hello")
    assert [line.text for line in job_load(PATH).logs()] == ["hello"]


def test_waiting_for_what_has_ended_is_an_error(world: FakeScheduler) -> None:
    """A job that ended will not run; waiting for its end is over."""
    job = start()
    assert job.wait().ready
    world.end(str(job.apply_id), "TIMEOUT")
    with pytest.raises(AllocationEndedError) as caught:
        job.wait(until="running")
    assert caught.value.seen == "TIMEOUT"
    assert job.wait(until="ended").liveness is Liveness.ENDED
    with pytest.raises(SpecError, match="is not known"):
        job.wait(until="happy")


def test_a_deadline_is_for_all_of_a_state(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for finding out what became of the hosts that were there before."""
    job = SpecJob(make_spec(client={"stream_logs": False, "start_timeout": 0.01}))
    job.state(PATH)
    limits: list[bool] = []

    def settle(_watch: object) -> None:
        time.sleep(0.02)
        limits.append(is_late())

    monkeypatch.setattr(Watch, "settle", settle)
    job.state(PATH)
    assert limits == [True]
