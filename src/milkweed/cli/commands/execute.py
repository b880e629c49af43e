"""`exec`: one command on all hosts at once, or on one, with its own exit code."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from typer.core import TyperCommand

from ..arguments import JobArgument
from ..edge import say

if TYPE_CHECKING:
    from ...hosts import Host

LOST = 255
"""The exit code of a command whose end nobody saw, as ssh has it."""
MAX_WAITING = 256
"""How many pieces of output may wait for a slow terminal before hosts wait, too."""


class ExecCommand(TyperCommand):
    """Everything after the first `--` is the command for the hosts, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the command aside, and read the rest."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["milkweed.command"] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show where the command stands."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND…"]


def execute(
    ctx: typer.Context,
    job: JobArgument = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="HOST", help="Only this host, such as trainers/3.", show_default=False
        ),
    ] = None,
) -> None:
    """Run a command on all hosts, or on one.

    The exit code is the command's own: of several hosts' the largest, 128+N after signal N, and 255
    when a host was lost meanwhile.
    """
    command: tuple[str, ...] = ctx.meta["milkweed.command"]
    if not command:
        ctx.fail("say what to run, after `--`: milkweed exec -- hostname")
    from ..choose import choose
    from ..look import require_allocation, require_hosts

    found = require_allocation(choose(job))
    backend, handle, _status = require_hosts(found)
    hosts = pick_hosts(backend.hosts(handle), host, job=found.name)
    codes = run_everywhere(hosts, command)
    raise typer.Exit(max(shell_code(code) for code in codes.values()))


def pick_hosts(hosts: Sequence[Host], label: str | None, *, job: str) -> Sequence[Host]:
    """All hosts, or the one that was named."""
    from ...errors import AllocationError, UnsupportedError
    from ...spec import suggest

    chosen = [host for host in hosts if label in (None, host.label)]
    if not chosen:
        labels = [host.label for host in hosts]
        hint = suggest(label or "", labels) if labels else "it has no hosts of its own"
        raise AllocationError(
            f"job {job!r} has no host {label!r}" if label else f"job {job!r}: no host", hint=hint
        )
    for host in chosen:
        if not host.control:
            raise UnsupportedError(f"host {host.label} takes no commands")
    return chosen


def shell_code(code: int) -> int:
    """An exit code as a shell gives it: 128+N after signal N."""
    return code if code >= 0 else 128 - code


@dataclass(frozen=True, slots=True)
class Heard:
    """Something a host said: a piece of a stream, its exit code, or that it was lost."""

    host: str
    said: tuple[str, bytes] | int | Exception


def run_everywhere(hosts: Sequence[Host], command: Sequence[str]) -> dict[str, int]:
    """Run a command on hosts in parallel and print what it prints; exit codes by host."""
    heard: queue.Queue[Heard] = queue.Queue(MAX_WAITING)
    for host in hosts:
        # Daemons: an interrupt leaves at once, and hosts end commands whose client has gone.
        threading.Thread(target=_run_on, args=(host, command, heard.put), daemon=True).start()
    printer = Printer(prefixed=len(hosts) > 1)
    codes: dict[str, int] = {}
    while len(codes) < len(hosts):
        item = heard.get()
        if isinstance(item.said, tuple):
            printer.take(item.host, *item.said)
            continue
        printer.finish(item.host)
        if isinstance(item.said, int):
            codes[item.host] = item.said
        else:
            say(f"{item.host}: {item.said}")
            codes[item.host] = LOST
    _tell_failed(codes)
    return codes


def _run_on(host: Host, command: Sequence[str], put: Any) -> None:
    from ...control import run_command

    try:
        for said in run_command(host.control, host.label, command):
            put(Heard(host.label, said))
    except Exception as error:  # noqa: BLE001  the edge of a thread: the main one must hear of its end
        put(Heard(host.label, error))


def _tell_failed(codes: dict[str, int]) -> None:
    """With several hosts one exit code cannot tell which of them failed."""
    failed = [f"{host}={shell_code(code)}" for host, code in codes.items() if code]
    if failed and len(codes) > 1:
        say(
            f"exit codes: {', '.join(sorted(failed))}; the others 0"
            if len(failed) < len(codes)
            else f"exit codes: {', '.join(sorted(failed))}"
        )


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
