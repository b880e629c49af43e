"""Jobs that live and do not carry milkweed's mark any more: a site, or a person, wrote another comment."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.commands import queue
from milkweed.backends.slurm.text import Mark, render_mark
from milkweed.errors import UnreachableError
from milkweed.job import lifecycle
from milkweed.job.observing import observe
from milkweed.state import StateFile
from milkweed.status import Liveness
from unit.slurm_fake import APPLY_ID, EMPTY_QUEUE, FakeSlurm, line, shown
from unit.slurm_jobs import OTHER_ID, create, handle_of


@pytest.fixture
def submitted(cluster: FakeSlurm, folder: Path, home: Path) -> FakeSlurm:
    """Job 7 was submitted here, and its comment is another now."""
    cluster.answer("sbatch", "7\n")
    create()
    cluster.jobs(line(7, nodes="n[1-2]", comment="project X"))
    queue.wake()
    return cluster


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED"])
def test_it_is_still_what_it_is(submitted: FakeSlurm, state: str) -> None:
    """What was noted at the submission is as good as the mark."""
    submitted.jobs(line(7, state=state, comment="project X"))
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert status.liveness is (Liveness.PENDING if state == "PENDING" else Liveness.RUNNING)


def test_it_is_found_without_its_handle(submitted: FakeSlurm) -> None:
    """A crash before the answer was recorded loses nothing either."""
    assert SlurmBackend().find(APPLY_ID) == handle_of(7)


def test_it_has_its_hosts(submitted: FakeSlurm) -> None:
    """They are where Slurm says."""
    places = SlurmBackend().places(handle_of())
    assert [(place.host, place.node) for place in places] == [("w/0", "n1"), ("w/1", "n2")]


def test_components_are_told_apart(submitted: FakeSlurm) -> None:
    """Each component of a heterogeneous job is known by its offset."""
    rows = [line(7 + i, number=f"7+{i}", comment="project X") for i in range(2)]
    submitted.jobs(*rows)
    found = SlurmBackend()._rows(handle_of(), 0.0)
    assert [row.comment.split(":")[4] for row in found] == ["0", "1"]


def test_it_is_ended_with_its_job(submitted: FakeSlurm) -> None:
    """Nothing is left running because a comment was overwritten."""
    submitted.then("scancel", EMPTY_QUEUE)
    SlurmBackend().cancel(handle_of())
    assert submitted.called("scancel") == [["7"]]


def test_no_second_job_is_made(submitted: FakeSlurm) -> None:
    """The next client finds the first one."""
    record = StateFile("job.json").load()
    _record, observed = observe(SlurmBackend(), record, None)
    assert observed.status is not None
    assert observed.status.liveness is Liveness.RUNNING


def test_a_number_alone_is_not_enough(submitted: FakeSlurm) -> None:
    """A cluster that counts anew gives numbers anew: nothing is done to a job that may be another's work."""
    submitted.jobs(line(7, comment="project X").replace("|demo|end", "|other|end"))
    backend = SlurmBackend()
    status = backend.glance(handle_of(), fresh=True)
    assert status.liveness is Liveness.UNKNOWN
    assert "its comment was milkweed's mark, and is 'project X' now" in status.reason
    with pytest.raises(UnreachableError, match="not known whose Slurm job 7") as caught:
        backend.cancel(handle_of())
    assert "scancel 7" in caught.value.hint
    assert submitted.called("scancel") == []


def test_one_of_several_that_is_not_known_is_not_forgotten(submitted: FakeSlurm) -> None:
    """Added hosts whose comment and name were changed: the others end, and it is said that one may be left."""
    (registry.folder_of(APPLY_ID) / "mark-9").write_text(render_mark(Mark(APPLY_ID, 0, 1, "demo")))
    strange = line(9, component=1, comment="billing:x").replace("|demo|end", "|renamed|end")
    submitted.jobs(line(7), strange)
    (submitted.home / "after").write_text(strange)
    submitted.then("scancel", 'cp "$home/after" "$home/squeue.out"')
    record = StateFile("job.json").load()
    assert record is not None
    with pytest.raises(UnreachableError, match="not known whose Slurm job 9") as caught:
        lifecycle.end(SlurmBackend(), record, StateFile("job.json"))
    assert "scancel 9" in caught.value.hint
    assert submitted.called("scancel") == [["7"]]
    assert StateFile("job.json").load() == record
    submitted.jobs()
    lifecycle.end(SlurmBackend(), record, StateFile("job.json"))
    assert StateFile("job.json").load() is None


