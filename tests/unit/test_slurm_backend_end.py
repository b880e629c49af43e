"""Ending what Slurm has of an allocation: all of it, once, and until Slurm says that it is gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.programs import within
from milkweed.backends.slurm import ending
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import DeadlineError, UnreachableError
from milkweed.job import lifecycle
from milkweed.state import StateFile
from unit.slurm_fake import APPLY_ID, EMPTY_QUEUE, FakeSlurm, line
from unit.slurm_jobs import OTHER_ID, create, handle_of, left_behind


def test_ending_waits_until_slurm_says_so(cluster: FakeSlurm) -> None:
    """One scancel for each job, by its leader, then wait until all are gone."""
    cluster.jobs(line(7, number="7+0"), line(8, number="7+1", component=1), line(9, component=2))
    (cluster.home / "after").write_text(line(7, state="CANCELLED"))
    cluster.then("scancel", 'cp "$home/after" "$home/squeue.out"')
    SlurmBackend().cancel(handle_of())
    assert cluster.called("scancel") == [["7", "9"]]


def test_ending_waits_through_the_completing(cluster: FakeSlurm) -> None:
    """While processes are being ended the job still has its nodes; it is not cancelled twice."""
    cluster.jobs(line(7))
    (cluster.home / "1").write_text(line(7, state="COMPLETING"))
    (cluster.home / "2").write_text(line(7, state="CANCELLED"))
    cluster.then("scancel", 'cp "$home/1" "$home/squeue.out"')
    turn = '[ -f "$home/turn" ] && cp "$home/2" "$home/squeue.out"; [ -s "$home/squeue.out" ] && '
    cluster.then("squeue", turn + 'grep -q COMPLETING "$home/squeue.out" && touch "$home/turn"; :')
    SlurmBackend().cancel(handle_of())
    assert cluster.called("scancel") == [["7"]]
    assert len(cluster.called("squeue")) >= 3


def test_what_has_ended_is_not_cancelled(cluster: FakeSlurm) -> None:
    """Ended already, or gone, is fine."""
    cluster.jobs(line(7, state="TIMEOUT"), line(43, apply_id=OTHER_ID))
    SlurmBackend().cancel(handle_of())
    cluster.jobs()
    SlurmBackend().cancel(handle_of())
    assert cluster.called("scancel") == []


def test_every_generation_is_ended(cluster: FakeSlurm) -> None:
    """A follow-up that nobody has gone over to yet ends with the rest."""
    cluster.jobs(line(7), line(12, generation=1, state="PENDING"))
    cluster.then("scancel", EMPTY_QUEUE)
    SlurmBackend().cancel(handle_of())
    assert cluster.called("scancel") == [["7", "12"]]


def test_an_end_that_does_not_come_has_a_deadline(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that hangs keeps a job completing: the error says what Slurm says, and that one can ask again."""
    monkeypatch.setattr(ending, "CANCEL_TIMEOUT_S", -1.0)
    cluster.jobs(line(7, state="COMPLETING"))
    with pytest.raises(DeadlineError, match="not ended it yet") as caught:
        SlurmBackend().cancel(handle_of())
    assert "COMPLETING" in caught.value.seen
    assert "repeated" in caught.value.hint


def test_an_end_is_waited_for_no_longer_than_there_is_time(cluster: FakeSlurm) -> None:
    """The end of a program has seconds: it is asked for at least, and nothing is forgotten."""
    cluster.jobs(line(7))
    with within(time.monotonic()), pytest.raises(DeadlineError, match="not ended it yet"):
        SlurmBackend(sleep=lambda _s: pytest.fail("it goes on waiting")).cancel(handle_of())
    assert cluster.called("scancel") == [["7"]]


def test_ending_while_nobody_answers_changes_nothing(
    cluster: FakeSlurm, folder: Path, home: Path
) -> None:
    """The record stays, so that the job can be ended later."""
    record = create()
    cluster.be_away()
    with pytest.raises(UnreachableError):
        lifecycle.end(SlurmBackend(), record, StateFile("job.json"))
    assert StateFile("job.json").load() == record
    assert registry.folder_of(APPLY_ID).is_dir()


def test_an_end_forgets_everything(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """Record, keys and logs go with the allocation."""
    record = create()
    cluster.jobs(line(7))
    cluster.then("scancel", EMPTY_QUEUE)
    lifecycle.end(SlurmBackend(), record, StateFile("job.json"))
    assert left_behind(home) == []
    assert list(folder.iterdir()) == []
