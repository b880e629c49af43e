"""What Slurm may do with a job by itself, and what is said of it: its ends, the queue, and when it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from milkweed.job import SlurmJob
from programs import Client, finish, read_until, wait_until
from slurm.hosts import (
    READY_S,
    assert_last_words,
    command,
    make_hosts,
    node_of,
    speak,
    start_again,
    take_nodes,
)
from slurm.lab import Lab


def test_a_node_failure_is_an_end(client: Client, lab: Lab) -> None:
    """Weakness 17: NODE_FAIL is an end; who waits is told whose node it was, and what that host wrote last."""
    once = {"survive_node_failure": False, "slurm_args": ["--no-requeue"]}
    job = make_hosts(meshes={"w": 2}, **once)
    speak(client)
    node = node_of(lab, 1)
    lab.lose_node(node)
    reason = job.wait(READY_S, until="ended").reason
    assert "is NODE_FAIL: a node failed" in reason
    assert f"host w/1 was on node n{node}" in reason
    assert_last_words(reason, "w/1")
    told = command("status", "--why").partition("  w/0: the end of its log\n")[2]
    first, _, second = told.partition("  w/1: the end of its log\n")
    assert_last_words(first, "w/0")
    assert_last_words(second, "w/1")
    job.kill()


def test_a_deadline_is_an_end(folder: Path, lab: Lab) -> None:
    """Weakness 17: DEADLINE is an end: a job that can no longer meet its deadline is not waited for."""
    rival = take_nodes(lab, "-N6")
    options = {"time_limit": "1", "slurm_args": ["--deadline=now+62"]}
    job = SlurmJob(meshes={"w": 1}, **options)
    job.apply()
    assert "is DEADLINE: its deadline passed" in job.wait(READY_S, until="ended").reason
    job.kill()
    lab.run("scancel", str(rival))


def test_a_preempted_job_that_may_be_requeued(folder: Path, lab: Lab) -> None:
    """A job of higher priority takes its node: it is said to be back in the queue, and has hosts again later."""
    job = make_hosts(meshes={"w": 1}, partition="spare", slurm_args=["--nodelist=n1"])
    rival = take_nodes(lab, "-w", "n1")
    wait_until(lambda: job.status().liveness == "pending", 60)
    lab.run("scancel", str(rival))
    start_again(lab)
    assert job.wait(READY_S).ready
    job.kill()


def test_a_preempted_job_that_is_cancelled(folder: Path, lab: Lab) -> None:
    """A job of higher priority takes its node, and that was the end of it: PREEMPTED."""
    job = make_hosts(meshes={"w": 1}, partition="scrap", slurm_args=["--nodelist=n1"])
    rival = take_nodes(lab, "-w", "n1")
    reason = job.wait(READY_S, until="ended").reason
    assert "is PREEMPTED: a job of higher priority took its nodes" in reason
    job.kill()
    lab.run("scancel", str(rival))


def test_the_expected_start_is_told(folder: Path, lab: Lab) -> None:
    """Behind a job with a time limit: Slurm's own guess is in the status, and on the command line."""
    rival = take_nodes(lab, "-N6", "-t", "10")
    job = SlurmJob(meshes={"w": 1}, time_limit="5", job_name="behind")
    job.apply()
    wait_until(lambda: bool(job.status().expected_start), 60)
    assert job.status().liveness == "pending"
    assert f", expected start {job.status().expected_start}" in command("status", "behind")
    job.kill()
    lab.run("scancel", str(rival))


def test_status_tells_why(client: Client, lab: Lab) -> None:
    """`status --why`: Slurm's reason for a job that waits; of a host that failed, its own last lines alone."""
    waiting = SlurmJob(meshes={"w": 1}, partition="down", job_name="waiting")
    waiting.apply()
    assert "reason PartitionDown: " in command("status", "waiting", "--why")
    waiting.kill()
    job = make_hosts(meshes={"w": 2})
    speak(client)
    lab.on_node(node_of(lab, 1), "pkill", "-KILL", "-x", "w/1")
    wait_until(lambda: bool(job.status().failed_hosts), 60)
    told = command("status", "--why")
    assert "1/2 hosts ready" in told
    assert "it was ended by SIGKILL" in told
    assert_last_words(told, "w/1")
    job.kill()


def test_the_log_of_one_host_is_followed(client: Client, lab: Lab) -> None:
    """`logs -f --host`: lines of that host, while they are written, until the job ends."""
    make_hosts(meshes={"a": 1, "b": 1})
    follower = subprocess.Popen(
        [sys.executable, "-m", "milkweed", "logs", "-f", "--host", "b/0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    client.run("""
        state = job_load().state()
        for name in ("a", "b"):
            getattr(state, name).spawn_procs().spawn("p", Probe).say.call(f"from {name}").get()
    """)
    before = read_until(follower, "from b")
    client.kill()
    after, err = finish(follower)
    assert follower.returncode == 0, err
    assert "from a" not in before + after
