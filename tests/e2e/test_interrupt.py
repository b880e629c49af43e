"""Ctrl-C at any moment leaves either nothing, or something that is recorded and can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from milkweed.backends.process import runs_folder
from programs import Client, wait_until

pytestmark = pytest.mark.e2e

DELAYS_S = [0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.7, 0.9]


def keepers_of(client: Client) -> list[str]:
    """The ids of allocations of this client's home that still run."""
    found: list[str] = []
    for start in runs_folder().glob("*/start.json"):
        try:
            told = json.loads(start.read_text())
            keeper = json.loads((start.parent / "keeper.json").read_text())
        except (OSError, ValueError):
            continue
        ours = told["record_folder"].startswith(str(client.home))
        if ours and Path(f"/proc/{keeper['pid']}").exists():
            found.append(told["apply_id"])
    return found


def interrupt(program: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, and once more where Python itself lost the first: it does, in a callback of an import."""
    for patience_s in (10, 20):
        program.send_signal(signal.SIGINT)
        try:
            program.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            continue
        return
    raise AssertionError("the program goes on after two interrupts")


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_an_unrecorded_job_leaves_nothing(client: Client, delay_s: float) -> None:
    """Interrupted anywhere between import and reply, hosts that nobody asked to keep are gone soon."""
    program = client.start(
        """
        job = ProcessJob({"workers": 2})
        job.state(cached_path=None).workers.spawn("a", Probe).pid.call().get()
        time.sleep(30)
        """
    )
    time.sleep(delay_s)
    interrupt(program)
    wait_until(lambda: not keepers_of(client))


@pytest.mark.parametrize("delay_s", DELAYS_S[1::2])
def test_a_recorded_job_can_be_found_again(client: Client, delay_s: float) -> None:
    """Interrupted with a state file, what still runs is in the file, and kill ends it."""
    program = client.start('ProcessJob({"workers": 2}).state(); time.sleep(30)')
    time.sleep(delay_s)
    interrupt(program)
    path = client.folder / ".milkweed/job.json"
    if keepers_of(client):
        assert json.loads(path.read_text())["apply_id"] in keepers_of(client)
    client.run('os.path.exists(".milkweed/job.json") and job_load().kill()')
    assert not keepers_of(client)
    assert not os.path.exists(path.parent)
