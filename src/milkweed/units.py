"""Reading sizes and durations as people write them, and writing them back."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TypeVar

from .errors import SpecError

_Number = TypeVar("_Number", int, float)
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_MAX_TEXT = 40
_MAX_NUMBER = 2**63 - 1


def parse_size(text: str | int, *, field: str) -> int:
    """Read `256Gi`, `512MB` or a number of bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        return _positive(text, field)
    match = _SIZE.fullmatch(str(text)[: _MAX_TEXT + 1])
    if match is None or match[2].upper() not in _SIZE_UNITS:
        raise SpecError(
            f"{field}: {text!r} is not a size",
            hint="write a number with a unit, such as 512Mi, 16Gi or 200GB",
        )
    return _positive(int(Fraction(match[1]) * _SIZE_UNITS[match[2].upper()]), field)


def parse_duration(text: str | float, *, field: str) -> float:
    """Read `90m`, `1h30m`, `12:00:00`, `1-12:00:00` or a number of seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return _positive(float(text) if abs(text) <= _MAX_NUMBER else float("inf"), field)
    clean = str(text)[: _MAX_TEXT + 1].strip().lower()
    if clock := _CLOCK.fullmatch(clean):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return _positive(float(((days * 24 + hours) * 60 + minutes) * 60 + seconds), field)
    parts = _DURATION.findall(clean)
    if not parts or "".join(number + unit for number, unit in parts) != clean:
        raise SpecError(
            f"{field}: {text!r} is not a duration",
            hint="write a number with a unit, such as 90s, 5m or 1h30m, or a time such as 12:00:00",
        )
    return _positive(sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts), field)


def _positive(value: _Number, field: str) -> _Number:
    if not abs(value) <= _MAX_NUMBER:  # false for nan, too
        raise SpecError(f"{field}: the number is too large", hint="give a smaller number")
    if value <= 0:
        raise SpecError(
            f"{field}: {value} is not more than zero", hint="give a larger number, or leave it out"
        )
    return value


def render_size(size_bytes: int) -> str:
    """Write a number of bytes as `16Gi`."""
    for unit, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size_bytes % factor == 0 and size_bytes >= factor:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def render_duration(seconds: float) -> str:
    """Write seconds as `1h30m`, for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{value}{unit}" for value, unit in parts if value)
