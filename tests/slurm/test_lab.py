"""The lab keeps its promises: real jobs, real faults, and a whole cluster after each."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from programs import wait_until
from slurm.lab import Lab, expand

SLURMD_PORT = 6818


def submit(lab: Lab, nodes: int, script: str = "sleep 600", *options: str) -> int:
    """Submit a job and return its id."""
    line = ("sbatch", "--parsable", f"-N{nodes}", "-o", "/dev/null", *options, "--wrap", script)
    return int(lab.run(*line).stdout)


def start(lab: Lab, nodes: int, *options: str) -> int:
    """Submit a job and wait until it runs, on every node of it: Slurm says so before a node has heard of it."""
    number = submit(lab, nodes, "srun sleep 600", *options)
    wait_state(lab, number, "RUNNING")
    [names] = [job.nodes for job in lab.jobs() if job.id == number]
    for name in names:
        wait_until(functools.partial(is_asleep, lab, int(name.removeprefix("n"))), 60)
    return number


def is_asleep(lab: Lab, i: int) -> bool:
    """Whether a job of `start` runs on a node."""
    return bool(lab.on_node(i, "pgrep", "-x", "sleep", check=False).stdout)


def answers(name: str) -> bool:
    """Whether Slurm's daemon of a node takes a connection."""
    try:
        socket.create_connection((name, SLURMD_PORT), timeout=1).close()
    except TimeoutError:
        return False
    return True


def wait_state(lab: Lab, number: int, state: str, timeout_s: float = 60) -> None:
    """Wait until squeue shows a job in a state."""
    deadline_s = time.monotonic() + timeout_s
    while (state_of := {job.id: job.state for job in lab.jobs()}).get(number) != state:
        assert time.monotonic() < deadline_s, state_of
        time.sleep(0.05)


def cancel(lab: Lab, number: int) -> None:
    """Cancel a job and wait until it is gone."""
    lab.run("scancel", str(number))
    lab.wait_jobs_gone()


def test_the_version_is_the_one_asked_for(lab: Lab) -> None:
    """`VER` chooses the Slurm that the tests run on."""
    assert lab.version == {"22": "22.05", "24": "24.11"}[os.environ["VER"]]


def test_a_job_runs_on_every_node(lab: Lab, shared_folder: Path) -> None:
    """A job's tasks run on all nodes at once, and start within seconds."""
    count = len(lab.nodes)
    submit(lab, count, f"srun sh -c 'hostname >{shared_folder}/$(hostname)'")
    lab.wait_jobs_gone()
    assert sorted(path.read_text().strip() for path in shared_folder.iterdir()) == lab.nodes


def test_a_live_job_is_listed(lab: Lab) -> None:
    """`jobs` shows ids, states, names, comments and nodes, whatever is in a name."""
    number = start(lab, 2, "-J", "a | b", "--comment", "x y", "-w", "n[1-2]")
    assert lab.jobs() == [(number, "RUNNING", "a | b", "x y", ("n1", "n2"))]
    cancel(lab, number)


@pytest.mark.once
def test_lists_of_nodes_are_expanded() -> None:
    """Slurm's short form of a list of nodes is read."""
    assert expand("n[1-3,7]") == ("n1", "n2", "n3", "n7")
    assert (expand("n12"), expand("")) == (("n12",), ())


def test_nodes_have_a_tmp_of_their_own(lab: Lab, shared_folder: Path, private_home: Path) -> None:
    """What is below the shared folder is seen everywhere; what is below /tmp only where it was written."""
    private_home.mkdir()
    (shared_folder / "here").touch()
    assert lab.on_node(1, "hostname").stdout == "n1\n"
    assert lab.on_node(1, "test", "-e", str(shared_folder / "here")).returncode == 0
    assert lab.on_node(1, "test", "-e", str(private_home), check=False).returncode == 1


@pytest.mark.once
def test_records_are_shared_unless_asked(
    shared_folder: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """`MILKWEED_HOME` is below the shared folder; `private_home` moves it below /tmp."""
    assert home.is_relative_to(shared_folder)
    assert os.environ["MILKWEED_HOME"] == str(home)
    private = request.getfixturevalue("private_home")
    assert private.is_relative_to("/tmp")  # noqa: S108
    assert os.environ["MILKWEED_HOME"] == str(private)


@pytest.mark.once
@pytest.mark.leaves_jobs
def test_dead_nodes_are_down_and_end_their_job(lab: Lab) -> None:
    """Slurm notices dead nodes after its time limit, and ends their job; a started node is idle again."""
    number = start(lab, 2, "--no-requeue", "-w", "n[3-4]")
    lab.kill_node(1)
    lab.poweroff_node(4)
    lab.wait_node_state(1, "down*")
    lab.wait_node_state(4, "down*")
    assert all(job.state == "COMPLETING" for job in lab.jobs() if job.id == number)
    lab.start_node(1)
    lab.wait_node_state(1, "idle")
    assert lab.node_states()["n4"] == "down*"


@pytest.mark.once
def test_a_cut_node_goes_on(lab: Lab) -> None:
    """A short cut of the cable ends nothing: the job runs on, on its node too."""
    number = start(lab, 1, "-w", "n2")
    lab.cut_node(2)
    assert not answers("n2")
    assert is_asleep(lab, 2)
    lab.mend_node(2)
    wait_until(lambda: answers("n2"), 60)
    assert [job.id for job in lab.jobs()] == [number]
    cancel(lab, number)


@pytest.mark.once
def test_jobs_outlive_the_controller(lab: Lab) -> None:
    """Without a controller every command fails; a started one knows the job."""
    number = start(lab, 2)
    lab.stop_controller()
    done = lab.run("squeue", check=False)
    assert done.returncode == 1
    assert "Unable to contact" in done.stderr
    lab.start_controller()
    assert [(job.id, job.state) for job in lab.jobs()] == [(number, "RUNNING")]
    lab.restart_controller()
    assert [(job.id, job.state) for job in lab.jobs()] == [(number, "RUNNING")]
    cancel(lab, number)


@pytest.mark.once
def test_a_frozen_controller_hangs(lab: Lab) -> None:
    """Commands hang on a frozen controller, and get their answer from a thawed one."""
    lab.freeze_controller()
    squeue = subprocess.Popen(["squeue", "-h"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        squeue.wait(1)
    lab.thaw_controller()
    assert (squeue.communicate(timeout=60)[0], squeue.returncode) == ("", 0)


@pytest.mark.once
@pytest.mark.leaves_jobs
def test_healing_undoes_everything(lab: Lab) -> None:
    """Whatever is broken at once, healing ends the jobs, tells which, and brings everything back."""
    number = start(lab, 4)
    lab.cut_node(1)
    lab.kill_node(2)
    lab.poweroff_node(3)
    lab.freeze_controller()
    assert [job.id for job in lab.heal()] == [number]
    assert (lab.jobs(), set(lab.node_states().values())) == ([], {"idle"})
    lab.stop_controller()
    assert lab.heal() == []


@pytest.mark.once
def test_healing_is_quick_when_nothing_is_broken(lab: Lab) -> None:
    """A test without faults does not wait for the next one."""
    start_s = time.monotonic()
    assert lab.heal() == []
    assert time.monotonic() - start_s < 3.5  # settling takes four
