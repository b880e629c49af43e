"""Jobs with the mark of one before, or run once more: what the earlier was or left says nothing of the later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.places import (
    Place,
    ensure_note,
    make_places,
    missing_jobs,
    standing_rows,
)
from milkweed.backends.slurm.renewal import spare_jobs
from milkweed.backends.slurm.resize import drop_gone, finish
from milkweed.backends.slurm.start import load_parts
from milkweed.backends.slurm.status import judge_host
from milkweed.backends.slurm.text import JobRow, Mark, render_mark
from milkweed.status import HostState, Liveness, Status
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, row, shown, write_log
from unit.slurm_jobs import create, handle_of, make_spec

MARK = render_mark(Mark(APPLY_ID, 0, 0, "demo"))
EXITED = "0: ImportError: no monarch\nsrun: error: n2: task 0: Exited with exit code 2\n"


# What an earlier one left


def follow_up(folder: Path) -> Place:
    """The one host of a follow-up whose job has just begun, on the node of the one before."""
    parts = {0: part("w/0", number="1.0", logs=str(folder))}
    return make_places([row(job_id=12, generation=1, nodes=("n2",))], parts)[0]


@pytest.mark.parametrize("ago_s", [6.0, 600.0])
def test_how_a_task_ended_before_is_not_how_it_is(tmp_path: Path, ago_s: float) -> None:
    """Slurm says that a job runs while its prolog does; until its script runs, the log is of the one before."""
    write_log(tmp_path / "part.1.0.log", EXITED, after_s=-ago_s)
    found = judge_host(follow_up(tmp_path), "timed out", {})
    assert (found.state, found.reason) == (HostState.STARTING, "timed out")


@pytest.mark.parametrize("after_s", [-4.0, 0.0, 600.0])
def test_how_a_task_ended_in_this_run_is_told(tmp_path: Path, after_s: float) -> None:
    """The clocks of Slurm and of a file server may differ a little."""
    write_log(tmp_path / "part.1.0.log", EXITED, after_s=after_s)
    found = judge_host(follow_up(tmp_path), "timed out", {})
    assert found.state is HostState.FAILED
    assert found.reason.endswith("Exited with exit code 2\nImportError: no monarch")


# Which of several is meant

TWO = {0: part("w/0", number="1.0", job=9)}
"""A follow-up whose first job was answered; whether a later one was taken, nobody knows."""


def attempt(job_id: int, state: str) -> JobRow:
    return row(job_id=job_id, leader=job_id, generation=1, state=state, nodes=("n1",))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("earlier", "later", "meant"),
    [
        ("COMPLETING", "RUNNING", 12),
        ("COMPLETING", "PENDING", 12),
        ("COMPLETING", "FAILED", 9),
        ("COMPLETING", "COMPLETING", 9),
        ("FAILED", "COMPLETING", 12),
        ("FAILED", "RUNNING", 12),
        ("RUNNING", "RUNNING", 9),
        ("PENDING", "RUNNING", 9),
    ],
)
def test_the_job_that_lives_is_meant(order: int, earlier: str, later: str, meant: int) -> None:
    """One that hangs in its end is not preferred for its number; among those that live the answered one is."""
    rows = [attempt(9, earlier), attempt(12, later)][::order]
    assert standing_rows(rows, TWO)[0].job_id == meant


def test_the_only_follow_up_that_lives_is_not_cancelled() -> None:
    """The one before hangs in its end, since its node is dead; this one's answer was lost."""
    assert spare_jobs([attempt(9, "COMPLETING"), attempt(12, "RUNNING")], TWO, 1) == [9]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("state", ["FAILED", "COMPLETING"])
def test_what_is_over_is_not_meant_where_another_was_answered(order: int, state: str) -> None:
    """Slurm may not tell of the later one yet, or not any more: it is looked for.

    One that hangs in its end, since its node is dead, is over, too.
    """
    parts = {0: part("w/0", number="1.0", job=12), 1: part("v/0", number="1.1", job=None)}
    other = row(job_id=10, leader=10, generation=1, component=1, state="COMPLETING")
    rows = [attempt(9, state), other][::order]
    assert [each.job_id for each in standing_rows(rows, parts).values()] == [10]
    assert missing_jobs(rows, parts) == [12]
    assert missing_jobs([*rows, attempt(12, "FAILED")], parts) == []


def test_what_lives_is_asked_for_what_it_has_beyond_its_hosts(slurm: FakeSlurm) -> None:
    """Squeue tells of jobs that ended last: they do not hide the one that is to give a node back."""
    there = part("w/0", "w/1", number="1.0", job=12, released=[1])
    alive = row(job_id=12, leader=12, generation=1, nodes=("n1", "n2"))
    there = {**there, **ensure_note({**there, "released": []}, alive)}
    assert finish(make_spec(2), [alive, attempt(9, "FAILED")], {0: there})
    assert slurm.called("scontrol") == [["update", "JobId=12", "NodeList=n1"]]


def test_what_hangs_in_its_end_frees_nothing_and_hides_nothing(tmp_path: Path) -> None:
    """The hosts of a mesh are those of the job that lives: one whose node has left it is gone."""
    whole = part("w/0", "w/1", number="1.0", job=9)
    alive = row(job_id=12, leader=12, generation=1, nodes=("n1", "n2"))
    noted = {**whole, **ensure_note(whole, alive)}
    rows = [replace(alive, nodes=("n2",)), attempt(9, "COMPLETING")]
    drop_gone(tmp_path, {0: noted}, rows)
    assert json.loads((tmp_path / "part-1.0.json").read_text())["released"] == [0]


