"""How a job is: what Slurm says of it, in the words of a run; what nobody answered is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm.detail import JobDetail
from milkweed.errors import UnreachableError
from milkweed.jobspec.progress import State, StepStatus
from milkweed.jobspec.transformers.slurm_status import (
    find_began,
    join_statuses,
    judge_detail,
    judge_files,
    load_details,
    poll_job,
    rows_of,
)
from milkweed.testing import FakeClock
from unit.slurm_fake import FakeSlurm, line, shown

MARK = "milkweed-jobspec:1:11111111-2222-4333-8444-555555555555:job"


def detail(state: str, **more: Any) -> JobDetail:
    """A job as Slurm tells it in full."""
    said: dict[str, Any] = {
        "job_id": 7, "leader": 7, "offset": None, "state": state, "reason": "", "exit_code": 0, "signal": 0,
        "restarts": 0, "nodes": (), "batch_host": "", "comment": MARK, "name": "job", "start": None, "end": None,
        "time_limit_s": None, "partition": "debug", "stdout": "",
    }  # fmt: skip
    return JobDetail(**{**said, **more})


@pytest.mark.parametrize(
    ("found", "state", "code"),
    [
        (detail("COMPLETED"), State.DONE, 0),
        (detail("FAILED", exit_code=7), State.FAILED, 7),
        (detail("FAILED", exit_code=143), State.FAILED, 143),
        (detail("FAILED", signal=9), State.FAILED, 137),
        (detail("FAILED"), State.FAILED, 1),
        (detail("TIMEOUT"), State.FAILED, 124),
        (detail("DEADLINE"), State.FAILED, 124),
        (detail("OUT_OF_MEMORY", signal=125), State.FAILED, 137),
        (detail("NODE_FAIL"), State.FAILED, 1),
        (detail("BOOT_FAIL"), State.FAILED, 1),
        (detail("PREEMPTED"), State.FAILED, 1),
        (detail("CANCELLED by 1000"), State.CANCELLED, 143),
        (detail("CANCELLED+"), State.CANCELLED, 143),
        (detail("CANCELLED", reason="DependencyNeverSatisfied"), State.SKIPPED, None),
    ],
)
def test_ends(found: JobDetail, state: State, code: int | None) -> None:
    """Every end of a job is one of a step, with the code that a shell would tell."""
    status = judge_detail(found)
    assert (status.state, status.code) == (state, code)


def test_reasons_are_slurms() -> None:
    """What a person should know is in the reason."""
    assert "NODE_FAIL: a node failed" in judge_detail(detail("NODE_FAIL")).reason
    assert "TIMEOUT" in judge_detail(detail("TIMEOUT")).reason
    assert judge_detail(detail("FAILED", exit_code=7)).reason == ""


def test_several_jobs_of_one_step() -> None:
    """One that failed counts before one that was cancelled, and that before those that ended well."""
    done, bad = StepStatus(State.DONE, 0), StepStatus(State.FAILED, 4)
    cancelled = StepStatus(State.CANCELLED, 143)
    assert join_statuses([done, cancelled, bad]) == bad
    assert join_statuses([done, cancelled]) == cancelled
    assert join_statuses([done, done]) == done


def poll(tmp_path: Path, *labels: str) -> StepStatus:
    """Ask how job 7 is."""
    return poll_job(7, MARK, tmp_path, labels or ("job",))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", State.PENDING),
        ("RUNNING", State.RUNNING),
        ("COMPLETING", State.RUNNING),
        ("SUSPENDED", State.RUNNING),
    ],
)
def test_the_queue(state: str, expected: State, cluster: FakeSlurm, tmp_path: Path) -> None:
    """While a job is not over, one look at the queue is enough."""
    cluster.jobs(line(7, state=state, reason="Priority", comment=MARK))
    assert poll(tmp_path).state is expected
    assert cluster.called("scontrol") == []


def test_why_a_job_waits(cluster: FakeSlurm, tmp_path: Path) -> None:
    """Slurm's reason is told in plain words."""
    cluster.jobs(line(7, state="PENDING", reason="Dependency", comment=MARK))
    assert "reason Dependency" in poll(tmp_path).reason


