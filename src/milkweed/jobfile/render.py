"""Flaws of a text as people read them: place, message, the line itself, and what to do."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable

from ..options import render_path
from .tree import Flaw, Span

_WIDTH = 100
_BEFORE = 60


def render_flaws(flaws: Iterable[Flaw], text: str, filename: str) -> str:
    """All flaws in the order of the text, each with its line and a caret under the place."""
    starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
    ordered = sorted(flaws, key=lambda flaw: flaw.span.start)
    return "\n".join(_render_flaw(flaw, text, starts, filename) for flaw in ordered)


def _render_flaw(flaw: Flaw, text: str, starts: list[int], filename: str) -> str:
    row = bisect_right(starts, flaw.span.start) - 1
    column = flaw.span.start - starts[row]
    where = f"{render_path(flaw.path)}: " if flaw.path else ""
    lines = [f"{filename}:{row + 1}:{column + 1}: {_printable(where + flaw.message)}"]
    line = text[starts[row] : starts[row + 1] - 1 if row + 1 < len(starts) else None]
    lines += _excerpt(line.rstrip("\r"), column, flaw.span)
    if flaw.hint:
        lines.append("  do:   " + flaw.hint.replace("\n", "\n        "))
    return "\n".join(lines)


def _excerpt(line: str, column: int, span: Span) -> list[str]:
    if not line.strip():
        return []
    begin = column - _BEFORE if len(line) > _WIDTH and column > _BEFORE else 0
    shown = _printable(line[begin : begin + _WIDTH])
    at = column - begin
    marked = shown[at : at + span.end - span.start].rstrip() or " "
    return [f"  | {shown}".rstrip(), f"  | {' ' * _columns(shown[:at])}{'^' * _columns(marked)}"]


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else " " if char == "\t" else "�" for char in line)


def _columns(text: str) -> int:
    """How many columns a terminal gives the text."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
