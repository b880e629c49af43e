"""The documented example of a Slurm job, with only its imports and its partition changed."""

from __future__ import annotations

import subprocess
import sys

from programs import Client
from slurm.lab import Lab

EXAMPLE = """
from milkweed.job import SlurmJob

# Create a job specification
job = SlurmJob(
    meshes={"trainers": 4, "dataloaders": 2},
    partition="debug",
    time_limit="01:00:00",
)

# Get the state (applies the job if needed)
state = job.state()

# Access host meshes by name
trainer_hosts = state.trainers
dataloader_hosts = state.dataloaders
"""
AFTER = """
import socket
from milkweed.actor import Actor, endpoint

class Where(Actor):
    @endpoint
    def name(self): return socket.gethostname()

for hosts in (trainer_hosts, dataloader_hosts):
    print(len({name for _, name in hosts.spawn_procs().spawn("where", Where).name.call().get()}))
job.kill()
"""


def test_the_documented_example(client: Client, lab: Lab) -> None:
    """Four trainers and two dataloaders, each on a node of its own."""
    program = client.folder / "example.py"
    program.write_text(EXAMPLE + AFTER)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=client.folder,
        env=client.env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "2"]
    assert not lab.jobs()
