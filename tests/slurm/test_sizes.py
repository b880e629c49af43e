"""Changes of sizes that a real Slurm refuses, and what becomes of hosts that were added in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.errors import BackendError
from milkweed.job import SlurmJob
from milkweed.spec import Resources
from programs import Client
from slurm.hosts import READY_S, make_hosts
from slurm.lab import Lab


def nodes_of(lab: Lab) -> dict[int, int]:
    """How many nodes each job has."""
    return {job.id: len(job.nodes) for job in lab.jobs() if job.state == "RUNNING"}


def test_one_mesh_of_a_heterogeneous_job_gets_smaller(home: Path, folder: Path, lab: Lab) -> None:
    """The other components are not touched; of the first one Slurm takes nothing, and its hosts go on."""
    job = make_hosts(meshes={"a": 2, "b": 2}, resources={"b": Resources(cpus=2)})
    first, second = sorted(nodes_of(lab))
    with pytest.raises(BackendError, match="first component of a heterogeneous job"):
        job.resize("a", 1)
    assert job.spec.sizes == {"a": 2, "b": 2}
    assert nodes_of(lab) == {first: 2, second: 2}
    assert job.status().ready
    job.resize("b", 1)
    assert nodes_of(lab) == {first: 2, second: 1}
    assert [host.host for host in job.wait(READY_S).hosts] == ["a/0", "a/1", "b/0"]
    job.kill()
    assert not lab.jobs()


def test_a_job_in_the_queue_gets_smaller(home: Path, folder: Path, lab: Lab) -> None:
    """Slurm is told, as often as it is asked; the host that is left is the first."""
    filler = lab.run(
        "sbatch",
        "--parsable",
        f"-N{len(lab.nodes)}",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 300",
    )
    job = SlurmJob(meshes={"w": 3}, ntasks_per_node=2, cpus_per_task=2)
    job.apply()
    job.resize("w", 2)
    job.resize("w", 1)
    lab.run("scancel", filler.stdout.strip())
    status = job.wait(READY_S)
    assert [host.host for host in status.hosts] == ["w/0"]
    assert list(nodes_of(lab).values()) == [1]
    job.kill()


def test_growth_that_slurm_refuses_changes_nothing(home: Path, folder: Path, lab: Lab) -> None:
    """The job is declared as it was, and ready as it was."""
    job = make_hosts(meshes={"w": 1})
    lab.run("scontrol", "update", "partitionname=debug", "state=drain")
    with pytest.raises(BackendError, match="Slurm refused"):
        job.resize("w", 2)
    assert job.spec.sizes == {"w": 1}
    assert [host.host for host in job.wait(READY_S).hosts] == ["w/0"]
    job.kill()


def test_a_wait_for_added_hosts_ends_when_somebody_cancels_them(client: Client, lab: Lab) -> None:
    """The error has Slurm's word for it; the hosts that are there stay."""
    out = client.run("""
        import subprocess, threading
        from milkweed.errors import HostFailedError
        def slurm(*words):
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout
        job = SlurmJob(meshes={"w": 1})
        job.state()
        slurm("scontrol", "update", "partitionname=debug", "state=down")
        job.resize("w", 2)
        [added] = slurm("squeue", "-h", "-t", "PENDING", "-o", "%A").split()
        threading.Timer(3, slurm, ["scancel", added]).start()
        try:
            job.state()
        except HostFailedError as error:
            print("told", error)
        print("hosts", [(s.host, s.state.value) for s in job.status().hosts])
        slurm("scontrol", "update", "partitionname=debug", "state=up")
        job.kill()
    """)
    assert "told host w/1 did not start" in out
    assert "CANCELLED" in out
    assert "('w/0', 'ready')" in out
