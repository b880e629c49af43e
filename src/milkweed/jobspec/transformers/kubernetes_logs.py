"""What pods print, copied into files of this machine while they print it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import UnreachableError
from ...kube.api import Api, ApiError, Stream
from ...kube.resources import PODS
from .kubernetes_objects import CONTAINER

PAUSE_S = 0.5
FINISH_S = 10.0
"""How long the last lines of a pod that has ended are waited for."""


class Lines:
    """The lines of one container, each once, however often the connection breaks."""

    def __init__(self, api: Api, namespace: str, pod: str) -> None:
        self._api = api
        self._path = PODS.path(namespace, pod, "log")
        self._last = b""
        """When the last line was printed, as the node writes it: such texts can be compared."""
        self._same = 0
        """How many lines have that time."""
        self._stream: Stream | None = None

    def read(self, *, follow: bool) -> Iterator[bytes]:
        """What is new; with `follow`, what comes until the container ends or the connection does."""
        query = {"container": CONTAINER, "timestamps": "true", "follow": str(follow).lower()}
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
    """Copies the log of one pod into a file, or what each step in it prints into the file of that."""

    def __init__(
        self,
        lines: Lines,
        files: Mapping[str, str],
        *,
        labelled: bool,
        pause: Callable[[float], Any] | None = None,
    ) -> None:
        self._lines = lines
        self._files = dict(files)
        self._labelled = labelled
        self._open: dict[str, int] = {}
        self._ended = threading.Event()
        self._over = threading.Event()
        self._pause = pause or self._rest
        self._thread = threading.Thread(target=self._run, name="milkweed-log", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float = FINISH_S) -> None:
        """The container has ended: copy what is left, then stop."""
        self._ended.set()
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
                last = (
                    self._ended.is_set()
                )  # asked first: what it printed before its end is then read
                if self._copy(follow=not last) and last:
                    return
                self._pause(PAUSE_S)
        finally:
            for fd in self._open.values():
                os.close(fd)

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

    def _write(self, line: bytes) -> None:
        path = next(iter(self._files.values()))
        if self._labelled:
            label, tab, text = line.partition(b"\t")
            if tab and (own := self._files.get(label.decode(errors="replace"))):
                path, line = own, text
        if path not in self._open:  # what an earlier driver copied is copied again
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._open[path] = os.open(path, flags, 0o600)
        os.write(self._open[path], line)


def write_output(path: str, logs: Mapping[str, str]) -> None:
    """Put what all tasks printed into one file, one task after the other."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
        for each in logs.values():
            with contextlib.suppress(FileNotFoundError), open(each, "rb") as source:
                while data := source.read(2**20):
                    target.write(data)
