"""Slurm's spellings of points in time and of time limits."""

from __future__ import annotations

import math
import re
from datetime import datetime

from ...errors import SpecError
from ...units import parse_duration

_NOT_SET = frozenset({"", "N/A", "NONE", "UNKNOWN", "(NULL)", "INVALID", "NOT_SET"})
_NO_LIMIT = frozenset({"UNLIMITED", "INFINITE", "PARTITION_LIMIT"})
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_MAX_TEXT = 40
_MAX_LIMIT_S = 60.0 * (2**32 - 3)
"""Slurm counts minutes in 32 bits, and keeps the last numbers for itself."""


def parse_stamp(text: str) -> float | None:
    """Read a point in time as seconds since 1970; None when Slurm has none to tell.

    Without a zone, as Slurm writes it, it is local time. With `SLURM_TIME_FORMAT=%s` it is a number.
    """
    clean = text.strip()
    if clean.upper() in _NOT_SET:
        return None
    if clean.isascii() and clean.isdigit():
        return float(clean) or None
    return datetime.fromisoformat(clean).timestamp()


def parse_clock(text: str) -> float | None:
    """Read a span as Slurm prints it, `2-12:30:15`, in seconds; None when unlimited or not known."""
    clean = text.strip().upper()
    if clean in _NO_LIMIT or clean in _NOT_SET:
        return None
    match = _CLOCK.fullmatch(clean)
    if match is None:
        raise ValueError(f"{text!r} is not a span of time")
    return _seconds(match, bare_is_minutes=False)


def _seconds(match: re.Match[str], *, bare_is_minutes: bool) -> float:
    """`D-H`, `D-H:M`, `D-H:M:S`, `H:M:S`, `M:S`, and a number alone."""
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return float(((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if len(parts) == 1:
        return float(parts[0] * (60 if bare_is_minutes else 1))
    hours, minutes, seconds = (0, 0, *parts)[-3:]
    return float((hours * 60 + minutes) * 60 + seconds)


def parse_time_limit(text: str | float, *, field: str) -> float | None:
    """Read a time limit in seconds; None for `UNLIMITED`.

    A number alone is minutes, as everywhere in Slurm, whether it is text or not; `90m` and `1h30m` are
    read too.
    """
    clean = str(text)[: _MAX_TEXT + 1].strip().upper()
    if clean in _NO_LIMIT:
        return None
    if isinstance(text, bool):
        raise _not_a_limit(text, field)
    match = _CLOCK.fullmatch(clean)
    seconds = _seconds(match, bare_is_minutes=True) if match else _other_limit(text, field)
    if not 0 < seconds <= _MAX_LIMIT_S:
        raise _not_a_limit(text, field)
    return seconds


def _other_limit(text: str | float, field: str) -> float:
    if isinstance(text, int | float):
        return float(text) * 60 if abs(text) <= _MAX_LIMIT_S else float("inf")
    try:
        return parse_duration(text, field=field)
    except SpecError:
        raise _not_a_limit(text, field) from None


def _not_a_limit(text: object, field: str) -> SpecError:
    shown = repr(text)
    return SpecError(
        f"{field}: {shown if len(shown) <= 60 else shown[:59] + '…'} is not a time limit",
        hint="write minutes as a number, or 90m, 12h, 1:30:00, 2-12:30:00 or UNLIMITED",
    )


def render_time_limit(seconds: float | None) -> str:
    """Write a time limit as Slurm reads it, never shorter than it is: `2-12:30:15`."""
    if seconds is None or math.isinf(seconds):
        return "UNLIMITED"
    minutes, rest = divmod(max(1, -int(-seconds // 1)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{days}-{clock}" if days else clock
