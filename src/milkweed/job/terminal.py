"""Printing what hosts print, from a thread of its own, so that the program never waits for a terminal."""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any

from ..logs import Merger, Printed, write


class Terminal:
    """One per connection; lines go to this program's own stdout and stderr, each with its host before it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Printed | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="milkweed-output", daemon=True)
        self._thread.start()

    def take(self, message: dict[str, Any]) -> None:
        """Print the lines of an `out` message."""
        if dropped := message.get("dropped"):
            text = (
                f"… {dropped} lines came faster than they could be sent; `milkweed logs` has them"
            )
            self._put(message, text)
        for text in message["lines"]:
            self._put(message, text)

    def _put(self, message: dict[str, Any], text: str) -> None:
        self._queue.put(
            Printed(host=message["host"], rank=message["rank"], stream=message["stream"], text=text)
        )

    def flush(self, timeout_s: float) -> None:
        """Wait until everything taken so far is printed."""
        done = threading.Event()
        self._queue.put(done)
        done.wait(timeout_s)

    def close(self) -> None:
        """Print what is left and end the thread."""
        self._queue.put(None)
        self._thread.join(2.0)

    def _run(self) -> None:
        merger = Merger(emit=_emit)
        while True:
            due_s = merger.due_s
            try:
                wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
                item = self._queue.get(timeout=wait_s)
            except queue.Empty:
                merger.flush(time.monotonic())
                continue
            if isinstance(item, Printed):
                merger.add(item, time.monotonic())
                continue
            merger.finish(time.monotonic())
            if item is None:
                return
            item.set()


def _emit(stream: str, text: str) -> None:
    write(sys.stdout if stream == "out" else sys.stderr, f"{text}\n")
