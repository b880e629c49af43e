"""Follow-ups on Slurm that took the place of what was before: none is ended unasked, none forgotten."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.start import load_parts
from milkweed.cli.checks import check_entries
from milkweed.cli.look import look, of_entry
from milkweed.errors import BackendError, ChangedError, DeadlineError, StateError, UnreachableError
from milkweed.job import leaving, lifecycle, orphans, recording, renewing
from milkweed.job.held import Held
from milkweed.job.load import job_load
from milkweed.job.observing import observe
from milkweed.plan import Action, Plan, Renewal
from milkweed.spec import JobSpec
from milkweed.state import Record, StateFile
from milkweed.status import Liveness
from unit.slurm_fake import APPLY_ID, EMPTY_QUEUE, FakeSlurm, line, part, save_part_file
from unit.slurm_jobs import OTHER_ID, create, make_spec

SPEC = make_spec(2)
MORE, LONGER = make_spec(3), make_spec(2, time_limit=5400.0)
BEFORE = {
    "ended": line(7, state="TIMEOUT"),
    "ending": line(7, state="COMPLETING"),
    "running": line(7, nodes="n[1-2]"),
}
WAITS = line(9, generation=1, state="PENDING", reason="Priority")
BROKEN = (
    line(9, generation=1, state="CANCELLED"),
    line(11, generation=1, component=1, state="PENDING", reason="Priority"),
)
"""What is left of a follow-up that has lost a part: it would still be given nodes."""


@pytest.fixture(autouse=True)
def _followed(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """An allocation that was number 7 and has reached its limit; its follow-up waits as number 9."""
    record = create(SPEC)
    StateFile("job.json").save(replace(record, handle={**(record.handle or {}), "jobs": [7, 9]}))
    save_part_file(registry.folder_of(APPLY_ID), part("w/0", "w/1", number="1.0"))
    cluster.jobs(BEFORE["ended"], WAITS)


def recorded() -> Record:
    record = StateFile("job.json").load()
    assert record is not None
    return record


def plan_for(spec: JobSpec, **more: Any) -> tuple[Plan, lifecycle.Wish]:
    wish = lifecycle.Wish(spec=spec, backend=SlurmBackend(), **more)
    _record, seen = observe(wish.backend, recorded(), None, wish)
    return lifecycle.plan_for(wish, seen), wish


def carry_out(spec: JobSpec, **more: Any) -> Record:
    plan, wish = plan_for(spec, **more)
    return lifecycle.execute(plan, wish, recorded(), StateFile("job.json"))[0]


def cancelled(cluster: FakeSlurm) -> Sequence[str]:
    return [job for arguments in cluster.called("scancel") for job in arguments]


def test_another_declaration_ends_no_follow_up_unasked(cluster: FakeSlurm) -> None:
    """Its time limit was changed meanwhile: a person must say what becomes of what waits in the queue."""
    before = len(cluster.submitted)
    with pytest.raises(ChangedError) as caught:
        carry_out(LONGER)
    assert "slurm.time_limit" in caught.value.seen
    assert "its follow-up is waiting" in caught.value.seen
    assert cancelled(cluster) == []
    assert len(cluster.submitted) == before
    assert recorded().handle == {**(recorded().handle or {}), "generation": 0}


def test_it_is_kept_beside_another_on_a_persons_word(cluster: FakeSlurm) -> None:
    """The record that is set aside is the follow-up's."""
    plan, _wish = plan_for(LONGER, on_change="new")
    assert (plan.action, plan.keeps_old, plan.moves) == (Action.CREATE, True, True)
    carry_out(LONGER, on_change="new", apply_id=OTHER_ID)
    assert cancelled(cluster) == []
    aside = StateFile(registry.own_state_path(APPLY_ID)).load()
    assert aside is not None
    assert aside.handle is not None
    assert aside.handle["generation"] == 1
    assert recorded().apply_id == OTHER_ID


