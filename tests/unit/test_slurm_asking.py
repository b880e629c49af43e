"""Asking sbatch: what nobody answered may still come, and is looked for twice before it is given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.noted import SETTLE_S
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import BackendError, UnreachableError
from milkweed.job import lifecycle
from milkweed.state import Record, StateFile
from programs import wait_until
from unit.slurm_fake import APPLY_ID, FakeSlurm, line
from unit.slurm_jobs import create, handle_of

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
FOREVER = "echo $$ >$home/pid; exec sleep 600\n"


class Late:
    """Time in which jobs that were asked for in vain come into the queue, until they are cancelled."""

    def __init__(self, cluster: FakeSlurm, *rows: str) -> None:
        self.cluster = cluster
        self.rows = rows
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.slept.append(seconds)
        self.cluster.jobs(*(() if self.cluster.called("scancel") else self.rows))


@pytest.fixture
def unanswered(cluster: FakeSlurm, folder: Path) -> Record:
    """An intent: sbatch was started, and never heard of the controller."""
    cluster.answer("sbatch", err=TIMED_OUT, code=1)
    with pytest.raises(UnreachableError):
        create()
    record = StateFile("job.json").load()
    assert record is not None
    return record


def notes() -> list[Path]:
    """What tells of submissions without an answer."""
    return list(registry.folder_of(APPLY_ID).glob("asked*"))


def test_what_comes_late_is_found(cluster: FakeSlurm, unanswered: Record) -> None:
    """A controller that was busy takes the job after it was asked for the queue."""
    late = Late(cluster, line(41, state="PENDING"))
    assert SlurmBackend(late.sleep).find(APPLY_ID) == handle_of(41)
    assert late.slept == [SETTLE_S]


def test_what_comes_late_is_ended(cluster: FakeSlurm, unanswered: Record) -> None:
    """A job that is killed before anybody knows whether Slurm has it is cancelled when it comes."""
    late = Late(cluster, line(41, state="PENDING"))
    lifecycle.end(SlurmBackend(late.sleep), unanswered, StateFile("job.json"))
    assert cluster.called("scancel") == [["41"]]
    assert list(registry.load_entries()) == []


def test_what_does_not_come_is_given_up(cluster: FakeSlurm, unanswered: Record) -> None:
    """Twice not in the queue of a controller that answers: Slurm has not got it, and will not."""
    late = Late(cluster)
    assert SlurmBackend(late.sleep).find(APPLY_ID) is None
    assert late.slept == [SETTLE_S]
    assert len(cluster.called("squeue")) == 2


def test_silence_at_the_second_look_is_not_absence(cluster: FakeSlurm, unanswered: Record) -> None:
    """The controller answers once and is gone again: nothing is known."""
    with pytest.raises(UnreachableError):
        SlurmBackend(lambda _seconds: cluster.be_away()).find(APPLY_ID)


def test_growth_that_comes_late_is_ended_too(cluster: FakeSlurm, unanswered: Record) -> None:
    """The last live job is gone, and one that was asked for in vain comes after it."""
    late = Late(cluster, line(41, state="CANCELLED"), line(42, component=1))
    cluster.jobs(line(41, state="CANCELLED"))
    SlurmBackend(late.sleep).cancel(handle_of(41))
    assert cluster.called("scancel") == [["42"]]


def test_an_answer_leaves_no_doubt(cluster: FakeSlurm, folder: Path) -> None:
    """After an answer the first look is enough."""
    cluster.answer("sbatch", "41\n")
    create()
    assert notes() == []
    assert SlurmBackend(pytest.fail).find(APPLY_ID) is None


def test_a_refusal_leaves_no_doubt(cluster: FakeSlurm, folder: Path) -> None:
    """What Slurm refused will not come."""
    cluster.answer("sbatch", err="sbatch: error: Invalid qos\n", code=1)
    with pytest.raises(BackendError, match="Slurm refused"):
        create()
    assert notes() == []


def test_a_doubt_outlives_another_answer(cluster: FakeSlurm, unanswered: Record) -> None:
    """That a later submission was answered says nothing of the earlier one."""
    cluster.answer("sbatch", "42\n")
    create()
    assert len(notes()) == 1


def test_sbatch_ends_with_its_client(cluster: FakeSlurm, folder: Path) -> None:
    """A client that is killed leaves no sbatch that would submit for nobody."""
    cluster.then("sbatch", FOREVER)
    code = "from milkweed.backends.slurm import commands; commands.run(['sbatch'], tied=True)"
    client = subprocess.Popen([sys.executable, "-c", code])
    pid = cluster.home / "pid"
    wait_until(lambda: pid.exists() and pid.read_text() != "")
    sbatch = int(pid.read_text())
    client.send_signal(signal.SIGKILL)
    client.wait()
    wait_until(lambda: not is_alive(sbatch))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
