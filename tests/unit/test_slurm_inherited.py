"""Variables of sbatch: they fill in what nobody said, and change nothing that was said."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.inherited import drop_overruled
from milkweed.backends.slurm.shape import Shape
from milkweed.errors import SpecError
from milkweed.spec import JobSpec, MeshSpec, Resources
from unit.slurm_fake import FakeSlurm, line
from unit.slurm_jobs import create, left_behind, make_spec

GPUS = {
    "SBATCH_GPUS": "8",
    "SBATCH_GPUS_PER_NODE": "4",
    "SBATCH_GPUS_PER_SOCKET": "2",
    "SBATCH_GPUS_PER_TASK": "1",
    "SBATCH_GRES": "gpu:h100:4",
    "SBATCH_TRES_PER_TASK": "gres/gpu=1",
}
OTHERS = {"SBATCH_ACCOUNT": "physics", "SBATCH_RESERVATION": "mine", "HOME": "/home/ann"}


@pytest.mark.parametrize("gpus", [0, 2])
def test_gpus_that_were_said_are_those_that_are_asked_for(gpus: int) -> None:
    """None, too, is a number; sbatch would take the others for it, add them, or refuse both together."""
    shapes = [Shape(), Shape(gpus=gpus)]
    assert drop_overruled({**GPUS, **OTHERS}, shapes) == OTHERS


def test_gpus_that_nobody_said_may_come_from_variables() -> None:
    """As every other default for sbatch."""
    assert drop_overruled({**GPUS, **OTHERS}, [Shape(), Shape()]) == {**GPUS, **OTHERS}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("nvme:1,gpu:4", "nvme:1"),
        ("gres/gpu:4,cpu=2,gres/gpu:a100:1", "cpu=2"),
        ("gres:gpu:4,mps:100", "mps:100"),
        ("gpu", None),
        ("gpumem:1", "gpumem:1"),
    ],
)
@pytest.mark.parametrize("name", ["SBATCH_GRES", "SBATCH_TRES_PER_TASK"])
def test_what_else_is_in_a_list_stays(name: str, given: str, left: str | None) -> None:
    """Whoever said how many GPUs said nothing about the rest."""
    assert drop_overruled({name: given}, [Shape(gpus=1)]).get(name) == left


def test_every_job_says_whether_it_shares_nodes_and_survives() -> None:
    """Both have a value in every declaration, and their absence is a word for sbatch, too."""
    given = {"SBATCH_EXCLUSIVE": "user", "SBATCH_NO_KILL": "set", **OTHERS}
    assert drop_overruled(given, [Shape()]) == OTHERS


@pytest.mark.parametrize(("cpus", "kept"), [(None, True), (2, False)])
def test_cpus_that_were_said_are_not_counted_by_gpus(cpus: int | None, kept: bool) -> None:
    """Slurm 22.05 refuses one beside the other."""
    left = drop_overruled({"SBATCH_CPUS_PER_GPU": "4"}, [Shape(cpus_per_task=cpus)])
    assert ("SBATCH_CPUS_PER_GPU" in left) is kept


def test_a_submission_sees_only_what_it_may(
    cluster: FakeSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sbatch itself sees, for hosts without GPUs on nodes that others use, too."""
    for name, value in {**GPUS, "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_ACCOUNT": "x"}.items():
        monkeypatch.setenv(name, value)
    create(make_spec(gpus_per_node=0, exclusive=False))
    seen = cluster.environment("sbatch")
    assert {name for name in seen if name.startswith("SBATCH_")} == {"SBATCH_ACCOUNT"}


def test_hosts_that_are_added_are_asked_for_as_those_they_join(
    cluster: FakeSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one mesh says of its GPUs and memory counts for the whole job, also where another one grows alone."""
    for name, value in {**GPUS, "SBATCH_CPUS_PER_GPU": "4"}.items():
        monkeypatch.setenv(name, value)
    said = MeshSpec(name="g", hosts=1, resources=Resources(cpus=2, gpus=2, memory_bytes=2**30))
    spec = JobSpec(name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=1), said))
    cluster.nodes("n1", "n2", "n3", gres="gpu:2")
    handle = create(spec).handle or {}
    first = cluster.environment("sbatch")
    cluster.jobs(line(7, number="7", state="PENDING"), line(8, component=1, state="PENDING"))
    commands.queue.wake()
    cluster.answer("sbatch", "9\n")
    SlurmBackend().resize(handle, spec.resized({"w": 2}))
    assert {"--nodes=1", "--mem=0M", "--exclusive"} <= set(cluster.submitted[-1])
    assert [name for name in cluster.environment("sbatch") if name.startswith("SBATCH_")] == []
    assert [name for name in first if name.startswith("SBATCH_")] == []


def test_another_cluster_is_refused(
    cluster: FakeSlurm, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is not looked at, so the job would never be found again; nothing was submitted."""
    monkeypatch.setenv("SBATCH_CLUSTERS", "b")
    with pytest.raises(SpecError, match="SBATCH_CLUSTERS is 'b'") as caught:
        create()
    assert "unset SBATCH_CLUSTERS" in caught.value.hint
    assert (cluster.submitted, left_behind(home)) == ([], [])


def test_this_cluster_may_be_named(cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jobs go anyway."""
    monkeypatch.setenv("SBATCH_CLUSTERS", "lab")
    SlurmBackend().validate(make_spec())
