"""What unit tests of several files share: a Slurm that does what it is told, on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm import commands
from milkweed.testing import FakeClock
from unit.slurm_fake import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> FakeSlurm:
    """A cluster of no nodes and no jobs; its queue is read again whenever the clock was moved."""
    made = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(commands, "queue", commands.Queue(clock))
    monkeypatch.setattr(commands, "_nodes", [])
    return made
