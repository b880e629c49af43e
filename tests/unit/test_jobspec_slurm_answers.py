"""What Slurm answers to a run, or does not: nothing is submitted twice, and what is not known is not an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm import commands
from milkweed.errors import (
    BackendError,
    UnreachableError,
)
from milkweed.jobspec import load_runs
from milkweed.jobspec.progress import State
from milkweed.jobspec.transformers.slurm import Transformer
from milkweed.testing import FakeClock
from unit.jobspec_slurm_runs import TIMED_OUT, Quick, job, mark_of, number_jobs, run
from unit.jobspecs import forget_record
from unit.slurm_fake import FakeSlurm, line, shown


@pytest.fixture
def quick(clock: FakeClock, home: Path) -> Transformer:
    """A transformer that never really waits."""
    made = Quick()
    made.clock = clock
    made.sleep = clock.sleep
    return made


# Without an answer


def test_a_submission_without_an_answer(
    cluster: FakeSlurm, quick: Transformer, clock: FakeClock
) -> None:
    """Nobody knows whether it was taken: it is looked for twice, and then submitted once."""
    cluster.answer("sbatch", err=TIMED_OUT, code=1)
    with pytest.raises(UnreachableError):
        run(quick, job("a"))
    [made] = load_runs()
    assert made.progress().entries["a"].intended
    assert list((made.folder / "asked").rglob("asked-for"))
    cluster.answer("sbatch", "7\n")
    quick.carry_on(made)
    assert len(cluster.submitted) == 2
    assert len(cluster.called("squeue")) >= 2


def test_what_comes_late_is_found(cluster: FakeSlurm, quick: Transformer) -> None:
    """The controller took it after all: it is not submitted again."""
    cluster.answer("sbatch", err=TIMED_OUT, code=1)
    with pytest.raises(UnreachableError):
        run(quick, job("a"))
    [made] = load_runs()
    quick.sleep = lambda _seconds: cluster.jobs(line(41, state="PENDING", comment=mark_of(made)))
    quick.carry_on(made)
    assert len(cluster.submitted) == 1
    handle = made.progress().entries["a"].handle
    assert handle is not None
    assert handle["id"] == "41"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED"])
def test_a_crash_before_the_record(state: str, cluster: FakeSlurm, quick: Transformer) -> None:
    """The job is found by its mark, in whatever state, and by nothing else."""
    made = run(quick, job("a"))
    forget_record(made)
    cluster.jobs(
        line(8, comment="milkweed-jobspec:1:other:a"), line(7, state=state, comment=mark_of(made))
    )
    quick.carry_on(made)
    assert len(cluster.submitted) == 1
    assert made.progress().entries["a"].handle == {"id": "7", "cluster": "lab"}


def test_a_crash_and_a_forgotten_job(cluster: FakeSlurm, quick: Transformer) -> None:
    """A job that Slurm has forgotten left its number in the run's folder: it ran, and does not run again."""
    made = run(quick, job("a"))
    forget_record(made)
    (made.logs / ".a.7.began").write_text("7\n")
    (made.logs / ".a.7.exit").write_text("3\n")
    for name in ("scontrol", "sacct"):
        cluster.answer(name, err="Invalid job id specified\n", code=1)
    quick.carry_on(made, wait=True)
    assert len(cluster.submitted) == 1
    assert made.progress().exit_code() == 3


def test_a_refusal(cluster: FakeSlurm, quick: Transformer) -> None:
    """What sbatch says is the reason of the step, and the run's code is not 0."""
    cluster.answer("sbatch", err="sbatch: error: Invalid account\n", code=1)
    made = run(quick, job("a", bank="nobody"))
    status = made.progress().entries["a"].status
    assert status.state is State.FAILED
    assert "Invalid account" in status.reason
    assert made.progress().exit_code() == 1


def test_looking_when_nobody_answers(
    cluster: FakeSlurm, quick: Transformer, clock: FakeClock
) -> None:
    """UNKNOWN, and nothing is written or cancelled."""
    made = run(quick, job("a"))
    before = made.journal.path.read_text()
    cluster.be_away()
    clock.sleep(60)
    assert quick.status(made).entries["a"].status.state is State.UNKNOWN
    assert made.journal.path.read_text() == before


def test_another_cluster(cluster: FakeSlurm, quick: Transformer) -> None:
    """That a job is not to be seen here says nothing about it."""
    made = run(quick, job("a"))
    cluster.cluster("elsewhere")
    commands.cluster_name.cache_clear()
    status = quick.status(made).entries["a"].status
    assert status.state is State.UNKNOWN
    assert "on the cluster lab, and this is elsewhere" in status.reason
    with pytest.raises(UnreachableError):
        quick.cancel(made)


def test_cancelling(cluster: FakeSlurm, quick: Transformer) -> None:
    """All jobs with one command; then the run is over."""
    number_jobs(cluster)
    made = run(quick, job("a"), job("b"))
    cluster.jobs(*(line(at + 1, comment=mark_of(made, name)) for at, name in enumerate("ab")))
    quick.cancel(made)
    assert cluster.called("scancel") == [["1", "2"]]
    assert quick.status(made).exit_code() == 143


@pytest.mark.parametrize(
    ("words", "fails"),
    [("Invalid job id specified", False), ("Access/permission denied", True)],
)
def test_cancelling_what_slurm_does_not_know(
    words: str, fails: bool, cluster: FakeSlurm, quick: Transformer
) -> None:
    """A job that is forgotten is over; any other refusal is an error."""
    made = run(quick, job("a"))
    cluster.answer("scancel", err=f"scancel: error: {words}\n", code=1)
    if fails:
        with pytest.raises(BackendError, match="Slurm refused"):
            quick.cancel(made)
    else:
        assert quick.cancel(made).over


def test_a_single_step_can_be_cancelled(cluster: FakeSlurm, quick: Transformer) -> None:
    """By its handle."""
    made = run(quick, job("a"))
    step = quick.make_step(made, "a", made.progress())
    step.cancel({"id": "7", "cluster": "lab"})
    assert cluster.called("scancel") == [["7"]]


def test_logs(cluster: FakeSlurm, quick: Transformer) -> None:
    """They are read from the run's folder, also when the job is over."""
    made = run(quick, job("a"))
    (made.logs / "a.log").write_text("one\ntwo\n")
    cluster.answer("scontrol", shown(7))
    assert list(quick.logs(made)) == [("a", "one"), ("a", "two")]
    assert list(quick.logs(made, follow=True)) == [("a", "one"), ("a", "two")]


def test_secrets_are_gone_with_the_run(cluster: FakeSlurm, quick: Transformer) -> None:
    """Who sees that all is over forgets them."""
    made = run(quick, job("a"))
    (made.secrets / "token").write_text("s3cret")
    cluster.jobs(line(7, comment=mark_of(made)))
    quick.status(made)
    assert made.secrets.exists()
    cluster.jobs()
    cluster.answer("scontrol", shown(7))
    quick.clock.sleep(60)  # type: ignore[attr-defined]
    assert quick.status(made).over
    assert not made.secrets.exists()
