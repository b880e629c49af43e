"""Tests on a real Slurm: tests/labs/slurm/with.sh runs pytest on the login node of a cluster."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import mark_all
from programs import Client
from slurm.lab import Lab, why_missing

HERE = Path(__file__).parent
TEST_LIMIT_S = 300
"""More than a test's own limits together on a busy machine: they tell what was waited for in vain."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks of this folder."""
    config.addinivalue_line("markers", "leaves_jobs: its jobs are ended for it, without complaint")
    config.addinivalue_line(
        "markers", "once: nothing in it depends on the version of Slurm, so one of them is enough"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; without a cluster they are skipped."""
    mark_all(items, HERE, "slurm", why_missing())
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The cluster."""
    return Lab()


@pytest.fixture(scope="session")
def shared_root(lab: Lab) -> Iterator[Path]:
    """A folder that every node sees; nodes have a /tmp of their own."""
    path = lab.run_folder / "shared"
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def shared_folder(shared_root: Path, _numbers: Iterator[int]) -> Path:
    """This test's folder that every node sees. Its path is short, for sockets."""
    path = shared_root / str(next(_numbers))
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def tmp_path(shared_folder: Path) -> Path:
    """A folder that every node sees, so that the fixtures `home` and `folder` are shared too."""
    return shared_folder


@pytest.fixture
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records below the /tmp of the login node, which no other node sees."""
    path = tmp_path_factory.mktemp("private") / "milkweed-home"
    monkeypatch.setenv("MILKWEED_HOME", str(path))
    return path


@pytest.fixture(autouse=True)
def healed(lab: Lab, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the cluster is whole and empty; a test that left a job running has failed."""
    yield
    left = lab.heal()
    if left and not request.node.get_closest_marker("leaves_jobs"):
        pytest.fail(f"the test left jobs running: {left}", pytrace=False)


@pytest.fixture
def client(folder: Path, home: Path) -> Iterator[Client]:
    """Client programs on the login node, in a folder that every node sees."""
    made = Client(folder, home)
    yield made
    made.end()
