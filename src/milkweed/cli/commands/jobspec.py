"""`jobspec`: files that describe steps once: checked, shown, converted, run, and looked after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ...errors import JobspecError, MilkweedError, StateError
from ..arguments import JsonOption
from ..edge import INTERRUPTED, Commands, say
from ..lazy import JOBSPEC_HELP
from ..plain import PlainCommand
from ..render import SHORT_ID, print_json, render_table
from . import jobspec_runs, jobspec_serve
from .jobspec_options import (
    DialectOption,
    FileArgument,
    OnInterruptOption,
    SettingsOption,
    TransformerOption,
    open_transformer,
    tell_failures,
)

if TYPE_CHECKING:
    from ...jobspec import Graph, Plan, Run, TransformerBase

app = typer.Typer(
    cls=Commands,
    help=JOBSPEC_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("run", cls=PlainCommand)
def run(  # noqa: PLR0917  options of a command line
    ctx: typer.Context,
    file: FileArgument,
    transformer: TransformerOption = "flux",
    settings: SettingsOption = None,
    dialect: DialectOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until all work is over, and show its output.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="FILE is a plan that `render --json` printed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be submitted, as `render` does.")
    ] = False,
    on_interrupt: OnInterruptOption = "ask",
) -> None:
    """Run a jobspec. The exit code is that of its work.

    Steps that say `wait` are waited for; the rest goes on by itself. Nothing is submitted before
    the whole file has been checked.
    """
    if plan:
        if settings or dialect or is_given(ctx, "transformer"):
            ctx.fail("--plan has its own transformer, settings and dialect")
        place, made = load_plan(file)
    else:
        place = open_transformer(transformer, settings)
        made = place.render(_load(file, dialect))
    if dry_run:
        typer.echo(made.render())
        return
    raise typer.Exit(carry_out(place, made, wait=wait, on_interrupt=on_interrupt))


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _load(file: str, dialect: str | None) -> Graph:
    from ...jobspec.source import load_jobspec, parse_jobspec

    if file != "-":
        return load_jobspec(file, dialect=dialect)
    import sys

    return parse_jobspec(sys.stdin.read(), "-", dialect=dialect)


def load_plan(path: str) -> tuple[TransformerBase, Plan]:
    """A plan that was shown, and what carries it out."""
    import json
    import sys
    from pathlib import Path

    from ...errors import StateCorruptError
    from ...jobspec.plan import parse_plan

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
        made = parse_plan(json.loads(text))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, StateCorruptError) as error:
        raise JobspecError(
            f"{path} is no plan of a jobspec",
            seen=f"{type(error).__name__}: {error}",
            hint="`milkweed jobspec render --json FILE` prints one",
        ) from None
    from ...jobspec.discovery import load_transformer

    return load_transformer(made.transformer, **made.settings), made


def carry_out(place: TransformerBase, made: Plan, *, wait: bool, on_interrupt: str) -> int:
    """Run a plan, show what it prints, and tell how it is; the exit code."""
    place.leaves = True
    found = None
    try:
        found = place.run(made, wait=wait, show=lambda label, line: typer.echo(f"[{label}] {line}"))
    except KeyboardInterrupt:
        pass
    except BaseException:  # whatever it was, what was begun is not forgotten
        _tell_recorded(made.run_id)
        raise
    if found is None:
        _interrupted(place, made.run_id, on_interrupt)
    progress = found.progress()
    tell_failures(found, progress)
    short = found.id[:SHORT_ID]
    if progress.over:
        say(f"run {short} is over: {'done' if progress.exit_code() == 0 else 'not all is done'}")
    elif wait:
        say(f"run {short} lost whoever carried it on; `milkweed jobspec wait {short}` goes on")
        return progress.exit_code() or 1
    else:
        say(f"run {short} goes on; `milkweed jobspec status {short}` tells how it is")
    return progress.exit_code()


def _tell_recorded(run_id: str) -> None:
    """What was begun before an error is not forgotten."""
    from ...jobspec.runs import runs_folder

    short = run_id[:SHORT_ID]
    if (runs_folder() / run_id / "journal.jsonl").exists():
        say(f"run {short} is not over: `milkweed jobspec wait {short}` goes on with it,")
        say(f"`milkweed jobspec cancel {short}` ends it")


def _interrupted(place: TransformerBase, run_id: str, word: str) -> NoReturn:
    """Ctrl-C: what becomes of the run is the person's word, and is told."""
    from ...jobspec.runs import find_run

    try:
        found = find_run(run_id)
    except StateError:
        say("interrupted; nothing was submitted")
        raise typer.Exit(INTERRUPTED) from None
    settle_interrupted(place, found, word)
    raise typer.Exit(INTERRUPTED)


