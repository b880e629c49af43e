"""`torchrun`: a program on the hosts of a job, as torchrun would start it on each of them."""

from __future__ import annotations

from typing import Any

import typer

from ..plain import PlainCommand


class TorchrunCommand(PlainCommand):
    """Everything after the command's name is torchrun's to read, so it passes as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep all words aside."""
        ctx.meta["milkweed.words"] = tuple(args)
        return super().parse_args(ctx, [])


def torchrun(ctx: typer.Context) -> None:
    """Run a torchrun program on the hosts of a job."""
    import os

    from ...backends import load_backend
    from ...errors import SpecError
    from ...job.programs import TORCHRUN, Program
    from ...spmd.arguments import HelpAsked, parse_namespace, render_help
    from ...spmd.launch import make_launch
    from ..choose import choose
    from ..edge import say
    from .planning import open_job
    from .run import ensure_applied

    words: tuple[str, ...] = ctx.meta["milkweed.words"]
    try:
        asked = parse_namespace(words, os.environ)
    except HelpAsked:
        typer.echo(render_help())
        return
    except SpecError as error:
        say(str(error))
        raise typer.Exit(2) from None
    launch = make_launch(asked, environ=os.environ)
    chosen = choose(launch.job)
    declared = open_job(chosen, None).spec
    Program(command=words).check(load_backend(declared.backend), declared)
    job = ensure_applied(chosen, None)
    # Here the word was the command's own: what follows may be a script of that name.
    job.torchrun([TORCHRUN, *words], cached_path=chosen.file.path)
