"""The steps of an allocation's life, one surprise at a time; tests/property has them all at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.errors import (
    AccessError,
    BackendError,
    DeadlineError,
    MilkweedError,
    SpecError,
    StateError,
    StateForeignError,
    UnreachableError,
    UnsupportedError,
)
from milkweed.job.load import SpecJob, job_load
from milkweed.spec import JobSpec
from milkweed.state import StateFile
from milkweed.testing import POINTS, Crash, crash_at
from unit.jobs import OTHER, PATH, SPEC, listed, make_spec, recorded, start

pytestmark = pytest.mark.usefixtures("folder")


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


def test_hosts_whose_answer_was_lost_end_with_their_client(world: FakeScheduler) -> None:
    """Nobody keeps them: when they cannot be used, who asked for them ends them, as if answered at once."""
    world.lose_next_answer()
    job = SpecJob(SPEC)
    with pytest.raises(UnreachableError):
        job.state(None)
    world.unreachable_at = frozenset({len(world.calls) + 3})  # of which hosts it has
    with pytest.raises(UnreachableError):
        job.state(None)
    assert world.alive == []
    assert listed() == []


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


@pytest.mark.parametrize("trouble", [DeadlineError("too slow"), AccessError("no login")])
def test_what_keeps_us_from_undoing_hides_no_error(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, trouble: MilkweedError
) -> None:
    """Why the submission failed is told; the intent stays, and what was begun is found by the next call."""

    def cancel(*_: object) -> None:
        raise trouble

    world.lose_next_answer(BackendError("no sense"))
    with monkeypatch.context() as patched:
        patched.setattr(FakeBackend, "cancel", cancel)
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


# Records


def test_a_record_of_another_machine_is_foreign(world: FakeScheduler) -> None:
    """Processes of another machine are neither looked for nor ended here."""
    world.capabilities = Capabilities(machine_bound=True)
    start()
    record = StateFile(PATH).load()
    assert record is not None
    StateFile(PATH).save(replace(record, machine={"hostname": "elsewhere", "machine_id": "x"}))
    calls = len(world.calls)
    for act in (start, lambda: SpecJob(SPEC).plan(PATH), lambda: job_load(PATH).status()):
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
