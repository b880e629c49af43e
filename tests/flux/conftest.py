"""Tests on a real Flux: each session starts an instance of four brokers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import mark_all
from flux.instance import Instance, why_missing
from programs import Client

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; without Flux they are skipped."""
    mark_all(items, HERE, "flux", why_missing())


@pytest.fixture(scope="session")
def _shared_instance() -> Iterator[Instance]:
    made = Instance()
    yield made
    made.stop()


@pytest.fixture
def instance(_shared_instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """The instance that the test runs in; one that left a job running has failed."""
    monkeypatch.setenv("FLUX_URI", _shared_instance.uri)
    yield _shared_instance
    if left := _shared_instance.heal():
        pytest.fail(f"the test left jobs running: {left}", pytrace=False)


@pytest.fixture
def own_instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """An instance that the test may break."""
    made = Instance(2)
    monkeypatch.setenv("FLUX_URI", made.uri)
    yield made
    made.stop()


@pytest.fixture
def client(folder: Path, home: Path, request: pytest.FixtureRequest) -> Client:
    """Client programs in a folder of their own, in the instance that the test asks for."""
    for name in ("instance", "own_instance"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    return Client(folder, home)
