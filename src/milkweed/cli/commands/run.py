"""`run`: a program as the client of a job, here or inside the allocation."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ...errors import AllocationError
from ..arguments import JobOption, OnChangeOption
from ..render import SHORT_ID

if TYPE_CHECKING:
    from ...job.base import JobTrait
    from ..choose import Chosen
    from ..client import Client


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]",
            help="The program and its arguments; else what the job file says under `run`.",
            show_default=False,
        ),
    ] = None,
    job: JobOption = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Run it inside the allocation, and do not wait for it."
        ),
    ] = False,
    on_change: OnChangeOption = None,
) -> None:
    """Run a program as the client of a job.

    The job's hosts are asked for first, if need be. The program finds its job with
    milkweed.job.load_current_job(); the exit code is the program's.
    """
    from ..choose import choose
    from ..client import make_client

    chosen = choose(job)
    client = make_client(words or (), chosen)
    if detach:
        _run_inside(chosen, client, on_change)
    else:
        ensure_applied(chosen, on_change)
        _become(client, chosen)


def ensure_applied(chosen: Chosen, on_change: str | None) -> JobTrait:
    """The job, whose hosts were asked for if need be."""
    from ...plan import Action
    from .planning import approve, carry_out, open_job

    opened = open_job(chosen, on_change)
    made = approve(opened, chosen, quiet=False)
    if made.action not in {Action.REUSE, Action.NOTHING}:
        typer.echo(made.render(), err=True)
    carry_out(opened, chosen, made)
    return opened


def _become(client: Client, chosen: Chosen) -> NoReturn:
    """Turn this process into the program: its signals, terminal and exit code are its own."""
    from ...worker.wire import STATE_ENV

    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(client.folder)
    env = {**os.environ, STATE_ENV: str(chosen.file.target)}
    os.execve(client.argv[0], list(client.argv), env)  # noqa: S606  no shell is wanted


def _run_inside(chosen: Chosen, client: Client, on_change: str | None) -> None:
    from ...job.held import NEW
    from .planning import approve, carry_out, open_job

    opened = open_job(chosen, on_change)
    os.chdir(client.folder)
    made = approve(opened, chosen, quiet=False)
    if made.action not in NEW:  # a client starts with an allocation, and at no other time
        raise AllocationError(
            f"job {chosen.name!r} has an allocation already, and a detached run makes its own",
            seen=made.render(),
            hint="run it without --detach, or `milkweed kill` the allocation first",
        )
    carry_out(opened, chosen, made, client.argv)
    name = chosen.name
    typer.echo(f"job {name!r} runs detached, id {(opened.apply_id or '')[:SHORT_ID]}")
    typer.echo(f"  `milkweed logs -f {name}` shows what it prints, `milkweed kill {name}` ends it")