def test_only_the_nodes_of_the_job_that_is_meant_are_noted(
    cluster: FakeSlurm, folder: Path, home: Path
) -> None:
    """Another with its mark has other nodes: the hosts are not looked for there."""
    cluster.answer("sbatch", "7\n")
    create(make_spec(1))
    cluster.jobs(line(7, nodes="n1"), line(8, nodes="n2", start="1794800100"))
    commands.queue.wake()
    SlurmBackend().places(handle_of(7), note=True)
    assert load_parts(registry.folder_of(APPLY_ID), 0)[0]["nodes"] == {"0": "n1"}


# One that is not told of any more


@pytest.fixture
def again(cluster: FakeSlurm, folder: Path, home: Path) -> FakeSlurm:
    """Job 7 failed, job 12 was asked for with its mark, and Slurm tells of the first only."""
    cluster.answer("sbatch", "7\n")
    create(make_spec(1))
    (registry.folder_of(APPLY_ID) / "mark-12").write_text(MARK)
    cluster.jobs(line(7, state="FAILED"))
    commands.queue.wake()
    return cluster


def test_an_end_before_another_was_asked_for_is_not_the_end(again: FakeSlurm) -> None:
    """What was read a moment ago may be older than the one that runs."""
    commands.queue.rows(0.0)
    again.jobs(line(7, state="FAILED"), line(12, nodes="n1"))
    assert SlurmBackend()._read(handle_of(7, 12), 60.0)[0].liveness is Liveness.RUNNING


def test_one_that_lives_without_its_mark_may_be_the_later_one(again: FakeSlurm) -> None:
    """Somebody has changed its comment and its name: nothing is known, and no host is called lost."""
    strange = line(12, nodes="n1", comment="mine").replace("|demo|end", "|x|end")
    again.jobs(line(7, state="FAILED"), strange)
    status = SlurmBackend().poll(handle_of(7, 12))
    assert status.liveness is Liveness.UNKNOWN
    assert "its comment was milkweed's mark" in status.reason
    assert SlurmBackend().explain(handle_of(7, 12), "w/0").state is HostState.STARTING


def test_one_that_nobody_tells_of_has_ended(again: FakeSlurm) -> None:
    """It was looked for, and nothing lives that may be it."""
    assert SlurmBackend().poll(handle_of(7, 12)).liveness is Liveness.ENDED
    reason = SlurmBackend().explain(handle_of(7, 12), "w/0").reason
    assert reason == "Slurm has no trace of job 12 any more"


# How it ended


def tell(slurm: FakeSlurm, **details: str) -> None:
    """What `scontrol show job` prints for each number."""
    for number, text in details.items():
        (slurm.home / f"shown{number}").write_text(text)
    slurm.then("scontrol", '[ -f "$home/shown_$4" ] && exec cat "$home/shown_$4"')


@pytest.fixture
def followed(again: FakeSlurm) -> FakeSlurm:
    """The first attempt failed, another served until its time limit was reached."""
    tell(again, _7=shown(7, state="FAILED", code="2:0"), _12=shown(12, state="TIMEOUT"))
    again.jobs(line(7, state="FAILED"), line(12, state="TIMEOUT", nodes="n1"))
    commands.queue.wake()
    return again


def glance() -> Status:
    return SlurmBackend().glance(handle_of(7, 12), fresh=True)


def test_an_attempt_that_failed_is_not_how_the_job_ended(followed: FakeSlurm) -> None:
    """The job ended as the one did that had its hosts."""
    status = glance()
    assert status.reason == "Slurm job 12 is TIMEOUT: its time limit was reached"
    assert status.exit_code is None


def test_what_slurm_has_forgotten_is_asked_for_by_its_last_number(followed: FakeSlurm) -> None:
    """The queue tells of neither any more."""
    followed.jobs()
    said = shown(12, state="TIMEOUT").replace(" WorkDir=/", f" WorkDir=/ Comment={MARK}")
    tell(followed, _12=said)
    assert glance().reason == "Slurm job 12 is TIMEOUT: its time limit was reached"


def test_what_an_earlier_attempt_has_left_is_not_why_it_ended(followed: FakeSlurm) -> None:
    """Its keepers' farewells and its log, nor those of another generation."""
    folder = registry.folder_of(APPLY_ID)
    log = Path(load_parts(folder, 0)[0]["logs"]) / "part.0.0.log"
    tell(followed, _12=shown(12, state="FAILED", code="1:0"))
    followed.jobs(line(12, state="FAILED", nodes="n1"))
    commands.queue.wake()
    write_log(log, EXITED, after_s=-600.0)
    write_log(folder / "ended-0.0.0.json", '{"reason": "no client came"}', after_s=-600.0)
    write_log(folder / "ended-1.0.0.json", '{"reason": "nobody was connected"}')
    assert len(glance().reason.splitlines()) == 1
    write_log(log, EXITED)
    write_log(folder / "ended-0.0.0.json", '{"reason": "no client came"}')
    assert glance().reason.splitlines()[1:] == [
        "no client came",
        "the end of the job's own log:",
        *(f"  {said}" for said in EXITED.splitlines()),
    ]
