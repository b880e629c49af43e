"""Shapes that a real cluster could never give: refused before anything is submitted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from milkweed.job import SlurmJob
from milkweed.spec import Resources
from programs import Client
from slurm.lab import Lab


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ('{"gpus": 1, "gpu_type": "h100"}', "1 GPUs of type 'h100' on each host, but no node"),
        ('{"disk_bytes": 2**50}', "MB of disk on each host, but no node"),
        ('{"gpus": 9}', "9 GPUs on each host, but no node of partition 'debug' has more than 8"),
    ],
)
def test_what_no_node_has(client: Client, lab: Lab, resources: str, words: str) -> None:
    """A type of GPU, disk, a number: the error names it, and the queue stays empty."""
    out = client.run(f"""
        from milkweed.errors import SpecError
        from milkweed.job.load import SpecJob
        from milkweed.spec import JobSpec, MeshSpec, Resources
        mesh = MeshSpec(name="w", hosts=1, resources=Resources(**{resources}))
        try:
            SpecJob(JobSpec(name="demo", backend="slurm", meshes=(mesh,))).state()
        except SpecError as error:
            print(error)
    """)
    assert words in out
    assert not lab.jobs()


def test_a_word_that_would_be_taken_for_the_script(client: Client, lab: Lab) -> None:
    """It is refused: sbatch would run it in place of what starts the hosts."""
    out = client.run("""
        from milkweed.errors import SpecError
        try:
            SlurmJob(meshes={"w": 1}, slurm_args=["--mail-type=NONE", "train.sh"]).state()
        except SpecError as error:
            print(error)
    """)
    assert "'train.sh' is not an option of sbatch" in out
    assert not lab.jobs()


def test_what_one_mesh_says_holds_for_no_other(home: Path, folder: Path, lab: Lab) -> None:
    """Memory of the trainers is not asked for dataloaders, and no time limit is none, for both."""
    job = SlurmJob(
        meshes={"trainers": 1, "loaders": 1},
        resources={"trainers": Resources(memory_bytes=300 * 2**20)},
        time_limit="UNLIMITED",
    )
    job.apply()
    asked = [
        lab.run("scontrol", "show", "job", "-o", str(each.id)).stdout.splitlines()[0]
        for each in sorted(lab.jobs(), key=lambda each: -each.id)
    ]
    assert [re.search(r"MinMemoryNode=(\S+)", text)[1] for text in asked] == ["0", "300M"]
    assert all("TimeLimit=UNLIMITED" in text for text in asked)
    job.kill()
