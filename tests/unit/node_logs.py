"""The logs of pods as nodes give them, over connections that break as a test says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from typing import Any

from milkweed.kube.api import ApiError

POD = "/api/v1/namespaces/lab/pods/p/log"


def at(second: int, text: str) -> bytes:
    """A line as a node gives it."""
    return f"2026-01-02T03:04:{second:02d}.000000000Z {text}\n".encode()


class Node:
    """A node whose log grows, and whose connections break as a test says."""

    def __init__(self, *visits: list[bytes | Exception], path: str = POD) -> None:
        self.visits = list(visits)
        self.path = path
        self.asked: list[dict[str, str]] = []
        self.drained = threading.Event()

    @contextlib.contextmanager
    def follow(self, path: str, **query: str) -> Generator[Any]:
        """One connection."""
        assert path == self.path
        self.asked.append(query)
        if not self.visits:
            self.drained.set()
        visit = self.visits.pop(0) if self.visits else []
        if visit and isinstance(visit[0], ApiError):
            raise visit[0]
        yield Visit(visit)


class Visit:
    """What one connection tells."""

    def __init__(self, said: list[bytes | Exception]) -> None:
        self._said = said

    def lines(self) -> Iterator[bytes]:
        """Lines, until it breaks."""
        for each in self._said:
            if isinstance(each, Exception):
                raise each
            yield each

    def end(self) -> None:
        """Nobody waits here."""
