"""Submissions that nobody answers: what Slurm takes later is neither lost nor made twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from programs import Client, finish, read_number, wait_until
from slurm.lab import Lab

APPLY = """
    import subprocess
    job = SlurmJob(meshes={"w": 1}, exclusive=False, job_start_timeout=60)
    job.state(%s)
    print("allocation", job.apply_id, flush=True)
    queue = subprocess.run(["squeue", "-h", "-o", "%%k"], capture_output=True, check=True, text=True)
    print("queue", queue.stdout.split(), flush=True)
    job.kill()
"""
WAITS = """#!/bin/sh
[ "$1" != --version ] || exec "{real}" "$@"
touch "{here}/{name}.called"
while [ -e "{here}/{name}.hold" ]; do sleep 0.02; done
exec "{real}" "$@"
"""


class Held:
    """Commands of Slurm that wait when they are told to, and then do what they always do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sbatch", "squeue"):
            program = folder / name
            program.write_text(WAITS.format(here=folder, name=name, real=shutil.which(name)))
            program.chmod(0o755)

    @property
    def path(self) -> str:
        """For PATH."""
        return f"{self.folder}:{os.environ['PATH']}"

    def hold(self, name: str) -> None:
        """From now on the command waits."""
        (self.folder / f"{name}.hold").touch()
        (self.folder / f"{name}.called").unlink(missing_ok=True)

    def go(self, name: str) -> None:
        """It waits no longer."""
        (self.folder / f"{name}.hold").unlink()

    def wait(self, name: str, timeout_s: float = 60.0) -> None:
        """Until the command is called."""
        wait_until((self.folder / f"{name}.called").exists, timeout_s)


@pytest.fixture
def held(tmp_path: Path) -> Held:
    """Commands that can be held back."""
    folder = tmp_path / "held"
    folder.mkdir()
    return Held(folder)


@pytest.mark.parametrize(
    "path", ["'.milkweed/job.json'", pytest.param("None", marks=pytest.mark.once)]
)
def test_a_request_that_is_read_late(client: Client, lab: Lab, held: Held, path: str) -> None:
    """Slurm takes the job after sbatch has given up, and after it was asked for the queue: it is the one used."""
    for name in ("sbatch", "squeue"):
        held.hold(name)
    held.go("squeue")
    program = client.start(APPLY % path, PATH=held.path)
    held.wait("sbatch")
    lab.freeze_controller()
    held.hold("squeue")
    held.go("sbatch")
    held.wait("squeue")  # sbatch has given up
    held.go("squeue")
    lab.wait_program("squeue")
    lab.thaw_controller()
    out, err = finish(program)
    assert program.returncode == 0, err
    [apply_id] = re.findall(r"allocation (\S+)", out)
    [queue] = re.findall(r"queue (.+)", out)
    assert queue.count("milkweed") == 1
    assert apply_id in queue
    lab.wait_jobs_gone()


def test_a_client_that_is_killed_takes_sbatch_with_it(client: Client, lab: Lab, held: Held) -> None:
    """A submission that waits for the controller does not outlive the client that wanted it."""
    held.hold("sbatch")
    program = client.start(APPLY % "'.milkweed/job.json'", PATH=held.path)
    held.wait("sbatch")
    lab.stop_controller()
    held.go("sbatch")
    lab.wait_program("sbatch")
    program.send_signal(signal.SIGKILL)
    finish(program)
    wait_until(lambda: "sbatch" not in lab.run("ps", "-eo", "comm=").stdout.split(), 60)
    lab.start_controller()
    client.kill()
    assert lab.jobs() == []


@pytest.mark.once
def test_hosts_end_with_their_owner_though_nobody_hears(client: Client, lab: Lab) -> None:
    """The controller is away and a node is cut off when the owner ends: Slurm is told when it is back."""
    program = client.start("""
        job = SlurmJob(meshes={"w": 2}, exclusive=False)
        job.state(None)
        print("ready 1", flush=True)
        while not os.path.exists("over"): time.sleep(0.05)
        os._exit(0)
    """)
    read_number(program, "ready")
    [job] = lab.jobs()
    lab.stop_controller()
    lab.cut_node(int(job.nodes[0].removeprefix("n")))
    (client.folder / "over").touch()
    finish(program)
    other = int(job.nodes[1].removeprefix("n"))
    told: set[str] = set()

    def is_told_again() -> bool:
        told.update(
            re.findall(r"(\d+) scancel", lab.on_node(other, "ps", "-eo", "pid=,comm=").stdout)
        )
        return len(told) > 1

    wait_until(is_told_again, 60)
    lab.start_controller()
    lab.wait_jobs_gone(60)
