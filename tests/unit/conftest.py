"""What unit tests of several files share: a Slurm that does what it is told, and a cluster in memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.backends import credentials
from milkweed.backends.kubernetes import attaching, cluster as watches
from milkweed.backends.slurm import commands
from milkweed.testing import FakeClock
from unit.kubernetes_jobs import Space
from unit.slurm_fake import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Iterator[FakeSlurm]:
    """A cluster of no nodes and no jobs; its queue is read again whenever the clock was moved."""
    made = FakeSlurm(tmp_path / "slurm")
    made.answer("sbatch", "slurm-wlm 22.05.8\n")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(commands, "queue", commands.Queue(clock))
    monkeypatch.setattr(commands, "_nodes", [])
    commands.cluster_name.cache_clear()
    yield made
    commands.cluster_name.cache_clear()


@pytest.fixture
def cluster(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A cluster of four nodes, which are this machine; a submission is number 7, and nobody sleeps."""
    slurm.nodes("n1", "n2", "n3", "n4", address="127.0.0.1")
    slurm.answer("sbatch", "7\n")
    slurm.then("sbatch", '[ "$1" = --version ] && exec echo "slurm-wlm 22.05.8"')
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    return slurm


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A Kubernetes cluster with nothing in it, which is the one of this context."""
    made = Space()
    package = attaching.__name__.rpartition(".")[0]
    for name in [each for each in sys.modules if each.startswith(package)]:
        if hasattr(sys.modules[name], "api_of"):
            monkeypatch.setattr(sys.modules[name], "api_of", made.reach)
    monkeypatch.setattr(credentials, "_own", [])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield made
    for key in list(watches._watches):
        watches._watches.pop(key).stop()
