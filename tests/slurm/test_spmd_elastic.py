"""Elastic torchrun programs on Slurm whose ranks talk to each other, as those that train do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from programs import Client, finish, wait_until
from ranks import PEERS
from slurm.lab import Lab

FAULTS: dict[str, Callable[[Lab, int], None]] = {
    "killed": Lab.kill_node,
    "silent": Lab.poweroff_node,
}


@pytest.mark.once
@pytest.mark.parametrize("fault", FAULTS)
def test_a_dead_node_ends_no_run_whose_ranks_miss_it(client: Client, lab: Lab, fault: str) -> None:
    """The peers of a dead node's ranks fail at once, and the run goes on with two nodes, without a restart."""
    (client.folder / "train.py").write_text(PEERS)
    program = client.start("""
        job = SlurmJob(meshes={"w": 3})
        job.torchrun(["--nnodes=1:3", "--rdzv-conf=last_call_timeout=1", "train.py"])
    """)
    folder = client.folder
    wait_until(lambda: all((folder / f"up{rank}.3").exists() for rank in range(3)), 90)
    [job] = lab.jobs()
    FAULTS[fault](lab, int(job.nodes[2].removeprefix("n")))
    wait_until(lambda: all((folder / f"up{rank}.2").exists() for rank in range(2)), 120)
    (folder / "stop").touch()
    out, err = finish(program, 60)
    assert program.returncode == 0, err
    assert "host w/2 is lost" in err
    assert "going on with 2 hosts" in err
    assert re.findall(r"world 2 restarts (\d)", out) == ["0", "0"]
    client.run("job_load().kill()")