def test_other_sizes_are_the_follow_ups(cluster: FakeSlurm) -> None:
    """It goes on waiting, and what is added joins it."""
    cluster.answer("sbatch", "11\n")
    found = carry_out(MORE)
    assert cancelled(cluster) == []
    assert f"--comment=milkweed:1:{APPLY_ID}:1:1:demo" in cluster.submitted[-1]
    assert found.handle is not None
    assert (found.handle["generation"], found.handle["jobs"]) == (1, [7, 9, 11])
    assert found.spec.sizes == {"w": 3}


def test_the_same_declaration_waits_for_it(cluster: FakeSlurm) -> None:
    """The record goes over, and nothing else is done."""
    found = carry_out(SPEC)
    assert found.handle is not None
    assert found.handle["generation"] == 1
    assert cancelled(cluster) == []


def test_what_there_is_is_told(cluster: FakeSlurm) -> None:
    """Nobody reads that the job has ended, and that it may be forgotten, while its follow-up waits."""
    [entry] = registry.load_entries()
    seen = look(of_entry(entry))
    assert seen.status.liveness is Liveness.PENDING
    assert "Slurm job 9 is PENDING" in seen.status.reason
    assert [check.level for check in check_entries()] == ["ok"]
    assert job_load("job.json").status().liveness is Liveness.PENDING
    cluster.jobs(BEFORE["ended"], line(9, generation=1, state="CANCELLED"))
    commands.queue.wake()
    assert look(of_entry(entry)).status.liveness is Liveness.ENDED
    assert [check.level for check in check_entries()] == ["warn"]


def test_no_record_of_a_follow_up_is_overwritten(cluster: FakeSlurm) -> None:
    """A path that records it is not free for another allocation."""
    other = StateFile("other.json")
    moving = replace(recorded(), apply_id=OTHER_ID)
    wish = lifecycle.Wish(spec=SPEC, backend=SlurmBackend())
    with pytest.raises(StateError, match="another allocation"):
        recording.move(wish, moving, other, StateFile("job.json"), tell=lambda: None)
    assert cancelled(cluster) == []


def test_what_is_being_ended_is_waited_for(cluster: FakeSlurm) -> None:
    """It may come back from the queue; as long as its follow-up has no hosts nothing is done."""
    cluster.jobs(BEFORE["ending"], WAITS)
    plan, _wish = plan_for(SPEC)
    assert (plan.action, plan.blocked) == (Action.NOTHING, True)