def test_another_allocations_job_is_not_ours(submitted: FakeSlurm) -> None:
    """A number that was given anew to another job of milkweed's says that ours is gone."""
    submitted.jobs(line(7, apply_id=OTHER_ID))
    submitted.answer("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    assert SlurmBackend().glance(handle_of(), fresh=True).liveness is Liveness.ENDED


def test_what_has_ended_needs_no_mark(submitted: FakeSlurm) -> None:
    """Its end is told like any."""
    submitted.jobs(line(7, state="TIMEOUT", comment="project X"))
    submitted.answer("scontrol", shown(7, state="TIMEOUT"))
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert (status.liveness, "TIMEOUT" in status.reason) == (Liveness.ENDED, True)


def test_without_notes_nothing_is_known(submitted: FakeSlurm) -> None:
    """On a machine that has not the job's folder the number is all there is."""
    (registry.folder_of(APPLY_ID) / "mark-7").unlink()
    assert SlurmBackend().poll(handle_of()).liveness is Liveness.UNKNOWN


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED", "COMPLETING"])
def test_an_end_that_slurm_takes_back_is_none(submitted: FakeSlurm, state: str) -> None:
    """Between two looks a job may go back into the queue."""
    submitted.jobs(line(7, state="FAILED"))
    submitted.answer("scontrol", shown(7, state=state))
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert (status.liveness, f"is {state}" in status.reason) == (Liveness.UNKNOWN, True)


def test_a_follow_up_is_no_sign_of_life_of_what_it_follows(submitted: FakeSlurm) -> None:
    """A generation that Slurm has forgotten is over, though the next one lives."""
    mark = render_mark(Mark(APPLY_ID, 1, 0, "demo"))
    (registry.folder_of(APPLY_ID) / "mark-12").write_text(mark)
    submitted.jobs(line(12, generation=1))
    submitted.answer("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    status = SlurmBackend().glance(handle_of(7, 12), fresh=True)
    assert status.liveness is Liveness.ENDED
    assert "no trace of job 7 any more" in status.reason


def test_a_number_that_somebody_else_has_now_is_not_ours(submitted: FakeSlurm) -> None:
    """A job of another user is not in this user's queue: ours is over, and is not told in the other's words."""
    submitted.jobs()
    submitted.answer("scontrol", shown(7, state="RUNNING"))
    submitted.answer("sacct", err="Slurm accounting storage is disabled\n", code=1)
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert status.liveness is Liveness.ENDED
    assert "no trace of job 7 any more" in status.reason


@pytest.mark.parametrize(
    ("name", "comment", "own"),
    [
        ("demo", render_mark(Mark(APPLY_ID, 0, 0, "demo")), True),
        ("demo", "", True),
        ("renamed", render_mark(Mark(APPLY_ID, 0, 0, "demo")), True),
        ("demo", render_mark(Mark(OTHER_ID, 0, 0, "demo")), False),
        ("other", "", False),
    ],
)
def test_the_end_of_a_job_that_has_our_number_is_not_ours(
    submitted: FakeSlurm, name: str, comment: str, own: bool
) -> None:
    """A cluster that lost its state counts anew: the exit code of somebody's job is not told as ours."""
    submitted.jobs()
    said = shown(code="3:0", state="FAILED").replace("JobName=demo", f"JobName={name}")
    submitted.answer("scontrol", said.replace(" WorkDir=/", f" WorkDir=/ Comment={comment}"))
    submitted.answer("sacct", err="Slurm accounting storage is disabled\n", code=1)
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert (status.liveness, status.exit_code) == (Liveness.ENDED, 3 if own else None)
    assert ("Slurm has no trace of job 7 any more" in status.reason) is not own
