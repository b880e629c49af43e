"""Named points between two steps of an allocation's life, where tests end the program."""

from __future__ import annotations

from collections.abc import Callable


def _pass(_name: str) -> None:
    return


hook: Callable[[str], None] = _pass

POINTS = ("lock", "intent", "entry", "submit", "record", "cancel", "forget", "remove")


def checkpoint(name: str) -> None:
    """Pass a point; in tests, perhaps not."""
    hook(name)
