"""What a batch client prints, as the cluster tells it: each line once, over a request that stays open."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ...kube.api import Api, ApiError
from ...kube.pod_logs import FINISH_S, Follower, Lines
from ..base import Handle
from .batch import CONTAINER
from .finding import client_pods
from .places import AnyApi

MAX_WAITING = 10_000
"""How many lines are taken before the first of them is read."""


class ClientLog:
    """Reads as a file that grows: every call has what is new, in whole lines, and nothing when there is none."""

    def __init__(self, reach: Callable[[], AnyApi], handle: Handle, *, follow: bool) -> None:
        self._reach = reach
        self._handle = handle
        self._follow = follow
        self._read = False
        self._ended = False
        self._waiting = Waiting()
        self._follower: Follower | None = None

    def read(self) -> bytes:
        """What is new; after the client's end, the rest."""
        if self._follow:
            return self._take()
        if self._read:
            return b""
        self._read = True
        return self._read_now()

    def note_end(self) -> None:
        """The client has ended: what it printed last is waited for, for a while."""
        self._ended = True
        if self._follower is not None:
            self._follower.note_end()

    def close(self) -> None:
        """Read no more."""
        self._waiting.end()
        if self._follower is not None:
            self._follower.stop()

    def _read_now(self) -> bytes:
        lines = self._find()
        with contextlib.suppress(ApiError):  # it has not begun yet
            return b"".join(map(_whole, lines.read(follow=False))) if lines else b""
        return b""

    def _take(self) -> bytes:
        if self._follower is None:
            lines = self._find()
            if lines is None:
                return b""
            self._follower = Follower(lines, self._waiting.put, close=self._waiting.end)
            if self._ended:
                self._follower.note_end()
        return self._waiting.take(FINISH_S if self._ended else 0.0)

    def _find(self) -> Lines | None:
        """Where its lines are; nothing as long as it has no pod."""
        api = self._reach()
        if isinstance(api, Api):
            for pod in client_pods(api, self._handle):
                name = pod["metadata"]["name"]
                return Lines(api, self._handle["namespace"], name, CONTAINER)
        return None


class Waiting:
    """Lines that were taken and not read yet; who takes them waits when they are too many."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._lines: list[bytes] = []
        self._limit = limit
        self._over = False
        self._changed = threading.Condition()

    def put(self, line: bytes) -> None:
        """One line more, when there is room; after the end nobody waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._lines) < self._limit)
            self._lines.append(_whole(line))
            self._changed.notify_all()

    def end(self) -> None:
        """There is nothing more to come, or nobody reads any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def take(self, timeout_s: float) -> bytes:
        """All that waits; when it is nothing, the next of it, unless that takes too long or there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or bool(self._lines), timeout_s)
            found, self._lines = self._lines, []
            self._changed.notify_all()
        return b"".join(found)


def _whole(line: bytes) -> bytes:
    """A line with its end, which the last of a log may lack."""
    return line if line.endswith(b"\n") else line + b"\n"
