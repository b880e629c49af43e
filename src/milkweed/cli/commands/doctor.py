"""`doctor`: whether this machine has what milkweed needs."""

from __future__ import annotations

import typer

from ..arguments import JsonOption
from ..render import print_json, render_table


def doctor(as_json: JsonOption = False) -> None:
    """Check what milkweed needs of this machine. The exit code is 1 when something fails."""
    from dataclasses import asdict

    from ..checks import run_checks

    found = run_checks()
    failed = any(check.level == "fail" for check in found)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    else:
        rows = [(check.level, check.name, check.text) for check in found]
        typer.echo(render_table(rows, paint=0))
    if failed:
        raise typer.Exit(1)