def test_an_array_is_over_when_all_of_it_is(
    cluster: FakeSlurm, clock: FakeClock, tmp_path: Path
) -> None:
    """One that still runs keeps it running; then the worst of them counts."""
    ended = [
        line(8, number="7_0", state="COMPLETED", comment=MARK),
        line(9, number="7_1", state="FAILED", comment=MARK),
    ]
    cluster.jobs(*ended, line(7, number="7_2", state="RUNNING", comment=MARK))
    assert poll(tmp_path).state is State.RUNNING
    cluster.jobs(*ended, line(7, number="7_2", state="COMPLETED", comment=MARK))
    cluster.answer("scontrol", shown(8) + shown(9, state="FAILED", code="5:0") + shown(7))
    clock.sleep(60)
    assert poll(tmp_path) == StepStatus(State.FAILED, 5)


def test_nobody_answers(cluster: FakeSlurm, tmp_path: Path) -> None:
    """That is not an end."""
    cluster.be_away()
    status = poll(tmp_path)
    assert status.state is State.UNKNOWN
    assert "Unable to contact slurm controller" in status.reason
    with pytest.raises(UnreachableError):
        rows_of(MARK)


def test_the_controller_goes_between_two_questions(cluster: FakeSlurm, tmp_path: Path) -> None:
    """The queue was answered, the job was not: nothing is known."""
    cluster.jobs(line(7, state="COMPLETED", comment=MARK))
    cluster.answer("scontrol", err="Unable to contact slurm controller (connect failure)\n", code=1)
    assert poll(tmp_path).state is State.UNKNOWN


def test_accounting_remembers(cluster: FakeSlurm, tmp_path: Path) -> None:
    """Where Slurm itself has forgotten a job."""
    cluster.answer("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    cluster.answer(
        "sacct",
        "7|7|FAILED|6:0|n1|2026-11-16T03:56:08|2026-11-16T03:56:14|UNLIMITED|debug|None||job\n",
    )
    assert poll(tmp_path) == StepStatus(State.FAILED, 6)
    assert [found.state for found in load_details(7)] == ["FAILED"]


def forget(cluster: FakeSlurm) -> None:
    """Nobody remembers the job."""
    for name in ("scontrol", "sacct"):
        cluster.answer(name, err=f"{name}: error: Invalid job id specified\n", code=1)


def test_the_jobs_own_word(cluster: FakeSlurm, tmp_path: Path) -> None:
    """A job that everybody has forgotten wrote down how it ended."""
    forget(cluster)
    (tmp_path / ".job.7.exit").write_text("4\n")
    assert poll(tmp_path) == StepStatus(State.FAILED, 4)
    (tmp_path / ".job.7.exit").write_text("0\n")
    assert poll(tmp_path).state is State.DONE
    (tmp_path / ".job.7.exit").write_text("")
    assert poll(tmp_path).state is State.LOST


def test_an_end_that_slurm_missed(cluster: FakeSlurm, tmp_path: Path) -> None:
    """A job that ended while the controller was away is a failed node for it, and has its own word."""
    cluster.answer("scontrol", shown(7, state="NODE_FAIL"))
    assert poll(tmp_path).code == 1
    (tmp_path / ".job.7.exit").write_text("6\n")
    assert poll(tmp_path) == StepStatus(State.FAILED, 6)


def test_nobody_saw_how_it_ended(cluster: FakeSlurm, tmp_path: Path) -> None:
    """Then it is called neither a success nor a failure of the work."""
    forget(cluster)
    status = poll(tmp_path)
    assert (status.state, status.code) == (State.LOST, None)
    assert status.reason == "Slurm has no trace of job 7 any more, and nobody saw how it ended"


def test_replicas_must_all_have_written(tmp_path: Path) -> None:
    """One of two that ended well does not speak for the other."""
    (tmp_path / ".r+1.8.exit").write_text("0\n")
    assert judge_files(7, tmp_path, ["r+1", "r+2"]).state is State.LOST
    (tmp_path / ".r+2.9.exit").write_text("0\n")
    assert judge_files(7, tmp_path, ["r+1", "r+2"]).state is State.DONE
    (tmp_path / ".r+2.9.exit").write_text("3\n")
    assert judge_files(7, tmp_path, ["r+1", "r+2"]) == StepStatus(State.FAILED, 3)


def test_signs_of_a_beginning(tmp_path: Path) -> None:
    """A job that began has left its number, or that of its array."""
    assert find_began(tmp_path, ["job"]) is None
    (tmp_path / ".other.5.began").write_text("5\n")
    (tmp_path / ".job.sh.5.began").write_text("5\n")
    (tmp_path / ".job.0.5.began").write_text("5\n")
    (tmp_path / ".job.8.began").write_text("")
    assert find_began(tmp_path, ["job"]) is None
    (tmp_path / ".job+2.9.began").write_text("7\n")
    assert find_began(tmp_path, ["job+1", "job+2"]) == 7
