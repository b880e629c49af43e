"""Text for people: tables, ages, states with a colour; and one JSON document for programs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import typer

SHORT_ID = 8
"""How much of an id is shown; any beginning of it that is long enough names the job."""

COLOURS = {
    "ready": typer.colors.GREEN,
    "running": typer.colors.GREEN,
    "ok": typer.colors.GREEN,
    "pending": typer.colors.YELLOW,
    "starting": typer.colors.YELLOW,
    "warn": typer.colors.YELLOW,
    "unknown": typer.colors.YELLOW,
    "failed": typer.colors.RED,
    "fail": typer.colors.RED,
}


def render_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), *, paint: int | None = None
) -> str:
    """Rows with their columns one below the other; states in the column `paint` have colours."""
    lines = [header, *rows] if header else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_render_line(line, widths, paint) for line in lines)


def _render_line(line: Sequence[str], widths: Sequence[int], paint: int | None) -> str:
    *cells, last = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
    cells.append(last.rstrip())
    if paint is not None:
        cells[paint] = paint_state(cells[paint])
    return "  ".join(cells).rstrip()


def paint_state(text: str) -> str:
    """Give the state that a text begins with its colour; `typer.echo` takes it out of files."""
    state = text.partition(" ")[0].rstrip(",")
    if state not in COLOURS or os.environ.get("NO_COLOR"):
        return text
    return typer.style(state, fg=COLOURS[state]) + text.removeprefix(state)


def render_age(seconds: float) -> str:
    """How long ago, in one unit: `45s`, `12m`, `3h`, `2d`."""
    seconds = max(0.0, seconds)
    for unit, size, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{int(seconds / size)}{unit}"
    return f"{int(seconds / 86_400)}d"


def render_since(created: float) -> str:
    """The age of what was made then; `?` when nobody knows when."""
    return render_age(time.time() - created) if created else "?"


def print_json(data: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(data, indent=2))
