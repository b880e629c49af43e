"""What a job declares, as Slurm has it: the fields of the real job, and the nodes that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.errors import BackendError
from milkweed.job import SlurmJob
from slurm.hosts import READY_S
from slurm.lab import Lab

FEATURES = {"n2": "fast", "n3": "fast", "n5": "big"}


@pytest.fixture
def features(lab: Lab) -> Iterator[None]:
    """Nodes that differ, as their administrator says."""
    for node, feature in FEATURES.items():
        set_features(lab, node, feature)
    yield
    for node in FEATURES:
        set_features(lab, node, "")


def set_features(lab: Lab, node: str, words: str) -> None:
    both = (f"availablefeatures={words}", f"activefeatures={words}")
    lab.run("scontrol", "update", f"nodename={node}", *both)


def show_components(lab: Lab) -> list[dict[str, str]]:
    """The fields of every component of the only job, in Slurm's words."""
    [leader, *_others] = sorted(job.id for job in lab.jobs())
    shown = lab.run("scontrol", "show", "job", "-o", str(leader)).stdout.splitlines()
    words = [[word.partition("=") for word in line.split()] for line in shown if line]
    return [{key: value for key, _, value in each} for each in words]


def declare(trainers: int = 1) -> SlurmJob:
    job = SlurmJob(
        {"trainers": trainers, "loaders": 1},
        partition="debug",
        account="astronomy",
        qos="high",
        constraint="fast",
        time_limit="30",
        mesh_options={"loaders": {"partition": "spare", "constraint": "big"}},
    )
    job.add_mesh("judges", 1)
    return job


@pytest.mark.usefixtures("features", "folder")
def test_what_is_declared_is_what_slurm_has(lab: Lab) -> None:
    """Account, partition and constraint of each mesh, and one that was added; it can run this and nothing else.

    A cluster without accounting takes a QOS and forgets it.
    """
    job = declare()
    job.apply()
    assert job.wait(READY_S).ready
    first, second = show_components(lab)
    fields = ("Account", "Partition", "Features", "NumNodes", "NodeList", "TimeLimit")
    assert [first[name] for name in fields] == [
        *("astronomy", "debug", "fast", "2", "n[2-3]", "00:30:00"),
    ]
    assert [second[name] for name in fields] == [
        *("astronomy", "spare", "big", "1", "n5", "00:30:00"),
    ]
    assert job.can_run(declare())
    assert not job.can_run(declare(trainers=2))
    lab.run("scancel", first["JobId"])
    job.wait(READY_S, until="ended")
    assert not job.can_run(declare())
    job.kill()


@pytest.mark.usefixtures("features", "folder")
def test_a_constraint_that_no_node_meets(lab: Lab) -> None:
    """Slurm's own refusal is the error, and nothing is left of it."""
    job = SlurmJob({"w": 1}, constraint="fast&big")
    with pytest.raises(BackendError) as caught:
        job.apply()
    assert "Requested node configuration is not available" in caught.value.seen
    assert not Path(".milkweed").exists()
