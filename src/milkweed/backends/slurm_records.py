"""Cutting what `squeue` and `sinfo` print into records, whatever people wrote into names and comments."""

from __future__ import annotations

import re

END = "|end"
"""Closes a record, so that output which was cut off is seen as such."""


def make_format(start: str, *fields: str) -> str:
    """A format for `-o`: each record begins with its kind and ends with a mark of its own.

    Names and comments may have line breaks, so a line is not a record.
    """
    return f"{start}|{'|'.join(fields)}{END}"


def parse_records(text: str, start: str, fields: int) -> list[list[str]]:
    """The fields of each record; the last field takes what is left, with all its bars."""
    first, *chunks = re.split(rf"^{start}\|", text, flags=re.MULTILINE)
    if first.strip():
        raise ValueError(f"not a {start}: {_shown(first)}")
    return [_parse_record(chunk, start, fields) for chunk in chunks]


def _parse_record(chunk: str, start: str, fields: int) -> list[str]:
    body = chunk.rstrip("\n")
    if not body.endswith(END):
        raise ValueError(f"a {start} that was cut off: {_shown(chunk)}")
    found = body.removesuffix(END).split("|", fields - 1)
    if len(found) != fields:
        raise ValueError(f"a {start} with {len(found)} fields instead of {fields}: {_shown(chunk)}")
    return found


def _shown(text: str) -> str:
    clean = text.strip("\n")
    return repr(clean if len(clean) <= 200 else f"{clean[:199]}…")


def or_empty(text: str) -> str:
    """Slurm writes `(null)`, `N/A` or `none` where there is nothing to say."""
    return "" if text.strip().lower() in {"(null)", "n/a", "none"} else text
