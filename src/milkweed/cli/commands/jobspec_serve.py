"""`jobspec serve`: a folder whose files are run, once each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..edge import say
from .jobspec_options import (
    DialectOption,
    SettingsOption,
    TransformerOption,
    open_transformer,
    parse_settings,
)


def serve(  # noqa: PLR0917  options of a command line
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where jobspecs are put.")],
    transformer: TransformerOption = "flux",
    settings: SettingsOption = None,
    dialect: DialectOption = None,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="How often to look, such as 10s or 2m.")
    ] = "10s",
    once: Annotated[
        bool, typer.Option("--once", help="Look once and end; for cron. Runs go on by themselves.")
    ] = False,
) -> None:
    """Run what is put into a folder, once each.

    It ends with SIGTERM. A file goes to running/, and when its run is over to done/ or failed/,
    with a text beside it that says how it went. Runs go on while no service looks, and a crash
    loses and repeats nothing. With --once, the code is 1 when something could not be done.
    """
    from ...jobspec.spool import Spool
    from ...units import parse_duration

    every_s = parse_duration(every, field="--every")
    open_transformer(transformer, settings)  # what is wrong with it is told now, not of every file
    spool = Spool(
        folder,
        transformer=transformer,
        settings=parse_settings(settings),
        dialect=dialect,
        say=say,
    )
    if once:
        if spool.look():
            raise typer.Exit(1)
    else:
        spool.serve(every_s)
