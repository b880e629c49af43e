"""Records that missed follow-ups, such as a copy that a person kept: what runs now is found, and never ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import UnreachableError
from milkweed.job import lifecycle
from milkweed.job.load import job_load
from milkweed.job.observing import observe
from milkweed.plan import Action, Plan
from milkweed.state import Record, StateFile
from milkweed.status import Liveness
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, save_part_file
from unit.slurm_jobs import create, make_spec

SPEC = make_spec(2)
FIRST = line(7, state="TIMEOUT")
SECOND = line(9, generation=1, state="TIMEOUT")
THIRD = line(11, generation=2, nodes="n[1-2]")


@pytest.fixture(autouse=True)
def _missed(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """A record that knows job 7 only; since then 9 has followed it, and 11 that one."""
    StateFile("copy.json").save(replace(create(SPEC), job_class="milkweed.job.load:SpecJob"))
    for generation, job in ((1, 9), (2, 11)):
        made = part("w/0", "w/1", number=f"{generation}.0", job=job)
        save_part_file(registry.folder_of(APPLY_ID), made)
    show(cluster, FIRST, SECOND, THIRD)


def show(cluster: FakeSlurm, *rows: str) -> None:
    cluster.jobs(*rows)
    commands.queue.wake()


def recorded() -> Record:
    record = StateFile("copy.json").load()
    assert record is not None
    return record


def plan_now() -> tuple[Plan, lifecycle.Wish]:
    wish = lifecycle.Wish(spec=SPEC, backend=SlurmBackend())
    _record, seen = observe(wish.backend, recorded(), None, wish)
    return lifecycle.plan_for(wish, seen), wish


def carry_out(plan: Plan, wish: lifecycle.Wish) -> Record:
    return lifecycle.execute(plan, wish, recorded(), StateFile("copy.json"))[0]


def cancelled(cluster: FakeSlurm) -> Sequence[str]:
    return [job for arguments in cluster.called("scancel") for job in arguments]


def test_what_runs_now_is_what_is_told() -> None:
    """It has not ended, however many follow-ups have come and gone."""
    job = job_load("copy.json")
    assert job.active
    assert job.status().details["slurm_jobs"] == "11"


def test_the_record_goes_over_to_what_runs_now(cluster: FakeSlurm) -> None:
    """Nothing is asked for, and nothing is cancelled."""
    before = len(cluster.submitted)
    plan, wish = plan_now()
    assert plan.action is Action.MOVE
    found = carry_out(plan, wish)
    assert found.handle is not None
    assert found.handle["generation"] == 2
    assert (cancelled(cluster), len(cluster.submitted)) == ([], before)


def test_one_object_goes_through_all_of_them(cluster: FakeSlurm) -> None:
    """A program that only looks keeps its first record, and waits for the real end."""
    show(cluster, line(7, nodes="n[1-2]"))
    job = job_load("copy.json")
    for rows in (
        (line(7, nodes="n[1-2]"),),
        (FIRST, line(9, generation=1)),
        (FIRST, SECOND, THIRD),
    ):
        show(cluster, *rows)
        assert job.status().liveness is Liveness.RUNNING
    show(cluster, FIRST, SECOND, line(11, generation=2, state="TIMEOUT"))
    assert job.wait(5.0, until="ended").liveness is Liveness.ENDED


def test_the_oldest_that_lives_is_the_one_in_use(cluster: FakeSlurm) -> None:
    """The one after it waits for its own turn."""
    show(
        cluster,
        FIRST,
        line(9, generation=1, nodes="n[1-2]"),
        line(11, generation=2, state="PENDING"),
    )
    assert SlurmBackend().move(recorded().handle or {})["generation"] == 1


def test_sizes_change_where_the_job_is_now(cluster: FakeSlurm) -> None:
    """The allocation that was put back into the queue, and the one that lives after it, whichever that is."""
    show(cluster, line(7, state="PENDING"), SECOND, line(11, generation=2, state="PENDING"))
    SlurmBackend().resize(recorded().handle or {}, make_spec(1))
    updates = [each[1] for each in cluster.called("scontrol") if each[0] == "update"]
    assert updates == ["JobId=7", "JobId=11"]


def test_a_follow_up_that_appears_at_the_second_look_is_not_ended(cluster: FakeSlurm) -> None:
    """The first look saw the end of all; what lives a moment later is left, and looked at anew."""
    show(cluster, FIRST, SECOND)
    plan, wish = plan_now()
    assert plan.action is Action.CREATE
    show(cluster, FIRST, SECOND, THIRD)
    with pytest.raises(UnreachableError, match="two looks"):
        carry_out(plan, wish)
    assert cancelled(cluster) == []
