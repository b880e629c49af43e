"""What a run has to know next: words of hosts, and of whoever wants it to end."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]


class Interrupted(Exception):  # noqa: N818  it is no error
    """A person, or the scheduler of this very program, wants it to end."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Inbox(queue.SimpleQueue[Message]):
    """Messages in the order in which they came."""

    def raise_signal(self, *, forget: bool = False) -> None:
        """Raise what wants this to stop, if anything; the rest of the inbox stays, or is forgotten."""
        kept: list[Message] = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self.get_nowait()
                if message["ev"] == "signal":
                    raise Interrupted(str(message["name"]))
                kept.append(message)
        for message in () if forget else kept:
            self.put(message)
