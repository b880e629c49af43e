"""What pods print, line by line, while they print it, however often a connection breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import UnreachableError
from .api import Api, ApiError, Stream
from .resources import PODS

PAUSE_S = 0.5
FINISH_S = 10.0
"""How long the last lines of a pod that has ended are waited for."""


class Lines:
    """The lines of one container, each once, however often the connection breaks."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str) -> None:
        self._api = api
        self._path = PODS.path(namespace, pod, "log")
        self._container = container
        self._last = b""
        """When the last line was printed, as the node writes it: such texts can be compared."""
        self._same = 0
        """How many lines have that time."""
        self._stream: Stream | None = None

    def read(self, *, follow: bool) -> Iterator[bytes]:
        """What is new; with `follow`, what comes until the container ends or the connection does."""
        query = {"container": self._container, "timestamps": "true", "follow": str(follow).lower()}
        if self._last:
            query["sinceTime"] = self._last.decode()
        with self._api.follow(self._path, **query) as stream:
            self._stream = stream
            try:
                yield from self._take(stream.lines())
            finally:
                self._stream = None

    def _take(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        last, same = self._last, self._same
        for line in lines:
            stamp, _, text = line.partition(b" ")
            if stamp < last:
                continue
            if stamp == last and same > 0:
                same -= 1
                continue
            self._same = self._same + 1 if stamp == self._last else 1
            self._last = stamp
            yield text

    def end(self) -> None:
        """Wake whoever reads."""
        stream = self._stream
        if stream is not None:
            stream.end()


class Follower:
    """Hands on every line of one container from a thread of its own, until the container has ended."""

    def __init__(
        self,
        lines: Lines,
        write: Callable[[bytes], object],
        *,
        close: Callable[[], object] = lambda: None,
        pause: Callable[[float], Any] | None = None,
    ) -> None:
        """`close` is called after the last line, by the same thread as `write`."""
        self._lines = lines
        self._write = write
        self._close = close
        self._ended = threading.Event()
        self._over = threading.Event()
        self._pause = pause or self._rest
        self._thread = threading.Thread(target=self._run, name="milkweed-log", daemon=True)
        self._thread.start()

    def note_end(self) -> None:
        """The container has ended: what is left is handed on, and then it is over."""
        self._ended.set()

    def finish(self, timeout_s: float = FINISH_S) -> None:
        """The container has ended: hand on what is left, then stop."""
        self.note_end()
        self._thread.join(timeout_s)
        self.stop()

    def stop(self) -> None:
        """Stop, whatever is left."""
        self._ended.set()
        self._over.set()
        self._lines.end()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                # Asked first: what it printed before its end is then read.
                last = self._ended.is_set()
                if self._copy(follow=not last) and last:
                    return
                self._pause(PAUSE_S)
        finally:
            self._close()

    def _rest(self, pause_s: float) -> None:
        """Wait before the next try; not for an end that is told meanwhile."""
        (self._over if self._ended.is_set() else self._ended).wait(pause_s)

    def _copy(self, *, follow: bool) -> bool:
        """Whether there is nothing more to be had by asking again."""
        try:
            for line in self._lines.read(follow=follow):
                self._write(line)
        except UnreachableError:
            return False
        except ApiError as error:
            return error.missing or not follow
        return True
