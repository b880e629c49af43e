"""Tests on a real Kubernetes: tests/labs/kubernetes/with.sh runs pytest inside a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import mark_all
from kubernetes.jobspecs import Place
from kubernetes.lab import Lab, wait, why_missing
from kubernetes.operators import (
    Meshes,
    Operating,
    Shared,
    Start,
    ended,
    install,
    make_client_login,
    make_login,
)
from milkweed.jobspec import load_runs
from programs import Client

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 300
"""What a test may take that waits for several things, each of them with patience."""
PROGRAM_TIMEOUT_S = 150


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; without a cluster they are skipped."""
    mark_all(items, HERE, "kubernetes", why_missing())
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The cluster."""
    found = Lab()
    yield found
    found.api.close()


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
        wait(lambda run=run: not run.is_driven(), 60, f"run {run.id} is still driven")
    lab.wait_empty(namespace)


@pytest.fixture
def rights(lab: Lab, namespace: str, tmp_path: Path) -> dict[str, str]:
    """What makes a program a client with the rights that the manifests give to clients, and no others."""
    return {"KUBECONFIG": make_client_login(lab, tmp_path, namespace)}


@pytest.fixture
def client(folder: Path, home: Path, rights: dict[str, str]) -> Iterator[Client]:
    """Client programs inside the cluster, with clients' rights in this test's namespace."""
    made = Client(folder, home)
    yield from _lend(made, rights)


class OutsideClient(Client):
    """Client programs that reach nothing but the API server."""

    lab: Lab

    def command(self, path: Path) -> list[str]:
        """What runs a program outside."""
        return self.lab.outside(*super().command(path))


@pytest.fixture
def outside_client(lab: Lab, folder: Path, home: Path, rights: dict[str, str]) -> Iterator[Client]:
    """Client programs as on a laptop, with clients' rights in this test's namespace."""
    made = OutsideClient(folder, home)
    made.lab = lab
    yield from _lend(made, rights)


def _lend(made: Client, rights: dict[str, str]) -> Iterator[Client]:
    made.timeout_s = PROGRAM_TIMEOUT_S
    made.env |= rights
    yield made
    made.end()


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


@pytest.fixture(scope="session")
def shared(operator_login: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The operator of all tests that have none of their own."""
    made = Shared(tmp_path_factory.mktemp("shared"), operator_login)
    yield made
    made.rest()


@pytest.fixture
def operating(shared: Shared, namespace: str) -> Operating:
    """An operator that acts in this test's namespace, and in all others."""
    return shared.act()


@pytest.fixture
def alone(shared: Shared) -> None:
    """No operator acts but those that the test starts."""
    shared.rest()


@pytest.fixture
def start(
    namespace: str, operator_login: str, installed: None, alone: None, tmp_path: Path
) -> Iterator[Start]:
    """Starts operators with the operator's rights; they are ended after the test."""
    started: list[Operating] = []

    def begin(identity: str = "first") -> Operating:
        started.append(Operating(tmp_path, operator_login, namespace, identity))
        return started[-1]

    with ended(started):
        yield begin
        for one in started:
            if one.process.poll() is None:
                assert one.stop() == 0, one.log.read_text()
