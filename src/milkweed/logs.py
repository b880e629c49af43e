"""Lines of many hosts as one stream: following files, and printing without drowning the reader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TextIO

POLL_S = 0.1
CHUNK_BYTES = 256 * 1024
WINDOW_S = 0.1
MERGE_FROM = 4
"""The same line from this many hosts of a mesh within a window is printed once."""
MAX_LINES_PER_SECOND = 200
"""Above this rate a mesh's lines are counted instead of printed."""


def read_file(path: str, offset: int) -> bytes:
    """What a file has from an offset on, or the first part of it; nothing when there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""


def follow_files(
    files: Mapping[str, str],
    *,
    follow: bool,
    alive: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
    read: Callable[[str, int], bytes] = read_file,
) -> Iterator[tuple[str, str]]:
    """Yield (label, line) from files as they grow; without `follow`, what is there now."""
    offsets = dict.fromkeys(files, 0)
    while True:
        last_round = not follow or not alive()
        quiet = True
        for label, path in files.items():
            for line, offset in _read_lines(read, path, offsets[label], partial=last_round):
                offsets[label] = offset
                quiet = False
                yield label, line
        if last_round:
            return
        if quiet:
            sleep(POLL_S)


def _read_lines(
    read: Callable[[str, int], bytes], path: str, offset: int, *, partial: bool
) -> Iterator[tuple[str, int]]:
    """Whole lines with the offsets behind them; at the end the unfinished one if it is wanted."""
    rest = b""
    while data := read(path, offset + len(rest)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            offset += len(line) + 1
            yield line.decode(errors="replace"), offset
    if rest and partial:
        yield rest.decode(errors="replace"), offset + len(rest)


def read_tail(path: str | os.PathLike[str], lines: int = 20, max_bytes: int = 64 * 1024) -> str:
    """The last lines of a file, for error messages; empty when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One line that a proc printed."""

    host: str
    rank: str
    stream: str
    text: str

    @property
    def mesh(self) -> str:
        """The mesh of its host."""
        return self.host.rpartition("/")[0] or self.host

    @property
    def prefix(self) -> str:
        """Mesh, host and rank, as they stand before the line: `[trainers/1 r3]`."""
        return f"[{self.host} r{self.rank}]" if self.rank else f"[{self.host}]"


@dataclass
class Merger:
    """Turns lines of many hosts into lines for one terminal; pure, with time given.

    Lines wait up to WINDOW_S. The same line from MERGE_FROM or more hosts of a mesh is printed once, with
    their number. A mesh that prints more than MAX_LINES_PER_SECOND is cut, and told how much was left out.
    """

    emit: Callable[[str, str], None]
    """Called with the stream («out» or «err») and a whole line."""
    _waiting: list[Printed] = field(default_factory=list[Printed])
    _opened_s: float = 0.0
    _budget: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    _left_out: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, line: Printed, now_s: float) -> None:
        """Take one line."""
        if not self._waiting:
            self._opened_s = now_s
        self._waiting.append(line)
        if now_s - self._opened_s >= WINDOW_S:
            self.flush(now_s)

    @property
    def due_s(self) -> float | None:
        """When the waiting lines must be flushed; None when there are none."""
        return self._opened_s + WINDOW_S if self._waiting else None

    def flush(self, now_s: float) -> None:
        """Print what waits."""
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[str, str, str], list[Printed]] = {}
        for line in waiting:
            groups.setdefault((line.mesh, line.stream, line.text), []).append(line)
        merged = {key for key, group in groups.items() if _hosts(group) >= MERGE_FROM}
        done: set[tuple[str, str, str]] = set()
        for line in waiting:
            key = (line.mesh, line.stream, line.text)
            if key not in merged:
                self._print(line.mesh, line.stream, f"{line.prefix} {line.text}", now_s)
            elif key not in done:
                done.add(key)
                text = f"[{line.mesh}: {_hosts(groups[key])} hosts] {line.text}"
                self._print(line.mesh, line.stream, text, now_s)

    def finish(self, now_s: float) -> None:
        """Print what waits, and what was left out."""
        self.flush(now_s)
        for mesh in list(self._left_out):
            self._tell_left_out(mesh)

    def _print(self, mesh: str, stream: str, text: str, now_s: float) -> None:
        since_s, used = self._budget.get(mesh, (now_s, 0))
        if now_s - since_s >= 1.0:
            since_s, used = now_s, 0
            self._tell_left_out(mesh)
        self._budget[mesh] = since_s, used + 1
        if used >= MAX_LINES_PER_SECOND:
            self._left_out[mesh] = self._left_out.get(mesh, 0) + 1
        else:
            self.emit(stream, text)

    def _tell_left_out(self, mesh: str) -> None:
        if count := self._left_out.pop(mesh, 0):
            self.emit("err", f"[{mesh}] … {count} more lines, all of them in `milkweed logs`")


def _hosts(group: list[Printed]) -> int:
    return len({line.host for line in group})


def write(file: TextIO | None, text: str) -> None:
    """Write to one of this program's own streams, unless it has none, or nobody reads any more."""
    if file is None:
        return
    try:
        file.write(text)
        file.flush()
    except (OSError, ValueError):
        return
