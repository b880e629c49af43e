"""What starts real processes runs one test at a time: `pytest -n 2 --dist loadgroup`."""

from __future__ import annotations

import pytest

ALONE = ("e2e", "root", "slurm", "kubernetes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put such tests, of all folders, into one group; one worker of pytest-xdist gets all of it."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ALONE):
            item.add_marker(pytest.mark.xdist_group("real processes"))
