"""Forking children, gathering what they print, and ending whole trees of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from . import serve, wire

HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
MAX_LINE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
DRAIN_READS = 5
"""As many as take all that a pipe can hold, and see its end: whoever goes on writing is not followed for ever."""
TAIL_LINES = 40
ENGINE_BANNER = "Monarch internal logs are being written to"
"""The engine's first line: in the file, but never what explains an error."""


@dataclass(eq=False, repr=False)
class Child:
    """One forked process: an engine server, a proc, a command, or the batch client."""

    kind: str
    host: str
    pid: int
    rank: str = ""
    client: str = ""
    on_exit: Callable[[int], None] = lambda _status: None
    stopping: bool = False


def fork(
    run: Callable[[int], int],
    *,
    name: str,
    env: Mapping[str, str],
    cwd: str,
    outputs: tuple[int, int],
    keep_fd: int = -1,
    umask: int | None = None,
) -> int:
    """Fork a child that becomes its own process and runs; the child never returns here.

    Signals wait until the child has handlers of its own: with those of its parent it would tell the parent.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    code = 1
    try:
        serve.name_process(name)
        serve.die_with_parent()
        keep_fd = serve.become(env, cwd, *outputs, keep_fd)
        if umask is not None:
            os.umask(umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = run(keep_fd)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            os.write(2, stop.code.encode() + b"\n")
    except BaseException:  # noqa: BLE001  a child must never return into the keeper's loop
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def execute(argv: list[str], env: Mapping[str, str]) -> int:
    """Turn a fresh fork into a command; returns an exit code only when that cannot be."""
    # As a shell would start it: Python ignores SIGPIPE, and what is ignored now a shell could not trap.
    for number in (signal.SIGPIPE, signal.SIGINT, *wire.PROGRAM_SIGNALS):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, dict(env))  # noqa: S606  a command as it was given, no shell between
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


class Sink(Protocol):
    """Where what a child prints goes."""

    def feed(self, data: bytes) -> None:
        """Take what came."""
        ...

    def end(self) -> None:
        """No more will come."""
        ...


class Output:
    """One stream of one child, handed on as it comes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.read_fd, self._pump)
        self._paused = False

    def pause(self) -> None:
        """Take nothing for a while: whoever writes waits when the pipe is full."""
        if not self._paused and self.read_fd >= 0:
            self._paused = True
            self._loop.remove_reader(self.read_fd)

    def resume(self) -> None:
        """Go on."""
        if self._paused and self.read_fd >= 0:
            self._paused = False
            self._loop.add_reader(self.read_fd, self._pump)

    def close_writer(self) -> None:
        """Leave the writing end to the child, so that its end is seen."""
        os.close(self.write_fd)

    def _pump(self) -> bool:
        try:
            data = os.read(self.read_fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._sink.feed(data)
        else:
            self._close()
        return bool(data)

    def drain(self) -> None:
        """Take what is there now, though it is paused, without waiting for more."""
        for _ in range(DRAIN_READS):
            if self.read_fd < 0 or not self._pump():
                return

    def _close(self) -> None:
        self._loop.remove_reader(self.read_fd)
        os.close(self.read_fd)
        self.read_fd = -1
        self._sink.end()


class Lines:
    """A sink that cuts bytes into lines of text."""

    def __init__(self, take: Callable[[list[str]], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Hand on the whole lines; keep the unfinished one unless it is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        if lines:
            self._take([line.decode(errors="replace") for line in lines])

    def end(self) -> None:
        """Hand on the last line though it has no end."""
        if self._rest:
            self._take([self._rest.decode(errors="replace")])
            self._rest = b""


@dataclass(eq=False, repr=False)
class HostLog:
    """One host's log file and its last lines."""

    path: str
    tail: list[str] = field(default_factory=list[str])
    _file: BinaryIO | None = None

    def write(self, prefix: str, lines: Iterable[str]) -> None:
        """Append lines, and remember the last ones for error messages."""
        if self._file is None:
            self._file = os.fdopen(
                os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0
            )
        marked = [f"{prefix}{line}" for line in lines]
        self._file.write("".join(f"{line}\n" for line in marked).encode())
        telling = [line for line in marked if not line.startswith(ENGINE_BANNER)]
        self.tail = [*self.tail, *telling][-TAIL_LINES:]

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None


def decode_status(status: int) -> int:
    """An exit code as `subprocess` gives it: negative for a signal."""
    return os.waitstatus_to_exitcode(status)


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def parents() -> dict[int, int]:
    """The parent of every process that can be seen."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    return found


def tree(roots: Iterable[int]) -> list[int]:
    """Processes and all below them, children before their parents."""
    below: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        below.setdefault(parent, []).append(pid)
    order: list[int] = []
    todo = list(roots)
    while todo:
        pid = todo.pop()
        order.append(pid)
        todo.extend(below.get(pid, ()))
    return order[::-1]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; those that are gone are fine."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
