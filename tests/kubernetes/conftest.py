"""Tests on a real Kubernetes: tests/labs/kubernetes/with.sh runs pytest inside a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import mark_all
from kubernetes.jobspecs import Place
from kubernetes.lab import Lab, wait, why_missing
from kubernetes.operators import Meshes, Operating, install, make_login
from milkweed.jobspec import load_runs
from programs import Client

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; without a cluster they are skipped."""
    mark_all(items, HERE, "kubernetes", why_missing())


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The cluster."""
    return Lab()


@pytest.fixture(autouse=True)
def healed(lab: Lab) -> Iterator[None]:
    """After each test the cluster is whole."""
    yield
    lab.heal()


@pytest.fixture
def namespace(lab: Lab, healed: None) -> Iterator[str]:
    """A namespace of this test's own, deleted after it with all that is in it."""
    name = lab.make_namespace()
    yield name
    lab.heal()
    lab.delete_namespace(name)


@pytest.fixture
def place(lab: Lab, namespace: str, folder: Path) -> Iterator[Place]:
    """A place; after the test nothing is in it, and no process is left."""
    made = Place(lab, namespace)
    yield made
    for run in load_runs():
        wait(lambda run=run: not run.is_driven(), 20, f"run {run.id} is still driven")
    lab.wait_empty(namespace)


@pytest.fixture
def client(folder: Path, home: Path) -> Client:
    """Client programs inside the cluster."""
    return Client(folder, home)


class OutsideClient(Client):
    """Client programs that reach nothing but the API server."""

    lab: Lab

    def start(self, code: str, **env: str) -> subprocess.Popen[str]:
        """Start a program outside and leave it running."""
        return subprocess.Popen(
            self.lab.outside(sys.executable, str(self.write(code))),
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def outside_client(lab: Lab, folder: Path, home: Path) -> Client:
    """Client programs as on a laptop."""
    made = OutsideClient(folder, home)
    made.lab = lab
    return made


@pytest.fixture(scope="module")
def installed(lab: Lab) -> None:
    """The definition and all rights."""
    install(lab)


@pytest.fixture
def meshes(lab: Lab, namespace: str, installed: None) -> Meshes:
    """Meshes of this test's namespace."""
    return Meshes(lab, namespace)


@pytest.fixture(scope="session")
def operator_login(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The operator's definition and rights in the cluster, and a kubeconfig that has them."""
    install(lab)
    return make_login(lab, tmp_path_factory.mktemp("operator"), "milkweed-operator")


@pytest.fixture
def operating(namespace: str, operator_login: str, tmp_path: Path) -> Iterator[Operating]:
    """An operator that acts in this test's namespace."""
    running = Operating(tmp_path, operator_login, namespace, namespace)
    try:
        running.wait_leads()
        yield running
        if running.process.poll() is None:
            running.stop()
    finally:
        running.kill()
