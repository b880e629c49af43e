"""The suite that every backend passes, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.spec import JobSpec, make_meshes
from milkweed.testing import BackendContract


class TestSlurm(BackendContract):
    """Real jobs on real nodes."""

    @pytest.fixture
    def backend(self, folder: Path) -> SlurmBackend:
        """The backend, in an empty working folder."""
        return SlurmBackend()

    def make_spec(self) -> JobSpec:
        """What the tests ask for."""
        options = {"exclusive": False, "cpus_per_task": 1}
        meshes = make_meshes({"a": 1, "b": 1})
        return JobSpec(name="contract", backend="slurm", meshes=meshes, options=options)
