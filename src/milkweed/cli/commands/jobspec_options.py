"""What the commands about jobspecs share: options, and how failures are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...errors import SpecError
from ..edge import say

if TYPE_CHECKING:
    from ...jobspec import Run, TransformerBase
    from ...jobspec.progress import Progress

OnInterrupt = Literal["ask", "keep", "cancel"]


def complete_transformer(incomplete: str) -> list[str]:
    """The names of transformers, for shells."""
    from ...jobspec.discovery import transformer_names

    return [name for name in transformer_names() if name.startswith(incomplete)]


def complete_dialect(incomplete: str) -> list[str]:
    """The names of dialects, for shells."""
    from ...jobspec.dialects import DIALECTS

    return [name for name in DIALECTS if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """The ids of runs, for shells."""
    from ...jobspec.runs import load_runs

    return [run.id for run in load_runs() if run.id.startswith(incomplete)]


FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A jobspec; - reads it from stdin.")
]
TransformerOption = Annotated[
    str,
    typer.Option(
        "--transformer",
        "-t",
        metavar="NAME",
        help="What carries it out; `transformers` lists them.",
        autocompletion=complete_transformer,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="A setting of the transformer, such as namespace=mine; may be given several times.",
        show_default=False,
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        metavar="DIALECT",
        help="The language of the file; else its keys tell.",
        autocompletion=complete_dialect,
        show_default=False,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The beginning of a run's id.", autocompletion=complete_run),
]
OnInterruptOption = Annotated[
    OnInterrupt,
    typer.Option(
        help="What Ctrl-C does with the run: ask at a terminal and else keep it, keep it, or cancel it."
    ),
]


def parse_settings(words: list[str] | None) -> dict[str, str]:
    """Settings as `KEY=VALUE`; each key once."""
    found: dict[str, str] = {}
    for word in words or ():
        key, is_set, value = word.partition("=")
        key = key.strip().replace("-", "_")
        if not is_set or not key.isidentifier():
            raise SpecError(f"-s {word!r}: is not KEY=VALUE", hint="write -s namespace=mine")
        if key in found:
            raise SpecError(f"-s {word!r}: {key} is said twice", hint="say it once")
        found[key] = value
    return found


def open_transformer(name: str, settings: list[str] | None) -> TransformerBase:
    """The transformer of that name, with what was said beside the file."""
    from ...jobspec.discovery import load_transformer

    return load_transformer(name, **parse_settings(settings))


def open_run(name: str) -> tuple[TransformerBase, Run]:
    """A recorded run, and what carries it out."""
    from ...jobspec.discovery import load_transformer
    from ...jobspec.runs import find_run

    found = find_run(name)
    return load_transformer(found.plan.transformer, **found.plan.settings), found


def tell_failures(found: Run, progress: Progress) -> None:
    """Each step that did not go well, on a line of stderr."""
    from ...jobspec.progress import State

    well = {State.DONE, State.RUNNING, State.PENDING, State.WAITING}
    groups = {action.id for action in found.plan.actions if action.kind == "group"}
    for step_id, entry in progress.entries.items():
        if entry.status.state not in well and step_id not in groups:
            say(f"{step_id}: {entry.status.describe()}")