def settle_interrupted(place: TransformerBase, found: Run, word: str) -> None:
    """Cancel a run or see to it that it goes on."""
    short = found.id[:SHORT_ID]
    if word == "ask":
        word = _ask(short)
    if word == "cancel":
        say(f"interrupted; run {short} is being cancelled")
        place.cancel(found)
        return
    from ...jobspec.runner import ensure_driven

    ensure_driven(place, found)
    say(f"interrupted; run {short} goes on")
    say(f"`milkweed jobspec wait {short}` waits again, `milkweed jobspec cancel {short}` ends it")


def _ask(short: str) -> str:
    import sys

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "keep"
    try:
        answer = input(f"\nmilkweed: let run {short} go on? [Y/n] ")
    except (KeyboardInterrupt, EOFError):
        return "keep"
    return "cancel" if answer.strip().lower() in {"n", "no"} else "keep"


@app.command("validate", cls=PlainCommand)
def validate(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Jobspecs.")],
    transformer: TransformerOption = "",
    settings: SettingsOption = None,
    dialect: DialectOption = None,
) -> None:
    """Check jobspecs. With -t, check whether a transformer can carry them out, too. Nothing is submitted."""
    if settings and not transformer:
        ctx.fail("-s is for a transformer: name it with -t")
    place = open_transformer(transformer, settings) if transformer else None
    failed = 0
    for file in files:
        try:
            found = _load(file, dialect)
            if place is not None:
                place.check(found)
        except MilkweedError as error:
            say(str(error))
            failed += 1
        else:
            count = sum(1 for _ in found.walk())
            where = f", and {transformer} can carry it out" if place else ""
            typer.echo(f"{file}: {found.dialect}, {count} steps{where}")
    if failed:
        raise typer.Exit(1)


@app.command("render", cls=PlainCommand)
def render(
    file: FileArgument,
    transformer: TransformerOption = "flux",
    settings: SettingsOption = None,
    dialect: DialectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show exactly what would be submitted. `run --plan` carries out what --json prints."""
    made = open_transformer(transformer, settings).render(_load(file, dialect))
    if as_json:
        print_json(made.to_json())
    else:
        typer.echo(made.render())


@app.command("convert", cls=PlainCommand)
def convert(
    file: FileArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIALECT", help="The dialect to write.")],
    dialect: DialectOption = None,
) -> None:
    """Print a jobspec in another dialect. What that cannot express is an error, never dropped."""
    from ...jobspec.dialects import render_jobspec

    typer.echo(render_jobspec(_load(file, dialect), to), nl=False)


@app.command("transformers", cls=PlainCommand)
def transformers(as_json: JsonOption = False) -> None:
    """List what carries out jobspecs. A broken plugin is told with its reason."""
    from ...jobspec.discovery import list_transformers

    found = list_transformers()
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "description": each.description,
                    "where": each.where,
                    "problem": each.problem,
                }
                for each in found
            ]
        )
        return
    rows = [
        (each.name, "broken" if each.problem else "ok", each.problem or each.description)
        for each in found
    ]
    typer.echo(render_table(rows, ("NAME", "STATE", "WHAT"), paint=1))


app.command("status", cls=PlainCommand)(jobspec_runs.status)
app.command("wait", cls=PlainCommand)(jobspec_runs.wait)
app.command("logs", cls=PlainCommand)(jobspec_runs.logs)
app.command("cancel", cls=PlainCommand)(jobspec_runs.cancel)
app.command("clean", cls=PlainCommand)(jobspec_runs.clean)
app.command("serve", cls=PlainCommand)(jobspec_serve.serve)
