"""The end of a program: procs finish what they were told, and everybody leaves."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

LEAVE_TIMEOUT_S = 5.0


class Leaves(Protocol):
    """A connection, as far as the end of a program knows it."""

    @property
    def lost(self) -> Mapping[str, str]:
        """Hosts that are gone, and why."""
        ...

    @property
    def alive(self) -> bool:
        """Whether there is somebody to leave."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Deed(Protocol):
    """What else is to be done at the end of a program."""

    def begin(self) -> None:
        """Before anybody leaves."""
        ...

    def end(self, left: Collection[Leaves]) -> None:
        """When these connections were left."""
        ...


connections: set[Leaves] = set()
"""Held here too: hosts stay in use though a program keeps only a mesh of its job."""


last_deeds: dict[str, Deed] = {}
"""By the id of the allocation that they are about."""


def leave_all() -> None:
    """At the end of a program: let procs finish what they were told, then leave; whatever fails, do the rest."""
    alive = [connection for connection in connections if connection.alive]
    with contextlib.ExitStack() as to_do:  # the last one first
        deeds = [last_deeds.pop(apply_id) for apply_id in reversed(list(last_deeds))]
        for deed in deeds:
            to_do.callback(deed.end, alive)
        for connection in alive:
            to_do.callback(connection.close)
        to_do.callback(_finish, alive)
        for deed in deeds:
            to_do.callback(deed.begin)


def _finish(alive: Collection[Leaves]) -> None:
    """Let procs finish what they were told."""
    in_order = alive and not hasattr(sys, "last_type") and not any(each.lost for each in alive)
    if in_order and "milkweed.engine" in sys.modules:
        from .. import engine

        engine.stop_procs(LEAVE_TIMEOUT_S)


def end_program() -> None:
    """Leave, and then have the engine end its own part while it may still take its time."""
    leave_all()
    if "milkweed.engine" in sys.modules:
        from .. import engine

        engine.shut_down(LEAVE_TIMEOUT_S)


def at_end(leave: Callable[[], None]) -> None:
    """Have something done at the end of the program while threads still run: the engine needs its own."""
    # Private: plain atexit comes after threads were ended, when the engine cannot finish anything any more.
    # A test fails when it moves; without it, leaving still works, and only unfinished calls are cut off.
    early: Callable[[Callable[[], None]], object] = getattr(
        threading, "_register_atexit", atexit.register
    )
    early(leave)


at_end(end_program)
