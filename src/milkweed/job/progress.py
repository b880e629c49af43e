"""Telling a person what a wait waits for, once it is long enough to wonder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ..logs import write
from ..units import render_duration

QUIET_S = 2.0
REPEAT_S = 60.0


def _to_stderr(text: str) -> None:
    write(sys.stderr, f"{text}\n")


class Progress:
    """Says nothing for two seconds, then every change, and at least once a minute."""

    def __init__(
        self,
        what: str,
        *,
        say: Callable[[str], None] = _to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._say = say
        self._clock = clock
        self._began_s = clock()
        self._said = ""
        self._said_s = 0.0

    @property
    def waited_s(self) -> float:
        """How long the wait has lasted."""
        return self._clock() - self._began_s

    def see(self, text: str) -> None:
        """Note how things stand now."""
        now_s = self._clock()
        if now_s - self._began_s < QUIET_S:
            return
        if text != self._said or now_s - self._said_s >= REPEAT_S:
            self._said, self._said_s = text, now_s
            self._say(f"milkweed: {self._what}: {text} (after {render_duration(self.waited_s)})")
