"""Pauses that signals end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Generator
from typing import Any


class Wake:
    """Lets signals end a pause: they are noted here, never thrown into the middle of a step."""

    def __init__(self) -> None:
        self.stopped = ""
        """Why everything shall end; nothing while it may go on."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """What becomes readable when a pause shall end."""
        return self._read

    def stop(self, reason: str) -> None:
        """End everything, soon; may be called by a signal handler."""
        self.stopped = self.stopped or reason
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def pause(self, timeout_s: float) -> None:
        """Wait a little, unless there is something to do."""
        select.select([self._read], [], [], timeout_s)

    def close(self) -> None:
        """Let the pipe go."""
        os.close(self._read)
        os.close(self._write)

    @contextlib.contextmanager
    def signals(self, *numbers: signal.Signals) -> Generator[None]:
        """Take these signals as the word to stop; only the main thread can."""
        before: dict[signal.Signals, Any] = {}
        with contextlib.suppress(ValueError):
            for number in numbers:
                before[number] = signal.signal(number, self._heard)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, _frame: object) -> None:
        self.stop(f"stopped by {signal.Signals(number).name}")
