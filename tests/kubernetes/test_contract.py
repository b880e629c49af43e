"""The suite that every backend passes, on a real cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kubernetes.lab import WORKER
from kubernetes.operators import Operating
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.spec import JobSpec, make_meshes
from milkweed.testing import BackendContract


class TestKubernetes(BackendContract):
    """Real pods on real nodes."""

    namespace = ""
    rights: Mapping[str, str] = {}

    @pytest.fixture
    def backend(
        self, folder: Path, namespace: str, operating: Operating, rights: dict[str, str]
    ) -> KubernetesBackend:
        """The backend, in an empty working folder, and a namespace of its own, with clients' rights."""
        self.namespace, self.rights = namespace, rights
        return KubernetesBackend()

    def make_spec(self) -> JobSpec:
        """What the tests ask for."""
        login = self.rights["KUBECONFIG"]
        options = {"image": WORKER, "namespace": self.namespace, "kubeconfig": login}
        meshes = make_meshes({"a": 1, "b": 1})
        return JobSpec(name="contract", backend="kubernetes", meshes=meshes, options=options)
