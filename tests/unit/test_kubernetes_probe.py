"""How Kubernetes sees that a host takes orders: the probe itself, run as it is in a pod."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.backends.kubernetes.making import make_probe
from milkweed.worker.wire import CONTROL_SOCKET, run_prefix

JOB = "0a1b2c3d-0000-4000-8000-00000000abcd"
OTHER = "ffffffff-0000-4000-8000-00000000abcd"
pytestmark = pytest.mark.e2e


@pytest.fixture
def runs() -> Iterator[Path]:
    """A folder of run folders, where keepers have theirs."""
    path = Path(tempfile.mkdtemp(prefix="milkweed-probe-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def listen(runs: Path, job: str, share: str = "0.0-0") -> socket.socket:
    """Take orders, as a keeper does."""
    folder = runs / f"{run_prefix(job)}.{share}"
    folder.mkdir()
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(folder / CONTROL_SOCKET))
    made.listen()
    return made


def is_ready() -> bool:
    """What the probe says; nothing of the PATH is needed for it."""
    [shell, *rest] = make_probe(JOB)["exec"]["command"]
    command = [shutil.which(shell) or shell, *rest]
    return subprocess.run(command, env={"PATH": ""}, check=False, timeout=60).returncode == 0


def test_a_host_is_ready_while_its_keeper_listens(runs: Path) -> None:
    """And not a moment longer: a socket that a dead keeper left behind is only a file."""
    assert not is_ready()
    with listen(runs, JOB):
        assert is_ready()
    assert (runs / f"{run_prefix(JOB)}.0.0-0" / CONTROL_SOCKET).is_socket()
    assert not is_ready()


def test_what_another_keeper_left_is_no_hindrance(runs: Path) -> None:
    """Two run folders of a job are as good as one."""
    listen(runs, JOB, "0.0-1").close()
    with listen(runs, JOB):
        assert is_ready()


def test_the_keeper_of_another_job_is_not_ours(runs: Path) -> None:
    """Where pods share a network, they see each other's sockets."""
    with listen(runs, OTHER):
        assert not is_ready()
