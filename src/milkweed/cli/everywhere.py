"""One command on many hosts at once: what each prints, and how each ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import typer

from ..control import run_command
from ..errors import AllocationError, MilkweedError, UnsupportedError
from ..hosts import Host, natural_key
from ..spec import suggest
from .edge import say

LOST = 255
"""The exit code of a command whose end nobody saw, as ssh has it."""
MAX_WAITING = 256
"""How many pieces of output may wait for a slow terminal before hosts wait, too."""


def pick_hosts(hosts: Sequence[Host], label: str | None, *, job: str) -> Sequence[Host]:
    """All hosts, or the one that was named."""
    chosen = [host for host in hosts if label in (None, host.label)]
    if not hosts:
        raise UnsupportedError(f"job {job!r} has no hosts of its own to run commands on")
    if not chosen:
        hint = suggest(label or "", [host.label for host in hosts])
        raise AllocationError(f"job {job!r} has no host {label!r}", hint=hint)
    for host in chosen:
        if not host.control:
            raise UnsupportedError(f"host {host.label} takes no commands")
    return chosen


def shell_code(code: int) -> int:
    """An exit code as a shell gives it: 128+N after signal N."""
    return code if code >= 0 else 128 - code


@dataclass(frozen=True, slots=True)
class Heard:
    """Something a host said: a piece of a stream, its exit code, what went wrong, or nothing more."""

    host: str
    said: tuple[str, bytes] | int | MilkweedError | None


def run_everywhere(hosts: Sequence[Host], command: Sequence[str]) -> dict[str, int]:
    """Run a command on hosts in parallel and print what it prints; exit codes by host."""
    heard: queue.Queue[Heard] = queue.Queue(MAX_WAITING)
    for host in hosts:
        # Daemons: an interrupt leaves at once, and hosts end commands whose client has gone.
        threading.Thread(target=_run_on, args=(host, command, heard.put), daemon=True).start()
    printer = Printer(prefixed=len(hosts) > 1)
    codes: dict[str, int] = {}
    talking = {host.label for host in hosts}
    while talking:
        item = heard.get()
        if isinstance(item.said, tuple):
            printer.take(item.host, *item.said)
        elif isinstance(item.said, int):
            codes[item.host] = item.said
        elif item.said is not None:
            say(f"{item.host}: {item.said}")
        else:
            printer.finish(item.host)
            talking.discard(item.host)
    codes = {host.label: codes.get(host.label, LOST) for host in hosts}
    _tell_failed(codes)
    return codes


def _run_on(host: Host, command: Sequence[str], put: Callable[[Heard], None]) -> None:
    try:
        for said in run_command(host.control, host.label, command):
            put(Heard(host.label, said))
    except MilkweedError as error:
        put(Heard(host.label, error))
    finally:
        put(Heard(host.label, None))


def _tell_failed(codes: Mapping[str, int]) -> None:
    """With several hosts one exit code cannot tell which of them failed."""
    failed = [f"{host}={shell_code(code)}" for host, code in codes.items() if code]
    if failed and len(codes) > 1:
        others = "; the others 0" if len(failed) < len(codes) else ""
        say(f"exit codes: {', '.join(sorted(failed, key=natural_key))}{others}")


@dataclass
class Printer:
    """Writes what hosts print: bytes as they come from one, lines with a prefix from several."""

    prefixed: bool
    _rest: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])

    def take(self, host: str, stream: str, data: bytes) -> None:
        """Print a piece of a stream."""
        if not self.prefixed:
            self._write(stream, data)
            return
        *lines, rest = (self._rest.pop((host, stream), b"") + data).split(b"\n")
        self._rest[host, stream] = rest
        self._write(stream, b"".join(_mark(host, lines)))

    def finish(self, host: str) -> None:
        """Print the last lines of a host though they have no end."""
        for key in [key for key in self._rest if key[0] == host]:
            if rest := self._rest.pop(key):
                self._write(key[1], b"".join(_mark(host, [rest])))

    @staticmethod
    def _write(stream: str, data: bytes) -> None:
        if data:
            file: BinaryIO = typer.get_binary_stream("stdout" if stream == "out" else "stderr")
            file.write(data)
            file.flush()


def _mark(host: str, lines: Sequence[bytes]) -> Iterator[bytes]:
    return (b"[%s] %s\n" % (host.encode(), line) for line in lines)
