"""What jobs of Flux print: followed while they run, and kept in the run's folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...backends.flux import commands
from ...errors import BackendError, UnreachableError
from .flux_inside import FOLLOW, Lines, broke_down, follow_words, split_frame

POLL_S = 0.1
MAX_FOLLOWED = 24
"""How many jobs are followed at once; what the others print is shown when they end."""
_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A job that prints."""

    label: str
    job_id: int
    uri: str
    is_nested: bool = False
    """Whether it is an instance of its own: then it has brokers, and no tasks."""
    inner: frozenset[str] = frozenset()
    """The names of the steps inside it, whose lines it prints under their names."""

    def words(self) -> list[str]:
        """The words that print what it printed so far, as Flux recorded it."""
        return ["job", "eventlog", "--format=json", "--path=output", str(self.job_id)]

    def follow_words(self, way: int) -> list[str]:
        """The words that print it as it comes."""
        return ["job", *follow_words(way, str(self.job_id))]

    def split(self, line: bytes) -> tuple[str, bytes]:
        """Whose line it is, and the line."""
        inner, text = split_frame(line)
        return (inner, text) if inner in self.inner else (self.label, line)


def fetch_events(source: Source) -> list[bytes]:
    """All that a job has printed so far, as Flux recorded it; nothing before it starts."""
    try:
        said = commands.run(source.words(), uri=source.uri)
    except UnreachableError:
        raise
    except BackendError:  # it has printed nothing, and never will if it did not start
        return []
    return [text.encode() for text in said.split("\n") if text]


def fetch_output(source: Source) -> list[bytes]:
    """All lines that a job has printed so far."""
    lines = Lines(labels=not source.is_nested)
    found = [line for text in fetch_events(source) for line in lines.add(text)]
    return [*found, *lines.end()]


class Follower:
    """Reads what one job prints, as it comes, without ever waiting for it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines = Lines(labels=not source.is_nested)
        self._rest = b""
        self._count = self._skipped = 0
        self._ended = False
        self._way = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        words = self._source.follow_words(self._way)
        process = commands.start(words, uri=self._source.uri, tied=True)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process

    def read(self) -> list[bytes]:
        """The lines that came since; none when nothing did."""
        found: list[bytes] = []
        while not self._ended and self._process.stdout is not None:
            try:
                data = os.read(self._process.stdout.fileno(), _CHUNK)
            except BlockingIOError:
                break
            *texts, self._rest = (self._rest + data).split(b"\n")
            new = texts[self._skipped :]
            self._skipped -= len(texts) - len(new)
            self._count += len(new)
            found += [line for text in new for line in self._lines.add(text)]
            self._ended = not data and not self._go_on()
        return found

    def _go_on(self) -> bool:
        """Follow in another way where this one broke down; whether there is one."""
        if not broke_down(self._process.wait()) or self._way + 1 >= len(FOLLOW):
            return False
        self._let_go()
        self._way += 1
        self._skipped, self._rest = self._count, b""
        self._process = self._start()
        return True

    def finish(self) -> list[bytes]:
        """The job is over: all that is left of what it printed.

        Following an output that ends just then may miss its end, so the rest is read anew.
        """
        found = self.read()
        self.close()
        rest = fetch_events(self._source)[self._count :]
        found += [line for text in rest for line in self._lines.add(text)]
        return [*found, *self._lines.end()]

    def close(self) -> None:
        """Let the process go."""
        self._ended = True
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Log:
    """The logs of one job in the run's folder: its own, and those of the steps inside it."""

    def __init__(self, folder: Path, source: Source) -> None:
        self._folder = folder
        self._source = source
        self._begun: set[str] = set()

    @property
    def is_saved(self) -> bool:
        """Whether all of it is there."""
        return self._sign.exists()

    @property
    def _sign(self) -> Path:
        return self._folder / f".{make_label(self._source.label)}.saved"

    def add(self, lines: list[bytes]) -> None:
        """Write more lines, each to the log that it belongs to."""
        parts: dict[str, list[bytes]] = {}
        for line in lines:
            label, text = self._source.split(line)
            parts.setdefault(label, []).append(text)
        for label, texts in parts.items():
            self._write(label, b"".join(text + b"\n" for text in texts))

    def _write(self, label: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        if label not in self._begun:  # an earlier driver wrote a part of the same
            flags |= os.O_TRUNC
            self._begun.add(label)
        path = self._folder / f"{make_label(label)}.log"
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)

    def close(self) -> None:
        """All of it is there."""
        self._sign.touch(mode=0o600)


def make_label(step_id: str) -> str:
    """How the files of a step are called."""
    return step_id.replace("/", "+")


class Keeper:
    """Keeps what the jobs of a run print, while somebody drives it."""

    def __init__(self) -> None:
        self._followed: dict[str, tuple[Follower, Log]] = {}

    def follow(self, source: Source, folder: Path) -> None:
        """Follow one more job, unless many are followed already."""
        if source.label not in self._followed and len(self._followed) < MAX_FOLLOWED:
            self._followed[source.label] = (Follower(source), Log(folder, source))

    def pump(self) -> None:
        """Write down what came since."""
        for follower, log in self._followed.values():
            log.add(follower.read())

    def save(self, source: Source, folder: Path) -> None:
        """A job is over: keep all that it printed, as long as the instance can be asked."""
        follower, log = self._followed.pop(source.label, (None, Log(folder, source)))
        if not log.is_saved:
            with contextlib.suppress(UnreachableError):
                log.add(follower.finish() if follower else fetch_output(source))
                log.close()

    def close(self) -> None:
        """Follow nobody any more; what came until now is written down."""
        self.pump()
        for follower, _ in self._followed.values():
            follower.close()
        self._followed = {}


def read_output(
    sources: Sequence[Source],
    *,
    follow: bool,
    alive: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[str, str]]:
    """What jobs print, as pairs of a label and a line, asked of the instance itself."""
    if not follow:
        for source in sources:
            yield from _tell(source, fetch_output(source))
        return
    followed = {source: Follower(source) for source in sources}
    try:
        while alive():
            for source, follower in followed.items():
                yield from _tell(source, follower.read())
            sleep(POLL_S)
        for source, follower in followed.items():
            yield from _tell(source, follower.finish())
    finally:
        for follower in followed.values():
            follower.close()


def _tell(source: Source, lines: list[bytes]) -> Iterator[tuple[str, str]]:
    for line in lines:
        label, text = source.split(line)
        yield label, text.decode(errors="replace")
