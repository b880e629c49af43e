"""`jobspec status`, `wait`, `logs`, `cancel` and `clean`: runs, from any other program and later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import MilkweedError
from ..arguments import JsonOption
from ..edge import leave_with_reader, say
from ..render import SHORT_ID, print_json, render_since, render_table
from .jobspec_options import (
    OnInterruptOption,
    RunArgument,
    complete_run,
    open_run,
    tell_failures,
)

if TYPE_CHECKING:
    from ...jobspec import Run
    from ...jobspec.progress import Progress

_OLD = "7d"


def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The beginning of a run's id; else all runs are listed.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how a run and each of its steps is. Looking starts and ends nothing.

    Of a run that is over and that nobody drives, it removes the secrets, and what it archived in Flux.
    """
    if run is None:
        _list(as_json=as_json)
        return
    place, found = open_run(run)
    progress = place.status(found)
    if as_json:
        print_json(describe(found, progress))
        return
    typer.echo(
        f"{found.plan.name or found.plan.source or 'a jobspec'} on {found.plan.transformer}: "
        f"{word_of(found, progress)}, {render_since(found.created)} old, id {found.id[:SHORT_ID]}"
    )
    rows = [
        ("", step_id, entry.status.state.value, _detail(entry.status))
        for step_id, entry in progress.entries.items()
    ]
    typer.echo(render_table(rows, paint=2))


def _detail(status: Any) -> str:
    code = f"exit code {status.code}" if status.code else ""
    return ": ".join(part for part in (code, status.reason) if part)


def word_of(found: Run, progress: Progress) -> str:
    """How a whole run is, in a word or two."""
    from ...jobspec.progress import CANCELLED, State

    code = progress.exit_code()
    if progress.over:
        return (
            "done"
            if not code
            else "cancelled"
            if code == CANCELLED
            else f"failed, exit code {code}"
        )
    states = {entry.status.state for entry in progress.entries.values()}
    if State.UNKNOWN in states:
        return "unknown"
    if State.WAITING in states and not found.is_driven():
        return "unknown, nobody carries it on"
    return "running" if states - {State.WAITING, State.PENDING} else "pending"


def describe(found: Run, progress: Progress) -> dict[str, Any]:
    """A run as data."""
    return {
        "run": found.id,
        "name": found.plan.name,
        "source": found.plan.source,
        "transformer": found.plan.transformer,
        "created": found.created,
        "status": word_of(found, progress),
        "over": progress.over,
        "exit_code": progress.exit_code() if progress.over else None,
        "steps": [
            {
                "id": step_id,
                "state": entry.status.state.value,
                "exit_code": entry.status.code,
                "reason": entry.status.reason,
            }
            for step_id, entry in progress.entries.items()
        ],
    }


def look(found: Run) -> Progress:
    """How a run is; where nobody can be asked any more, what its journal says."""
    from ...jobspec.discovery import load_transformer

    progress = found.progress()
    if progress.over:
        return progress
    try:
        return load_transformer(found.plan.transformer, **found.plan.settings).status(found)
    except MilkweedError as error:
        say(f"run {found.id[:SHORT_ID]}: {error}")
        return progress


def _list(*, as_json: bool) -> None:
    from ...jobspec.runs import load_runs

    seen = [(found, look(found)) for found in load_runs()]
    if as_json:
        print_json([describe(found, progress) for found, progress in seen])
        return
    rows = [_row(found, progress) for found, progress in seen]
    if rows:
        header = ("RUN", "TRANSFORMER", "STATUS", "STEPS", "AGE", "WHAT")
        typer.echo(render_table(rows, header, paint=2))
    else:
        say("no run is recorded")


def _row(found: Run, progress: Progress) -> tuple[str, ...]:
    over = sum(entry.status.state.over for entry in progress.entries.values())
    return (
        found.id[:SHORT_ID],
        found.plan.transformer,
        word_of(found, progress),
        f"{over}/{len(progress.entries)}",
        render_since(found.created),
        found.plan.name or found.plan.source or "-",
    )


def wait(
    run: RunArgument,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long to wait, such as 90s or 2h; then nothing is cancelled.",
            show_default=False,
        ),
    ] = None,
    on_interrupt: OnInterruptOption = "keep",
) -> None:
    """Wait until a run is over; the exit code is that of its work.

    A run that lost whoever carried it on is carried on first.
    """
    from ...jobspec.runner import ensure_driven
    from ...units import parse_duration
    from .jobspec import INTERRUPTED, settle_interrupted

    timeout_s = None if timeout is None else parse_duration(timeout, field="--timeout")
    place, found = open_run(run)
    try:
        ensure_driven(place, found)
        code = place.wait(found, timeout_s)
    except KeyboardInterrupt:
        settle_interrupted(place, found, on_interrupt)
        raise typer.Exit(INTERRUPTED) from None
    tell_failures(found, found.progress())
    raise typer.Exit(code)


def logs(
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until the run is over.")
    ] = False,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="STEP", help="Only this step or group.", show_default=False),
    ] = None,
) -> None:
    """Print what the work of a run has written. Each line has its step before it."""
    from ...jobspec.looking import follow_logs, read_logs

    place, found = open_run(run)
    if follow:
        leave_with_reader()
    lines = follow_logs(place, found, step) if follow else read_logs(place, found, step)
    for label, line in lines:
        typer.echo(f"[{label}] {line}")


def cancel(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="The beginnings of runs' ids.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Cancel every run that is not over.")
    ] = False,
) -> None:
    """End whatever of a run is not over. Over already is fine."""
    from ...jobspec.runs import load_runs

    if everything == bool(runs):
        ctx.fail("give RUNs or --all")
    names = [each.id for each in load_runs() if not each.progress().over] if everything else runs
    failed = 0
    for name in names or ():
        try:
            place, found = open_run(name)
            if not found.progress().over:
                place.cancel(found)
            typer.echo(f"{found.id[:SHORT_ID]}: {word_of(found, found.progress())}")
        except MilkweedError as error:
            say(str(error))
            failed += 1
    if failed:
        raise typer.Exit(1)


def clean(
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Those that were over for so long; 0s is all.")
    ] = _OLD,
) -> None:
    """Forget runs that are over, with their files and logs. What is not over stays."""
    from ...jobspec.looking import note_ends
    from ...jobspec.runs import load_runs, remove_if_over
    from ...units import parse_duration

    zero = older_than.strip() in {"0", "0s"}
    age_s = 0.0 if zero else parse_duration(older_than, field="--older-than")
    before_s = time.time() - age_s
    count = 0
    for found in load_runs():
        try:
            note_ends(found)
            count += remove_if_over(found, before_s if age_s else float("inf"))
        except MilkweedError as error:
            say(f"run {found.id[:SHORT_ID]} stays: {error.what}")
    typer.echo(f"removed {count} runs")
