"""Backends are found by one name in three places, which agree."""

from __future__ import annotations

import pytest

from gates.tree import pyproject
from milkweed.backends import BUILT_IN, GROUP, backend_names, load_backend


def test_built_in_backends_are_declared() -> None:
    """The table that spares reading metadata is the one that the package declares."""
    assert dict(BUILT_IN) == pyproject()["project"]["entry-points"][GROUP]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_backends_load(name: str) -> None:
    """Every backend that is declared is there."""
    assert load_backend(name)
    assert name in backend_names()


def test_the_extra_for_kubernetes_is_there_and_needs_nothing() -> None:
    """Programs that say `milkweed[kubernetes]` get what they need: the client of the API server is our own."""
    assert pyproject()["project"]["optional-dependencies"]["kubernetes"] == []
