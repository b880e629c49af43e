"""What a client is told of a gang: each word once, in order, and kept until it was heard.

A connection may break with words on their way, so each has a number, and a client that is back says how far it
heard. What is kept is bounded: when a client does not keep up, ranks that print more wait, as for a full pipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .children import Output

Message = Mapping[str, Any]
WINDOW_BYTES = 4 * 2**20
"""How much is kept for a client before its ranks wait."""
ASK_BYTES = WINDOW_BYTES // 16
"""How much is said before a client is asked whether it heard it."""
_HEAD_BYTES = 200
_LINE_BYTES = 16


class Kept(NamedTuple):
    """A word that may have to be said again."""

    message: Message
    size: int


class Outbox:
    """The words about one gang, from its first to its last."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._kept: deque[Kept] = deque()
        self._last = 0
        self._size = 0
        self._unasked = 0
        self._outputs: list[Output] = []
        self._over = False

    def watch(self, *outputs: Output) -> None:
        """Whose lines come here, and who waits when they are too many."""
        self._outputs += outputs

    def put(self, message: Message) -> None:
        """Tell something, with a number; the client is asked now and then how far it heard."""
        if self._over:
            self._tell(message)
            return
        size = _HEAD_BYTES + sum(len(line) + _LINE_BYTES for line in message.get("lines", ()))
        self._last += 1
        self._size += size
        self._unasked += size
        message = {**message, "number": self._last}
        if self._unasked >= ASK_BYTES:
            self._unasked = 0
            message["ask"] = True
        self._kept.append(Kept(message, size))
        self._tell(message)
        if self._size > WINDOW_BYTES:
            for output in self._outputs:
                output.pause()

    def heard(self, number: int) -> None:
        """Forget what the client has; those who waited may go on."""
        while self._kept and self._kept[0].message["number"] <= number:
            self._size -= self._kept.popleft().size
        if self._size <= WINDOW_BYTES // 2:
            self._resume()

    def repeat(self, number: int) -> None:
        """Say again all that came after what the client heard last."""
        self.heard(number)
        for kept in list(self._kept):
            self._tell(kept.message)

    def close(self) -> None:
        """The client wants to know no more: whoever still prints waits for nobody."""
        self._over = True
        self._kept.clear()
        self._resume()

    def _resume(self) -> None:
        for output in self._outputs:
            output.resume()
