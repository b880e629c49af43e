"""All commands, in the order in which they are first needed."""

from __future__ import annotations

from typing import Annotated

import typer

from .commands import about, doctor, execute, kill, logs, looking, planning, run
from .edge import Commands

app = typer.Typer(
    cls=Commands,
    help="Hosts for Monarch programs: one declaration of named meshes, any scheduler.",
    no_args_is_help=True,
    # Plain help: the fancy one takes as long to import as everything else together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        about.version()
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


app.command("init")(about.init)
app.command("plan")(planning.plan)
app.command("apply")(planning.apply)
app.command("status")(looking.status)
app.command("ls")(looking.ls)
app.command("hosts")(looking.hosts)
app.command("logs")(logs.logs)
app.command("exec", cls=execute.ExecCommand)(execute.execute)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("kill")(kill.kill)
app.command("doctor")(doctor.doctor)
app.command("schema")(about.schema)
app.command("version")(about.version)
