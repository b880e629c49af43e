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
    """Run a torchrun program on the hosts of a job; takes torchrun's own options."""
    import os

    from ...spmd.arguments import HelpAsked, render_help
    from ...spmd.launch import parse
    from ..choose import choose
    from .run import ensure_applied

    words: tuple[str, ...] = ctx.meta["milkweed.words"]
    try:
        launch = parse(words, os.environ)
    except HelpAsked:
        typer.echo(render_help())
        return
    chosen = choose(launch.job)
    job = ensure_applied(chosen, None)
    job.torchrun(words, cached_path=chosen.file.path)
