"""All commands, in the order in which they are first needed."""

from __future__ import annotations

from typing import Annotated

import typer

from .commands import about, doctor, execute, kill, logs, looking, operator, planning, run, torchrun
from .edge import Commands
from .lazy import jobspec
from .plain import PlainCommand

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


app.command("init", cls=PlainCommand)(about.init)
app.command("plan", cls=PlainCommand)(planning.plan)
app.command("apply", cls=PlainCommand)(planning.apply)
app.command("status", cls=PlainCommand)(looking.status)
app.command("ls", cls=PlainCommand)(looking.ls)
app.command("hosts", cls=PlainCommand)(looking.hosts)
app.command("logs", cls=PlainCommand)(logs.logs)
app.command("exec", cls=execute.ExecCommand)(execute.execute)
app.command("run", cls=PlainCommand, context_settings={"allow_interspersed_args": False})(run.run)
app.command("torchrun", cls=torchrun.TorchrunCommand)(torchrun.torchrun)
app.command("kill", cls=PlainCommand)(kill.kill)
app.command("doctor", cls=PlainCommand)(doctor.doctor)
app.command("schema", cls=PlainCommand)(about.schema)
app.command("version", cls=PlainCommand)(about.version)
app.add_typer(operator.app, name="operator")
app.add_typer(jobspec, name="jobspec")
