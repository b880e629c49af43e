"""Ending a program between two steps, to see that the next one finds everything again."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator
from dataclasses import dataclass, field

from .. import _checkpoint
from ..spec import suggest

POINTS = _checkpoint.POINTS
"""The named points that an allocation's life passes, from its making to its end."""


class Crash(BaseException):
    """The program ends here; not an Exception, because nothing handles a lost machine."""


@dataclass
class Passages:
    """What happened inside `crash_at`."""

    passed: list[str] = field(default_factory=list[str])
    """Every point passed, in order, the one of the crash included."""
    crashed: bool = False


@contextlib.contextmanager
def crash_at(point: str, nth: int = 1, *, kill: bool = False) -> Generator[Passages]:
    """Raise Crash at the n-th passage of a point; with `kill`, end this very process by SIGKILL.

    After the crash all points are passed freely, so that recovery can be tried in the same block.
    """
    if point not in POINTS:
        raise ValueError(f"there is no point {point!r}: {suggest(point, POINTS)}")
    seen = Passages()

    def hook(name: str) -> None:
        before(name)
        seen.passed.append(name)
        if name == point and not seen.crashed and seen.passed.count(point) >= nth:
            seen.crashed = True
            _end(name, kill=kill)

    before, _checkpoint.hook = _checkpoint.hook, hook
    try:
        yield seen
    finally:
        _checkpoint.hook = before


def _end(point: str, *, kill: bool) -> None:
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    raise Crash(f"at the point {point!r}")
