"""torchrun programs whose hosts are still in Slurm's queue."""

from __future__ import annotations

import time

import pytest

from programs import Client, finish, wait_until
from slurm.lab import Lab


@pytest.mark.once
def test_a_program_that_is_served_long_before_its_hosts_come(client: Client, lab: Lab) -> None:
    """serve() returns while the job is pending, run_spmd() waits and says why, and runs when Slurm starts it."""
    (client.folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    program = client.start("""
        from milkweed.job.spmd import serve
        sys.stderr = open("said", "w", buffering=1)
        job = serve(["torchrun", "--nproc-per-node=2", "train.py"], scheduler="slurm",
                    scheduler_cfg={"partition": "down"})
        print("status", job.status().describe(), flush=True)
        job.run_spmd()
        job.kill()
    """)
    said = client.folder / "said"
    wait_until(lambda: said.exists() and "PartitionDown" in said.read_text(), 60)
    time.sleep(12)  # longer than Slurm takes to forget or change anything about a job it holds
    assert [job.state for job in lab.jobs()] == ["PENDING"]
    assert program.poll() is None
    lab.run("scontrol", "update", "PartitionName=down", "State=UP")
    try:
        out, err = finish(program, 120)
    finally:
        lab.run("scontrol", "update", "PartitionName=down", "State=DOWN")
    assert program.returncode == 0, err + said.read_text()
    status, *lines = out.splitlines()
    assert "pending" in status
    assert sorted(lines) == ["[default0]:rank 0", "[default1]:rank 1"]
    assert not lab.jobs()
