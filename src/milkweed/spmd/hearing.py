"""Hearing what hosts tell of ranks: each word once, in the order in which its host said it.

Words are shown, and handed on, by a thread of their own: a terminal that nobody reads holds up the ranks that
print, and not the connection to their host, which would break.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..control import Session
from ..errors import UnreachableError

Message = Mapping[str, Any]
Heard = tuple[Session, Message]


class Hearing:
    """What all hosts said so far."""

    def __init__(self, show: Callable[[Message], None], hand_on: Callable[[Message], None]) -> None:
        self._show = show
        self._hand_on = hand_on
        self._queue: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()
        self._numbers: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def number(self, attempt: str, label: str) -> int:
        """The last word of an attempt that was heard from a host."""
        with self._lock:
            return self._numbers.get((attempt, label), 0)

    def take(self, session: Session, message: Message) -> None:
        """Take a word, unless it is known; one that came too early is told again, after those it overtook."""
        if "number" not in message and message.get("ev") != "out":
            self._hand_on(message)  # an answer to an order waits for no line that nobody reads
            return
        with self._lock:
            if number := message.get("number"):
                key = (str(message["id"]), str(message["host"]))
                if number != self._numbers.get(key, 0) + 1:
                    return
                self._numbers[key] = number
            self._queue.put((session, message))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="milkweed-ranks", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            session, message = item
            if message.get("ev") != "out":
                self._hand_on(message)
            elif message.get("kind") == "rank":
                self._show(message)
            if message.get("ask"):
                answer = {key: message[key] for key in ("id", "host", "number")}
                with contextlib.suppress(UnreachableError):  # it asks again when it is back
                    session.send({"op": "heard", **answer})

    def close(self) -> None:
        """Show what is left."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
