"""The suite that every backend passes, on a real instance."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.instance import Instance
from milkweed.backends.flux.backend import FluxBackend
from milkweed.spec import JobSpec, make_meshes
from milkweed.testing import BackendContract


class TestFlux(BackendContract):
    """Real jobs on real brokers."""

    @pytest.fixture
    def backend(self, folder: Path, instance: Instance) -> FluxBackend:
        """The backend, in an empty working folder."""
        return FluxBackend()

    def make_spec(self) -> JobSpec:
        """What the tests ask for."""
        meshes = make_meshes({"a": 1, "b": 1})
        return JobSpec(name="contract", backend="flux", meshes=meshes, options={"exclusive": False})
