"""What says nothing about a job: commands of Slurm that fail, whatever they fail for."""

from __future__ import annotations

import errno
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.credentials import ensure_authority
from milkweed.backends.programs import LEAST_S, _until_s, within
from milkweed.backends.slurm import admission, commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.commands import Queue, run
from milkweed.backends.slurm.places import make_places
from milkweed.errors import BackendError, UnreachableError
from milkweed.job import SlurmJob
from milkweed.status import Liveness
from milkweed.testing import FakeClock
from unit.slurm_fake import APPLY_ID, HEADING, FakeSlurm, line, part, row, save_part_file
from unit.slurm_jobs import create, handle_of, make_spec

READS = [["squeue"], ["sinfo"], ["scontrol", "show", "job", "7"], ["scontrol", "show", "config"]]
TROUBLES = [
    "slurm_load_jobs error: Job ID cache is out of date",
    "squeue: error: Invalid user: 4711",
    "squeue: fatal: Unable to fork: Resource temporarily unavailable",
    "squeue: symbol lookup error: undefined symbol: slurm_conf",
    "",
]


@pytest.mark.parametrize("argv", READS, ids=" ".join)
@pytest.mark.parametrize("words", TROUBLES)
def test_a_read_that_fails_knows_nothing(slurm: FakeSlurm, argv: list[str], words: str) -> None:
    """Whatever a read fails for is no word on the job."""
    (slurm.home / "config").unlink()
    slurm.answer(argv[0], err=words, code=1)
    with pytest.raises(UnreachableError) as caught:
        run(argv)
    assert (words or "exit code 1") in caught.value.seen


def test_only_a_job_that_is_not_there_is_certain(slurm: FakeSlurm) -> None:
    """Slurm's word that it has no such job is a word."""
    slurm.answer("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    with pytest.raises(BackendError) as caught:
        run(["scontrol", "show", "job", "7"])
    assert not isinstance(caught.value, UnreachableError)


@pytest.mark.parametrize("name", ["squeue", "sbatch", "scancel", "scontrol"])
def test_nobody_knows_what_a_command_was_told_that_was_killed(slurm: FakeSlurm, name: str) -> None:
    """Neither a read nor a deed that a signal ended was answered; the signal is named."""
    slurm.then(name, "kill -KILL $$")
    with pytest.raises(UnreachableError) as caught:
        run([name])
    assert caught.value.seen == f"{name}: it was ended by signal 9"


def refuse_to_fork(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_args: Any, **_more: Any) -> None:
        raise OSError(number, "Resource temporarily unavailable")

    monkeypatch.setattr(commands, "run_program", fail)
    monkeypatch.setattr(commands, "start_program", fail)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ESTALE])
