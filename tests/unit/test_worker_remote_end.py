"""The end of a scheduler's job with the lease of its hosts: the scheduler is told, as often as it takes."""

from __future__ import annotations

import pytest

from milkweed.worker import remote
from unit.slurm_fake import FakeSlurm


def test_the_end_of_the_lease_ends_the_job(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler's own command, with the job's number from the machine's own variables."""
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    remote.end_job(["scancel", "$SLURM_JOB_ID"])
    assert slurm.calls == [["scancel", "42"]]


def test_a_scheduler_that_is_silent_is_told_again(slurm: FakeSlurm) -> None:
    """A machine that is cut off may keep the job alive when nobody else is left to end it."""
    slurm.be_away()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            slurm.answer("scancel")

    remote.end_job(["scancel", "42"], sleep=sleep)
    assert slurm.calls == [["scancel", "42"]] * 10
    assert pauses[:2] == [1.0, 1.5]
    assert pauses[-1] == 10.0


def test_a_scheduler_that_says_no_is_told_once(slurm: FakeSlurm) -> None:
    """A job that has ended already, or is not ours to end, is not asked about again."""
    slurm.answer(
        "scancel", err="scancel: error: Kill job error: Invalid job id specified\n", code=1
    )
    remote.end_job(["scancel", "42"], sleep=pytest.fail)
    assert len(slurm.calls) == 1


@pytest.mark.parametrize("command", [[], ["/no/such/program"]])
def test_an_end_that_cannot_be_told_is_no_error(command: list[str]) -> None:
    """The keeper has done its part; where there is no such command, nothing is run."""
    remote.end_job(command)
