"""Where the output of ranks goes: the person's terminal, files in torchrun's layout, or both."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from .children import Lines

TAIL_LINES = 20
TAIL_BYTES = 16 * 1024
ERROR_FILE_BYTES = 256 * 1024
NAMES = {"out": "stdout.log", "err": "stderr.log"}
FILTERED = {"out": "filtered_stdout.log", "err": "filtered_stderr.log"}


class Stream(NamedTuple):
    """What is done with one stream of one rank."""

    file: bool = False
    shown: bool = True

    @property
    def piped(self) -> bool:
        """Whether the keeper must see it; what only goes to a file, or nowhere, is left to the kernel."""
        return self.shown


class RankLogs:
    """The files of one attempt on one host: `<folder>/attempt_<n>/<local rank>/stdout.log` and so on."""

    def __init__(
        self, folder: Path, attempt: int, filters: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._folder = folder / f"attempt_{attempt}"
        self._filters = {key: list(words) for key, words in (filters or {}).items() if words}
        self._filtered: dict[str, TextIO] = {}

    @property
    def folder(self) -> Path:
        """Where the files of this attempt are."""
        return self._folder

    def make(self, locals_: Iterable[int]) -> None:
        """Make the folders, without what an earlier attempt of the same number left."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for local in locals_:
            (self._folder / str(local)).mkdir(parents=True)
        for stream in self._filters:
            path = self._folder / FILTERED[stream]
            self._filtered[stream] = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115

    def path(self, local: int, stream: str) -> Path:
        """The file of one stream of one rank."""
        return self._folder / str(local) / NAMES[stream]

    def error_path(self, local: int) -> Path:
        """The file in which a rank tells of its own exception, when its program is written to."""
        return self._folder / str(local) / "error.json"

    def error(self, local: int) -> str:
        """What a rank told of its own exception, as it wrote it."""
        try:
            with open(self.error_path(local), "rb") as file:
                return file.read(ERROR_FILE_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def filter(self, stream: str, prefix: str, lines: Iterable[str]) -> None:
        """Write the lines that contain one of the wanted words to the file for them."""
        if file := self._filtered.get(stream):
            words = self._filters[stream]
            found = [line for line in lines if any(word in line for word in words)]
            file.write("".join(f"{prefix}{line}\n" for line in found))

    def close(self) -> None:
        """Let the files go."""
        for file in self._filtered.values():
            file.close()
        self._filtered.clear()


class Tee:
    """A sink for one stream of one rank: its file, its last lines, and whoever is told."""

    def __init__(self, path: Path | None, take: Callable[[list[str]], None]) -> None:
        self._file: BinaryIO | None = open(path, "wb", buffering=0) if path else None  # noqa: SIM115
        self._lines = Lines(self._take_lines)
        self._take = take
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, data: bytes) -> None:
        """Take what came."""
        if self._file is not None:
            self._file.write(data)
        self._lines.feed(data)

    def end(self) -> None:
        """No more will come."""
        self._lines.end()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take_lines(self, lines: list[str]) -> None:
        self.tail.extend(lines)
        self._take(lines)


def read_tail(path: Path) -> list[str]:
    """The last lines of a file that only the rank itself wrote."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []


def read_streams(rank: Mapping[str, Any]) -> dict[str, Stream]:
    """The streams of a rank, as an order names them."""
    return {
        name: Stream(file=bool(rank["files"].get(name)), shown=bool(rank["shown"].get(name)))
        for name in ("out", "err")
    }