def test_a_machine_that_is_short_of_something(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A command that could not even be started says nothing either, and can be tried again."""
    refuse_to_fork(monkeypatch, number)
    with pytest.raises(UnreachableError, match="squeue could not be run") as caught:
        run(["squeue"])
    assert caught.value.seen == "squeue: Resource temporarily unavailable"
    assert SlurmBackend().poll(handle_of()).liveness is Liveness.UNKNOWN


@pytest.mark.parametrize("number", [errno.EACCES, errno.E2BIG, errno.ENOEXEC])
def test_a_command_that_cannot_be_run_at_all(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """What no repetition would mend is an error at once."""
    refuse_to_fork(monkeypatch, number)
    with pytest.raises(BackendError, match="squeue could not be run") as caught:
        run(["squeue"])
    assert not isinstance(caught.value, UnreachableError)


@pytest.mark.parametrize("words", TROUBLES)
def test_a_look_that_fails_is_unknown(cluster: FakeSlurm, words: str) -> None:
    """A job is never over, and no wait for it ends, because squeue failed."""
    cluster.jobs(line(7))
    backend = SlurmBackend()
    assert backend.glance(handle_of(), fresh=True).liveness is Liveness.RUNNING
    cluster.answer("squeue", err=words, code=1)
    commands.queue.wake()
    for status in (backend.poll(handle_of()), backend.glance(handle_of())):
        assert status.liveness is Liveness.UNKNOWN
        assert words in status.reason


def test_a_visit_that_cannot_be_started_is_made_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hosts that wait to be let in go on waiting; who waits for them does too."""
    refuse_to_fork(monkeypatch, errno.EAGAIN)
    ensure_authority(tmp_path, APPLY_ID)
    admission.admit(tmp_path, make_places([row(nodes=("n1",))], {0: part("w/0")}), str)


@pytest.mark.parametrize(("left_s", "limit_s"), [(1000.0, 30.0), (12.0, 12.0), (-5.0, LEAST_S)])
def test_no_command_is_waited_for_beyond_the_deadline(
    monkeypatch: pytest.MonkeyPatch, left_s: float, limit_s: float
) -> None:
    """A frozen controller keeps who has a deadline no longer than that; the last command may still answer."""
    asked: list[float] = []

    def hang(*_args: Any, timeout: float) -> None:
        asked.append(timeout)
        raise subprocess.TimeoutExpired("squeue", timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", hang)
    with within(time.monotonic() + left_s), pytest.raises(UnreachableError) as caught:
        run(["squeue"])
    assert asked == [pytest.approx(limit_s, abs=0.5)]
    assert caught.value.seen == f"squeue: nothing within {asked[0]:.2g} s"
    with pytest.raises(UnreachableError):
        run(["squeue"])
    assert asked[1] == 30.0


def test_all_that_a_program_waits_for_has_one_deadline(cluster: FakeSlurm, folder: Path) -> None:
    """Asking for the hosts and connecting to them together take as long as was said, and not each."""
    job = SlurmJob(meshes={"w": 1}, job_start_timeout=50)
    seen: list[float | None] = []

    def ensure(_file: object) -> bool:
        seen.append(_until_s.get())
        return False

    def connect(deadline_s: float | None, **_more: object) -> None:
        seen.append(deadline_s)

    job._ensure, job._connect = ensure, connect  # type: ignore[method-assign,assignment]
    began_s = time.monotonic()
    job.state()
    assert seen == [pytest.approx(began_s + 50, abs=5)] * 2
    assert seen[0] == seen[1]
    assert _until_s.get() is None


WART = (
    "squeue: error: NodeNames=z1 CPUs=3 match no Sockets, Sockets*CoresPerSocket or "
    "Sockets*CoresPerSocket*ThreadsPerCore. Resetting CPUs.\n"
)


@pytest.mark.parametrize("rows", ["", line(7)])
@pytest.mark.parametrize("above", ["", "CLUSTER: a\n"])
def test_a_complaint_about_settings_is_no_silence(
    slurm: FakeSlurm, clock: FakeClock, rows: str, above: str
) -> None:
    """A site's file of settings may have a line that Slurm corrects at every command: the answer is complete."""
    slurm.answer("squeue", f"{above}{HEADING}{rows}", err=WART)
    assert [each.job_id for each in Queue(clock).rows()] == ([7] if rows else [])


def test_an_answer_that_lacks_a_cluster_is_none(slurm: FakeSlurm, clock: FakeClock) -> None:
    """A federation may call it a success when one of its controllers is away: what that one has is not known."""
    error = "Error reading job information from cluster b: Unable to contact slurm controller"
    slurm.answer("squeue", HEADING + line(7), err=f"squeue: error: {error} (connect failure)\n")
    with pytest.raises(UnreachableError, match="did not answer"):
        Queue(clock).rows()


def test_an_answer_without_a_heading_is_none(slurm: FakeSlurm, clock: FakeClock) -> None:
    """Something in front of squeue may fail and call it a success: that says nothing of any job."""
    slurm.answer("squeue", "")
    with pytest.raises(UnreachableError) as caught:
        Queue(clock).rows()
    assert caught.value.seen == "squeue: it printed nothing"


def test_a_controller_that_falls_silent_between_two_questions(
    cluster: FakeSlurm, folder: Path
) -> None:
    """A job that was added is asked for once more: no answer to that is no answer at all, and no error."""
    record = create(make_spec(2))
    own = registry.folder_of(APPLY_ID)
    save_part_file(own, part("w/2", number="0.1"))
    (own / "mark-9").write_text(f"milkweed:1:{APPLY_ID}:0:1:demo")
    cluster.jobs(line(7, state="PENDING"))
    silent = "echo >&2 'Unable to contact slurm controller'; exit 1"
    cluster.then("squeue", f"[ -f $home/asked ] && {{ {silent}; }}; touch $home/asked")
    commands.queue.wake()
    status = SlurmBackend().poll(record.handle or {})
    assert status.liveness is Liveness.UNKNOWN
    assert "Unable to contact" in status.reason
