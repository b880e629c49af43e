"""Ends that a cluster of the lab cannot bring about: a job that really ended, for which Slurm has another word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from milkweed.job import job_load
from programs import Client, finish, read_until
from slurm.hosts import READY_S
from slurm.lab import Lab

pytestmark = pytest.mark.once

REWRITES = """#!/bin/sh
said=$({real} "$@")
code=$?
[ -z "$said" ] || printf '%s\\n' "$said" | sed 's/CANCELLED/{state}/; s/ExitCode=0:15/ExitCode=0:{signal}/'
exit $code
"""
WAITS = """
        from milkweed.errors import AllocationEndedError
        from milkweed.job import progress
        progress.QUIET_S = 0.0
        try:
            SlurmJob(meshes={"w": 1}, partition="down").state()
        except AllocationEndedError as error:
            print(error)
"""
CALLS = """
        job = SlurmJob(meshes={"w": 1})
        actors = job.state().w.spawn_procs().spawn("p", Probe)
        actors.pid.call().get()
        print("calling", flush=True)
        try:
            actors.slow.call(300).get()
        except BaseException as error:
            print("failed", type(error).__name__, flush=True)
        print("status", job.status().describe(), flush=True)
        os._exit(0)
"""


def rewrite(folder: Path, state: str, signal: int = 0) -> str:
    """Commands that call a cancelled job something else; the PATH on which they are found first."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("squeue", "scontrol"):
        text = REWRITES.format(real=shutil.which(name), state=state, signal=signal)
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("BOOT_FAIL", "is BOOT_FAIL: a node did not boot"),
        ("REVOKED", "is REVOKED: another cluster of the federation took the job"),
    ],
)
def test_the_end_of_a_job_that_waits(
    client: Client, lab: Lab, monkeypatch: pytest.MonkeyPatch, state: str, words: str
) -> None:
    """Weakness 17: state() and wait() end, and name it in Slurm's words and in plain ones."""
    monkeypatch.setenv("PATH", rewrite(client.folder, state))
    program = client.start(WAITS, PATH=os.environ["PATH"])
    read_until(program, "waiting for job 'monarch_job': pending", err=True)
    lab.run("scancel", str(lab.jobs()[0].id))
    out, err = finish(program)
    assert "the allocation of job 'monarch_job' has ended" in out, err
    assert words in out
    assert words in job_load().wait(READY_S, until="ended").reason
    client.kill()


def test_a_job_that_uses_too_much_memory(
    client: Client, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weakness 17: the program whose hosts are gone is told why, and so is who asks later."""
    monkeypatch.setenv("PATH", rewrite(client.folder, "OUT_OF_MEMORY", signal=125))
    words = "is OUT_OF_MEMORY: it used more memory than it was given"
    program = client.start(CALLS, PATH=os.environ["PATH"])
    read_until(program, "calling")
    lab.run("scancel", str(lab.jobs()[0].id))
    out, err = finish(program)
    assert "failed" in out, err
    assert "the hosts of job 'monarch_job' have ended: Slurm job" in err
    assert words in err
    assert "status ended (Slurm job" in out
    assert words in job_load().wait(READY_S, until="ended").reason
    client.kill()
