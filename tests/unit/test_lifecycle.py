"""The steps of an allocation's life, one surprise at a time; tests/property has them all at once."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed import backends, registry
from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.errors import (
    AllocationEndedError,
    BackendError,
    ChangedError,
    NotAppliedError,
    SpecError,
    StateError,
    StateForeignError,
    UnreachableError,
    UnsupportedError,
)
from milkweed.job.load import SpecJob, job_load
from milkweed.plan import Action
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile
from milkweed.status import Liveness
from milkweed.testing import POINTS, Crash, crash_at

pytestmark = pytest.mark.usefixtures("folder")

PATH = "job.json"


def make_spec(sizes: dict[str, int] | None = None, **more: Any) -> JobSpec:
    return JobSpec(
        **{
            "name": "demo",
            "backend": "fake",
            "meshes": make_meshes(sizes or {"a": 2}),
            "client": {"stream_logs": False},
            **more,
        }
    )


SPEC = make_spec()
OTHER = make_spec(env={"A": "1"})


def recorded(path: str = PATH) -> str | None:
    record = StateFile(path).load()
    return record.apply_id if record else None


def listed() -> list[str]:
    return [entry.apply_id for entry in registry.load_entries()]


def start(spec: JobSpec = SPEC) -> SpecJob:
    """A job that is connected, and recorded at the path."""
    job = SpecJob(spec)
    job.state(PATH)
    return job


# Asking


def test_asking_twice_asks_once(world: FakeScheduler) -> None:
    """The second time, and the next client, find what is there."""
    job = start()
    job.apply()
    assert job.state(PATH) is job.state(PATH)
    assert start().apply_id == job.apply_id
    assert world.count("submit") == 1


def test_an_intent_is_on_disk_before_anybody_is_asked(world: FakeScheduler) -> None:
    """While the scheduler is asked, the id it will carry can already be found in two places."""
    with crash_at("entry"), pytest.raises(Crash):
        start()
    record = StateFile(PATH).load()
    assert world.calls == []
    assert record is not None
    assert (record.phase, record.handle) == ("intent", None)
    assert listed() == [record.apply_id]


@pytest.mark.parametrize("point", POINTS[:5])
def test_a_crash_while_asking_is_made_good(world: FakeScheduler, point: str) -> None:
    """Wherever a client dies, the next one has one allocation, and nothing else is alive."""
    with crash_at(point), pytest.raises(Crash):
        start()
    job = start()
    assert world.alive == [job.apply_id] == [recorded()] == listed()
    assert world.count("submit") == 1


@pytest.mark.parametrize("point", POINTS[5:])
def test_a_crash_while_ending_is_made_good(world: FakeScheduler, point: str) -> None:
    """Wherever a client dies while it ends its job, the next one ends it, and nothing is left."""
    job = start()
    with crash_at(point), pytest.raises(Crash):
        job.kill()
    if Path(PATH).exists():
        job_load(PATH).kill()
    assert world.alive == []
    assert listed() == []
    assert not Path(PATH).exists()


def test_a_lost_answer_is_found_by_the_id(world: FakeScheduler) -> None:
    """An allocation whose answer was lost is the one that the next call uses."""
    world.lose_next_answer()
    job = SpecJob(SPEC)
    with pytest.raises(UnreachableError):
        job.state(PATH)
    job.state(PATH)
    assert world.alive == [job.apply_id]
    assert world.count("submit") == 1


def test_without_a_path_a_lost_answer_is_found_too(world: FakeScheduler) -> None:
    """A job that was applied without a path remembers what it asked for."""
    world.lose_next_answer()
    job = SpecJob(SPEC)
    with pytest.raises(UnreachableError):
        job.apply()
    job.apply()
    assert world.alive == [job.apply_id]
    assert world.count("submit") == 1


def test_a_refusal_leaves_nothing(world: FakeScheduler) -> None:
    """A scheduler that says no leaves no record and no entry."""
    world.refuse_next()
    with pytest.raises(BackendError, match="refused"):
        start()
    assert not Path(PATH).exists()
    assert listed() == []


def test_an_error_after_acceptance_ends_what_was_begun(world: FakeScheduler) -> None:
    """A submission that fails halfway leaves nothing running."""
    world.lose_next_answer(BackendError("no sense"))
    with pytest.raises(BackendError, match="no sense"):
        start()
    assert world.alive == []
    assert listed() == []


def test_an_error_that_cannot_be_undone_leaves_the_intent(world: FakeScheduler) -> None:
    """When the scheduler goes silent after its error, the intent stays, and the next call finds out."""
    world.lose_next_answer(BackendError("no sense"))
    world.unreachable_at = frozenset({1})
    with pytest.raises(BackendError, match="no sense"):
        start()
    assert world.alive == [recorded()] == listed()
    assert start().apply_id in world.alive
    assert world.count("submit") == 1


@pytest.mark.parametrize("spec", [SPEC, OTHER])
@pytest.mark.parametrize("word", [None, "replace", "new"])
def test_silence_changes_nothing(world: FakeScheduler, spec: JobSpec, word: str | None) -> None:
    """While the scheduler does not answer nothing is submitted, cancelled or forgotten."""
    before = start().apply_id
    world.go_silent(1)
    with pytest.raises(UnreachableError, match="of which nothing is known"):
        SpecJob(spec, on_change=word).state(PATH)
    assert world.alive == [before] == [recorded()] == listed()
    assert world.count("submit") + world.count("cancel") == 1


def test_what_could_never_be_given_is_not_asked_for(world: FakeScheduler) -> None:
    """A declaration that the backend refuses leaves no trace, and touches no allocation."""
    start()
    world.max_hosts = 3
    with pytest.raises(SpecError):
        SpecJob(make_spec({"a": 4}), on_change="replace").state(PATH)
    assert world.alive == [recorded()]
    with pytest.raises(UnsupportedError):
        SpecJob(SPEC).apply("train.py" if Path("train.py").exists() else "true")
    assert world.count("submit") == 1


def test_what_has_ended_is_made_again(world: FakeScheduler) -> None:
    """An allocation that has ended is forgotten, and another one takes its place."""
    first = start().apply_id
    world.end(str(first))
    second = start().apply_id
    assert world.alive == [second] == [recorded()] == listed()
    assert second != first


def test_an_apply_without_a_path_can_be_repeated_and_leaves_nothing(
    world: FakeScheduler, home: Path
) -> None:
    """An allocation with no path of its own is replaced when it has ended, and its folders go with it."""
    job = SpecJob(SPEC)
    job.apply()
    world.end(str(job.apply_id))
    job.apply()
    assert world.alive == [job.apply_id] == listed()
    job.kill()
    assert not home.exists()


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


def test_new_that_is_refused_keeps_the_path(world: FakeScheduler) -> None:
    """When the new allocation is refused, the path still records the old one."""
    before = start().apply_id
    world.refuse_next()
    with pytest.raises(BackendError, match="refused"):
        SpecJob(OTHER, on_change="new").state(PATH)
    assert world.alive == [before] == [recorded()] == listed()
    assert start().apply_id == before


def test_sizes_change_in_place(world: FakeScheduler) -> None:
    """Where the backend can, other sizes touch nothing else; the record follows."""
    world.capabilities = Capabilities(resize=True)
    before = start().apply_id
    job = SpecJob(make_spec({"a": 5}))
    assert len(job.state(PATH).a) == 5
    assert job.apply_id == before
    assert start(make_spec({"a": 5})).apply_id == before
    assert world.count("resize") == world.count("submit") == 1


def test_another_backend_is_a_change_like_any_other(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word in the declaration changes: the old backend is asked about, and ends, the old allocation."""
    elsewhere = FakeScheduler(capabilities=Capabilities(queued=False))

    class Elsewhere(FakeBackend):
        name = "elsewhere"

        def __init__(self) -> None:
            super().__init__(elsewhere)

    monkeypatch.setattr(backends, "_plugins", lambda: {"elsewhere": "elsewhere:Elsewhere"})
    monkeypatch.setitem(sys.modules, "elsewhere", type("M", (), {"Elsewhere": Elsewhere}))
    before = start().apply_id
    moved = make_spec(backend="elsewhere")
    with pytest.raises(ChangedError, match="differs"):
        SpecJob(moved).state(PATH)
    assert world.alive == [before] == [recorded()]
    job = SpecJob(moved, on_change="replace")
    job.state(PATH)
    assert world.alive == []
    assert elsewhere.alive == [job.apply_id] == [recorded()] == listed()
    assert {call.apply_id for call in elsewhere.calls} == {job.apply_id}


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
    """A resize is no way around lost hosts."""
    world.capabilities = Capabilities(resize=True)
    world.fail_host(str(start().apply_id), "a/1")
    job = SpecJob(make_spec({"a": 3}), on_change="replace")
    assert len(job.state(PATH).a) == 3
    assert world.alive == [job.apply_id]


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


