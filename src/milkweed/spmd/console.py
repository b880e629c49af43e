"""Showing what ranks print, each line with its rank before it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..logs import write


class Console:
    """Writes lines of ranks to this program's own streams; shared by all sessions."""

    def __init__(self, prefix: Callable[[int, int], str]) -> None:
        self._prefix = prefix
        self._first: dict[str, int] = {}
        self._lock = threading.Lock()

    def expect(self, first: Mapping[str, int]) -> None:
        """The number of each host's first rank, of which local ranks follow."""
        self._first = dict(first)

    def take(self, message: Mapping[str, Any]) -> None:
        """Write the lines of one message."""
        rank = int(message["rank"])
        prefix = self._prefix(rank, rank - self._first.get(message["host"], 0))
        lines = list(message["lines"])
        if dropped := message.get("dropped"):
            lines.insert(
                0,
                f"… {dropped} lines came faster than they could be sent; `milkweed logs` has them",
            )
        with self._lock:
            write(
                sys.stdout if message["stream"] == "out" else sys.stderr,
                "".join(f"{prefix}{line}\n" for line in lines),
            )


def say(text: str) -> None:
    """Tell the person at the terminal."""
    write(sys.stderr, f"milkweed: {text}\n")


class EventLog:
    """`--event-log-handler`: what happens to ranks as lines of JSON on standard error, or not at all."""

    def __init__(self, handler: str, role: str, run_id: str) -> None:
        self._on = handler == "console"
        self._head = {"run_id": run_id, "role": role}

    def add(self, state: str, **metadata: Any) -> None:
        """Write one event."""
        if self._on:
            source = "WORKER" if "global_rank" in metadata else "AGENT"
            event = {
                "name": f"torchelastic.worker.status.{state}",
                "source": source,
                "timestamp": int(time.time()),
                "metadata": {**self._head, "state": state, **metadata},
            }
            write(sys.stderr, json.dumps(event) + "\n")
