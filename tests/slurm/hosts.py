"""Hosts that a test begins with, as a program that has ended leaves them; without one, for that is quicker."""

from __future__ import annotations

import sys
import time
from textwrap import dedent
from typing import Any

from clusters import run
from milkweed.job import SlurmJob
from milkweed.state import DEFAULT_PATH
from programs import Client, wait_until
from slurm.lab import Lab

READY_S = 90.0


def make_hosts(**options: Any) -> SlurmJob:
    """A job on record in the working folder, all of whose hosts are ready."""
    job = SlurmJob(**options)
    job._ensure(job._choose_file(DEFAULT_PATH))
    assert job.wait(READY_S).ready
    return job


def node_of(lab: Lab, rank: int) -> int:
    """The number of the node that the only job's host of a rank is on."""
    [job] = lab.jobs()
    return int(job.nodes[rank].removeprefix("n"))


SPEAK = """
    for rank in (0, 1):
        actors.slice(hosts=rank).say.call(f"last words of w/{rank}").get()
"""
"""The part of a program in which each of two hosts says something else."""


def speak(client: Client) -> None:
    """Let each of the two hosts on record write something else into its log."""
    client.run('actors = job_load().state().w.spawn_procs().spawn("p", Probe)' + dedent(SPEAK))


def assert_last_words(told: str, host: str) -> None:
    """The end of one host's log is shown, and of no other's."""
    assert told.count("last words of ") == told.count(f"last words of {host}") == 1, told


def command(*words: str) -> str:
    """What `milkweed ...` says in the working folder; it must succeed."""
    done = run([sys.executable, "-m", "milkweed", *words], check=True, timeout_s=READY_S)
    return done.stdout + done.stderr


def take_nodes(lab: Lab, *options: str) -> int:
    """Somebody else's job, which has its nodes for itself; its number."""
    line = ("sbatch", "--parsable", "--exclusive", "-o", "/dev/null", *options)
    return int(lab.run(*line, "--wrap", "sleep 600").stdout)


def start_again(lab: Lab) -> None:
    """Slurm holds a job back for two minutes after it was put into the queue again: spare the test that."""
    wait_until(lambda: any(job.state == "PENDING" for job in lab.jobs()), 60)
    # A job that starts while its last run is still being ended, or in the same second, is killed by Slurm.
    wait_until(lambda: not any("comp" in state for state in lab.node_states().values()), 60)
    time.sleep(4)
    for job in lab.jobs():
        lab.run("scontrol", "update", f"jobid={job.id}", "starttime=now", check=False)
