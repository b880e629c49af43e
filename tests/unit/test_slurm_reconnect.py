"""A cluster that changes while a job runs: what runs needs nothing of it, what is asked for anew does."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm import commands
from milkweed.errors import SpecError
from milkweed.job import SlurmJob
from milkweed.plan import Action
from unit.slurm_fake import FakeSlurm, line


@pytest.fixture
def running(cluster: FakeSlurm, folder: Path, home: Path) -> SlurmJob:
    """A job of four hosts that runs in a partition which has two nodes now, for at most ten minutes."""
    job = declare()
    job.apply()
    cluster.jobs(line(7, nodes="n[1-4]", apply_id=str(job.apply_id)))
    cluster.nodes("n1", "n2", address="127.0.0.1", limit="10:00")
    commands._nodes.clear()
    commands.queue.wake()
    return job


def declare(hosts: int = 4) -> SlurmJob:
    return SlurmJob(meshes={"w": hosts}, time_limit="01:00:00")


def test_what_runs_is_used_whatever_the_cluster_has_now(running: SlurmJob) -> None:
    """A partition that shrank, or allows less time, locks nobody out of the hosts it has given."""
    assert running.plan().action is Action.NOTHING
    running.apply()


def test_what_would_be_asked_for_anew_is_compared(running: SlurmJob) -> None:
    """Another job of that shape is refused before anything is done, in a plan too."""
    other = declare()
    for ask in (other.plan, other.apply, other.state):
        with pytest.raises(SpecError, match="a time limit of 01:00:00 is more than the 00:10:00"):
            ask()


def test_more_of_it_is_compared(running: SlurmJob) -> None:
    """More hosts than there are cannot be had."""
    with pytest.raises(SpecError, match="7 hosts"):
        running.resize("w", 7)


def test_what_is_wrong_on_any_cluster_is_refused_in_any_case(running: SlurmJob) -> None:
    """A declaration that says nothing sensible is none, though what runs could be used."""
    with pytest.raises(SpecError, match="slurm_args"):
        SlurmJob(meshes={"w": 4}, slurm_args=["--mail-type=END", "train.sh"]).plan()
