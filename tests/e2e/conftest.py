"""Client programs as users run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import Client, end_everything, wait_until
from ranks import Runner, ranks_of


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client whose hosts are all gone at the end of the test, whatever it did."""
    folder = tmp_path / "work"
    folder.mkdir()
    made = Client(folder, tmp_path / "home")
    yield made
    os.environ["MILKWEED_HOME"] = str(made.home)
    try:
        end_everything(made)
    finally:
        del os.environ["MILKWEED_HOME"]


@pytest.fixture
def runner(client: Client) -> Iterator[Runner]:
    """A runner whose ranks are all gone at the end."""
    yield Runner(client)
    wait_until(lambda: not ranks_of(client), 15)
