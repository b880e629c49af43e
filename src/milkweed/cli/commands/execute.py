"""`exec`: one command on all hosts at once, or on one, with its own exit code."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..arguments import JobArgument
from ..edge import leave_with_reader
from ..plain import PlainCommand


class ExecCommand(PlainCommand):
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
    from ..everywhere import pick_hosts, run_everywhere, shell_code
    from ..look import require_allocation, require_hosts

    found = require_allocation(choose(job))
    backend, handle, _status = require_hosts(found)
    hosts = pick_hosts(backend.hosts(handle), host, job=found.name)
    leave_with_reader()
    codes = run_everywhere(hosts, command)
    raise typer.Exit(max(shell_code(code) for code in codes.values()))
