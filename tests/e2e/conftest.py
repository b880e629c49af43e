"""Client programs as users run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import Client, end_everything


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