# Records


def test_a_record_of_another_machine_is_foreign(world: FakeScheduler) -> None:
    """Processes of another machine are neither looked for nor ended here."""
    world.capabilities = Capabilities(machine_bound=True)
    start()
    record = StateFile(PATH).load()
    assert record is not None
    StateFile(PATH).save(replace(record, machine={"hostname": "elsewhere", "machine_id": "x"}))
    calls = len(world.calls)
    for act in (lambda: start(), lambda: SpecJob(SPEC).plan(PATH), lambda: job_load(PATH).status()):
        with pytest.raises(StateForeignError, match="processes of elsewhere"):
            act()
    assert len(world.calls) == calls


def test_a_scheduler_reaches_allocations_from_any_machine(world: FakeScheduler) -> None:
    """Where allocations are not bound to a machine, a record may be read anywhere."""
    before = start().apply_id
    data = json.loads(Path(PATH).read_text())
    Path(PATH).write_text(json.dumps({**data, "machine": {"hostname": "elsewhere"}}))
    assert start().apply_id == before


def test_a_record_moves_to_the_path_that_is_named(world: FakeScheduler, home: Path) -> None:
    """After apply() without a path, state(path) records the allocation there, once."""
    job = SpecJob(SPEC)
    job.apply()
    job.state(PATH)
    assert recorded() == job.apply_id
    assert not registry.own_state_path(str(job.apply_id)).exists()
    assert [entry.state_path for entry in registry.load_entries()] == [str(Path(PATH).resolve())]