def test_what_is_being_ended_is_not_waited_for_once_its_follow_up_serves(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was cut off: nobody knows when Slurm is done with it."""
    monkeypatch.setattr(SlurmBackend, "renewal", lambda *_args: Renewal.READY)
    cluster.jobs(BEFORE["ending"], line(9, generation=1, nodes="n[1-2]"))
    assert plan_for(SPEC)[0].action is Action.MOVE
    found = carry_out(SPEC)
    assert found.handle is not None
    assert found.handle["generation"] == 1
    assert cancelled(cluster) == ["7"]


def test_hosts_that_were_lost_are_left_for_a_follow_up_that_waits(cluster: FakeSlurm) -> None:
    """It has its place in the queue; another allocation would go to the end of it."""
    save_part_file(registry.folder_of(APPLY_ID), part("w/0"))
    save_part_file(registry.folder_of(APPLY_ID), part("w/1", number="0.1"))
    lost = [line(7, state="TIMEOUT"), line(8, component=1, nodes="n2")]
    cluster.jobs(*lost, WAITS)
    plan, _wish = plan_for(SPEC, on_change="replace")
    assert (plan.action, plan.renewal) == (Action.MOVE, Renewal.WAITING)
    found = carry_out(SPEC)
    assert found.handle is not None
    assert found.handle["generation"] == 1
    assert cancelled(cluster) == ["8"]


def test_hosts_that_only_seemed_lost_are_not_left(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still runs is ended for its follow-up only when a second look agrees."""
    cluster.jobs(BEFORE["running"], WAITS)
    plan, wish = plan_for(SPEC)
    assert plan.action is Action.REUSE
    moving = replace(plan, action=Action.MOVE, moves=True)
    with pytest.raises(UnreachableError, match="two looks"):
        lifecycle.execute(moving, wish, recorded(), StateFile("job.json"))
    assert cancelled(cluster) == []
    assert recorded().handle == {**(recorded().handle or {}), "generation": 0}


# Other sizes while both are there


def parts_of(generation: int) -> dict[int, dict[str, Any]]:
    return load_parts(registry.folder_of(APPLY_ID), generation)


@pytest.fixture
def both_wait(cluster: FakeSlurm) -> None:
    """What is followed was put back into the queue, so that no host needs to be asked."""
    cluster.jobs(line(7, state="PENDING"), WAITS)


@pytest.mark.usefixtures("both_wait")
def test_a_follow_up_grows_with_what_it_follows(cluster: FakeSlurm) -> None:
    """The hosts that are added to it wait for its turn, as its own do."""
    found = carry_out(MORE)
    marks = [each for arguments in cluster.submitted[-2:] for each in arguments if "milk" in each]
    assert [each.removeprefix(f"--comment=milkweed:1:{APPLY_ID}") for each in marks] == [
        ":0:1:demo",
        ":1:1:demo",
    ]
    assert found.handle is not None
    assert (found.handle["generation"], found.handle["sizes"]) == (0, {"w": 3})
    assert parts_of(0)[1]["follows_until"] is None
    assert parts_of(1)[1]["follows_until"] is not None
    assert cancelled(cluster) == []


@pytest.mark.usefixtures("both_wait")
def test_a_follow_up_shrinks_with_what_it_follows(cluster: FakeSlurm) -> None:
    """It keeps its place in the queue."""
    carry_out(make_spec(1))
    updates = [each for each in cluster.called("scontrol") if each[0] == "update"]
    assert [(each[1], each[2]) for each in updates] == [
        ("JobId=7", "NumNodes=1-1"),
        ("JobId=9", "NumNodes=1-1"),
    ]
    assert [part["released"] for part in (parts_of(0)[0], parts_of(1)[0])] == [[1], [1]]
    assert cancelled(cluster) == []


@pytest.mark.usefixtures("both_wait")
def test_a_follow_up_that_cannot_have_the_sizes_is_asked_for_anew(cluster: FakeSlurm) -> None:
    """The change itself is done; a follow-up of other sizes would take nobody's place."""
    cluster.then("sbatch", f'case "$*" in *{APPLY_ID}:1:1:*) echo refused >&2; exit 1;; esac\n')
    found = carry_out(MORE)
    assert found.spec.sizes == {"w": 3}
    assert cancelled(cluster) == ["9"]


@pytest.mark.usefixtures("both_wait")
def test_a_change_that_is_refused_leaves_the_follow_up_alone(cluster: FakeSlurm) -> None:
    """The job stays as it was, and so does what follows it."""
    before = len(cluster.submitted)
    cluster.answer("sbatch", err="sbatch: error: QOSMaxSubmitJobPerUserLimit\n", code=1)
    with pytest.raises(BackendError, match="Slurm refused"):
        carry_out(MORE)
    assert cancelled(cluster) == []
    assert len(cluster.submitted) == before + 1


def test_a_follow_up_that_is_being_ended_is_given_nothing(cluster: FakeSlurm) -> None:
    """What would be added to it would be left alone."""
    cluster.jobs(line(7, state="PENDING"), line(9, generation=1, state="COMPLETING"))
    before = len(cluster.submitted)
    carry_out(MORE)
    assert len(cluster.submitted) == before + 1


def test_what_one_that_failed_was_given_is_no_part_of_the_next(cluster: FakeSlurm) -> None:
    """The next one has all hosts from the start."""
    save_part_file(registry.folder_of(APPLY_ID), part("w/2", number="1.1"))
    cluster.jobs(BEFORE["running"], line(9, generation=1, state="FAILED"))
    SlurmBackend().renew(recorded().handle or {}, MORE)
    assert [len(each["hosts"]) for each in parts_of(1).values()] == [3]


def test_a_job_whose_follow_up_waits_has_not_ended(cluster: FakeSlurm) -> None:
    """Whoever waits for its end goes on waiting."""
    with pytest.raises(DeadlineError) as caught:
        job_load("job.json").wait(0.01, until="ended")
    assert "Slurm job 9 is PENDING" in caught.value.seen
    cluster.jobs(BEFORE["ended"], line(9, generation=1, state="CANCELLED"))
    commands.queue.wake()
    assert job_load("job.json").wait(5.0, until="ended").liveness is Liveness.ENDED


class Left:
    """A connection to hosts that see it leave; it notes what was cancelled before."""

    lost: Mapping[str, str] = MappingProxyType({})
    alive = True

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm
        self.before: Sequence[str] | None = None

    def close(self) -> None:
        """Leave."""
        self.before = cancelled(self.slurm)


@pytest.mark.parametrize(
    ("rows", "ended"),
    [
        ((BEFORE["running"], WAITS), ["7", "9"]),
        ((BEFORE["running"], line(9, generation=1, state="CANCELLED")), []),
        ((BEFORE["running"],), []),
        ((BEFORE["ended"], WAITS), ["9"]),
        ((BEFORE["running"], *BROKEN), ["7", "11"]),
        ((BEFORE["ended"], *BROKEN), ["11"]),
    ],
)
def test_a_follow_up_ends_with_the_program_that_nobody_records(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch, rows: tuple[str, ...], ended: list[str]
) -> None:
    """Hosts in use see their program leave; nobody is there yet who would see it for those in the queue."""
    record = recorded()
    record = replace(record, spec=replace(record.spec, client={"renew": "before time limit"}))
    left: Any = Left(cluster)
    save_part_file(registry.folder_of(APPLY_ID), part("w/0", number="1.0"))
    save_part_file(registry.folder_of(APPLY_ID), part("w/1", number="1.1"))
    cluster.jobs(*rows)
    cluster.then("scancel", EMPTY_QUEUE)
    commands.queue.wake()
    monkeypatch.setattr(leaving, "connections", {left})
    with mock.patch.dict(leaving.last_deeds, clear=True):
        held = Held(record, StateFile("job.json"), left, unrecorded=True)
        orphans.mind(held, SlurmBackend())
        leaving.leave_all()
    assert cancelled(cluster) == ended
    assert left.before == []
    assert registry.folder_of(APPLY_ID).is_dir() is not bool(ended)


def test_a_follow_up_that_is_being_asked_for_ends_with_the_program_too(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not there yet when the program ends: who asks for it is waited for, before anybody leaves."""
    monkeypatch.setattr(renewing, "CHECK_S", 0.0)
    record, file = recorded(), StateFile("job.json")
    begun, asked = threading.Event(), threading.Event()
    spec = replace(record.spec, client={"renew": "before time limit"})
    file.save(replace(record, spec=spec))
    left: Any = Left(cluster)
    held = Held(replace(record, spec=spec), file, left, unrecorded=True)
    cluster.jobs(BEFORE["running"])
    cluster.then("scancel", EMPTY_QUEUE)

    def renew(_plan: Plan) -> None:
        with file.lock():
            assert begun.wait(10.0)
            asked.set()
            assert held.renewer
            assert held.renewer._stop.wait(10.0)
            cluster.jobs(BEFORE["running"], WAITS)
            commands.queue.wake()

    made = Plan(action=Action.RENEW, reasons=("its time limit is near",), spec=spec)
    held.renewer = renewing.Renewer("demo", lambda: made, renew)
    begun.set()
    assert asked.wait(10.0)
    monkeypatch.setattr(leaving, "connections", {left})
    with mock.patch.dict(leaving.last_deeds, clear=True):
        orphans.mind(held, SlurmBackend())
        leaving.leave_all()
    assert cancelled(cluster) == ["7", "9"]
    assert left.before == []
