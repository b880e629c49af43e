"""The command line: plan, apply, look, run on hosts, kill."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; ends with SystemExit, whose code is the command's."""
    from .app import app

    app(args=argv, prog_name="milkweed")


def jobspec(argv: Sequence[str] | None = None) -> None:
    """Run one command about jobspecs, as a program of its own."""
    from .commands.jobspec import app

    app(args=argv, prog_name="jobspec")
