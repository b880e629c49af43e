"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

OnChange = Literal["ask", "repair", "replace", "new"]


def complete_job(incomplete: str) -> list[str]:
    """The names of recorded jobs, for shells."""
    from ..registry import load_entries

    return sorted({entry.name for entry in load_entries() if entry.name.startswith(incomplete)})


def complete_backend(incomplete: str) -> list[str]:
    """The names of backends, for shells."""
    from ..backends import backend_names

    return [name for name in backend_names() if name.startswith(incomplete)]


JobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A job file, or the name or id of a recorded job; else the job of this folder.",
        autocompletion=complete_job,
        show_default=False,
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        "-j",
        metavar="JOB",
        help="A job file, or the name or id of a recorded job; else the job of this folder.",
        autocompletion=complete_job,
        show_default=False,
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="BACKEND",
        help="Ask this backend's scheduler itself, so that jobs are found whose records are gone.",
        autocompletion=complete_backend,
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.")
]
OnChangeOption = Annotated[
    OnChange | None,
    typer.Option(
        help="What to do when the allocation differs: stop and show it, replace only hosts that "
        "were lost, replace all of it, or make a new one beside it.",
        show_default=False,
    ),
]
