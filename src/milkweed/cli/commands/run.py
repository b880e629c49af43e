"""`run`: a program as the client of a job, here or inside the allocation."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ...errors import AllocationError, SpecError
from ..arguments import JobOption, OnChangeOption
from ..render import SHORT_ID

if TYPE_CHECKING:
    from ..choose import Chosen

PYTHONS = frozenset({"python", "python3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program, ready to be started."""

    argv: tuple[str, ...]
    folder: Path


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

    The job's hosts are asked for first, if need be. The program finds its job with milkweed.job.load_current_job(); the exit code is the program's.
    """
    from ..choose import choose

    chosen = choose(job)
    client = make_client(words or (), chosen)
    if detach:
        _run_inside(chosen, client, on_change)
    else:
        _ensure_applied(chosen, on_change)
        _become(client, chosen)


def make_client(words: Sequence[str], chosen: Chosen) -> Client:
    """The program that words, or else the job file, name; it must exist before anything starts."""
    folder = Path.cwd()
    if not words:
        declared = chosen.jobfile
        if declared is None or not declared.spec.run:
            raise SpecError(
                f"job {chosen.name!r} does not say what to run",
                hint="`milkweed run train.py`, or write `run: python train.py` into the job file",
            )
        words, folder = declared.spec.run, declared.path.absolute().parent
    return Client(argv=_resolve(words, folder), folder=folder)


def _resolve(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Scripts run with the Python that milkweed runs with, where it is sure to be importable."""
    first, *rest = words
    if first in PYTHONS:
        if rest and not rest[0].startswith("-"):
            _check_script(rest[0], folder)
        return (sys.executable, *rest)
    if first.endswith(".py"):
        _check_script(first, folder)
        return (sys.executable, first, *rest)
    at = str(folder / first) if os.sep in first else first
    if (found := shutil.which(at)) is None:
        hint = f"for a Python script: python {first}" if (folder / first).is_file() else ""
        raise SpecError(
            f"there is no program {first!r}", seen=f"looked in {_places(first, folder)}", hint=hint
        )
    return (found, *rest)


def _places(first: str, folder: Path) -> str:
    return str(folder) if os.sep in first else "the folders of PATH"


def _check_script(script: str, folder: Path) -> None:
    if not (folder / script).is_file():
        raise SpecError(f"there is no file {script!r}", seen=f"looked in {folder}")


def _ensure_applied(chosen: Chosen, on_change: str | None) -> None:
    from ...plan import Action
    from .planning import approve, carry_out, open_job

    opened = open_job(chosen, on_change)
    made = approve(opened, chosen, quiet=False)
    if made.action not in {Action.REUSE, Action.NOTHING}:
        typer.echo(made.render(), err=True)
    carry_out(opened, chosen, made)


def _become(client: Client, chosen: Chosen) -> NoReturn:
    """Turn this process into the program: its signals, terminal and exit code are its own."""
    from ...worker.wire import STATE_ENV

    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(client.folder)
    env = {**os.environ, STATE_ENV: str(chosen.file.target)}
    os.execve(client.argv[0], list(client.argv), env)  # noqa: S606  no shell is wanted


def _run_inside(chosen: Chosen, client: Client, on_change: str | None) -> None:
    from ...plan import Action
    from .planning import approve, carry_out, open_job

    opened = open_job(chosen, on_change)
    os.chdir(client.folder)
    made = approve(opened, chosen, quiet=False)
    if made.action in {Action.REUSE, Action.NOTHING, Action.RESIZE}:
        raise AllocationError(
            f"job {chosen.name!r} has an allocation already, and a detached run makes its own",
            seen=made.render(),
            hint="run it without --detach, or `milkweed kill` the allocation first",
        )
    carry_out(opened, chosen, made, client.argv)
    name = chosen.name
    typer.echo(f"job {name!r} runs detached, id {(opened.apply_id or '')[:SHORT_ID]}")
    typer.echo(f"  `milkweed logs -f {name}` shows what it prints, `milkweed kill {name}` ends it")
