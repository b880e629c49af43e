"""Cutting what `squeue` and `sinfo` print into records, whatever people wrote into names and comments."""

from __future__ import annotations

import re

_JOB_NUMBER = re.compile(r"(\d+)(?:\+(\d+)|_\S+)?", re.ASCII)
_NOTHING = frozenset({"(null)", "n/a", "none", "none assigned"})

_HEADINGS = frozenset({"JOBID", "NODELIST"})
"""The first fields of headings, by which a command that has nothing to tell shows that it was answered."""
_CLUSTER = r"^CLUSTER: \S+\n(?={start}\|)"
"""What stands above a heading where `SLURM_CLUSTERS` names clusters."""

END = "|end"
"""Closes a record, so that output which was cut off is seen as such."""


def make_format(start: str, *fields: str) -> str:
    """A format for `-o`: each record begins with its kind and ends with a mark of its own.

    Names and comments may have line breaks, so a line is not a record.
    """
    return f"{start}|{'|'.join(fields)}{END}"


def parse_records(text: str, start: str, fields: int) -> list[list[str]]:
    """The fields of each record but headings; the last field takes what is left, with all its bars."""
    bare = re.sub(_CLUSTER.format(start=start), "", text, flags=re.MULTILINE)
    found = [
        _parse_record(record.removeprefix(f"{start}|"), start, fields)
        for record in split_records(bare, rf"{start}\|", start)
    ]
    return [record for record in found if record[0] not in _HEADINGS]


def split_records(text: str, start: str, kind: str) -> list[str]:
    """Cut text before each line that begins as a record does."""
    first, *records = re.split(rf"^(?={start})", text, flags=re.MULTILINE | re.ASCII)
    if first.strip():
        raise ValueError(f"not a {kind}: {_shown(first)}")
    return records


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
    """The text, or nothing where Slurm writes `(null)`, `N/A` or `None`."""
    return "" if text.strip().lower() in _NOTHING else text


def parse_job_number(text: str) -> tuple[int, int | None]:
    """The first component's id and the component in `12+1`; none in `12` and in `12_3` of an array."""
    match = _JOB_NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a job id")
    return int(match[1]), None if match[2] is None else int(match[2])