def test_a_living_record_is_not_overwritten(world: FakeScheduler) -> None:
    """A path that records another living allocation keeps it."""
    before = start().apply_id
    job = SpecJob(SPEC)
    job.apply()
    with pytest.raises(StateError, match="records another allocation"):
        job.state(PATH)
    assert recorded() == before
    assert set(world.alive) == {before, job.apply_id} == set(listed())


def test_a_dead_record_is_overwritten(world: FakeScheduler) -> None:
    """A path whose allocation has ended is free."""
    world.end(str(start().apply_id))
    job = SpecJob(SPEC)
    job.apply()
    job.state(PATH)
    assert [recorded()] == world.alive == listed() == [job.apply_id]


def test_ending_ends_what_was_resized_meanwhile(world: FakeScheduler) -> None:
    """kill() uses what the record says now: another client may have changed the allocation."""
    job = start()
    record = StateFile(PATH).load()
    assert record is not None
    StateFile(PATH).save(replace(record, handle={**(record.handle or {}), "newer": True}))
    seen: list[Any] = []
    cancel = FakeBackend.cancel
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            FakeBackend, "cancel", lambda self, handle: (seen.append(handle), cancel(self, handle))
        )
        job.kill()
    assert [handle.get("newer") for handle in seen] == [True]


def test_ending_leaves_the_allocation_of_another(world: FakeScheduler) -> None:
    """A client whose allocation was replaced by another client ends its own only."""
    job = start()
    other = SpecJob(OTHER, on_change="replace")
    other.state(PATH)
    job.kill()
    assert world.alive == [other.apply_id] == [recorded()] == listed()
