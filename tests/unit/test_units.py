"""Sizes and durations, read as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.units import parse_duration, parse_size, render_duration, render_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, 1),
        (4096, 4096),
        ("4096", 4096),
        ("1B", 1),
        ("1k", 1000),
        ("1KB", 1000),
        ("1Ki", 1024),
        ("1kib", 1024),
        ("16Gi", 16 * 2**30),
        ("200GB", 200 * 10**9),
        (" 1.5 Gi ", 3 * 2**29),
        ("2Ti", 2**41),
        ("0.5K", 500),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read(text: str | int, expected: int) -> None:
    """A size is a number with a unit, exact to the byte."""
    assert parse_size(text, field="memory") == expected


BAD = [0, -1, True, float("nan"), "", " ", "Gi", "1Qi", "1,5Gi", "-1Gi", "1e3", "0", "9" * 400]


@pytest.mark.parametrize("text", [*BAD, 10**400, -(10**400), "1 G i", "0.4"])
def test_bad_sizes_are_refused(text: Any) -> None:
    """What is not a size above zero is refused, and the field is named."""
    with pytest.raises(SpecError, match=r"^memory: "):
        parse_size(text, field="memory")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, 1.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("90m", 5400.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        (" 1H ", 3600.0),
        ("12:00:00", 43200.0),
        ("1-12:00:00", 129600.0),
        ("0:0:1", 1.0),
    ],
)
def test_durations_are_read(text: str | float, expected: float) -> None:
    """A duration is seconds, or numbers with units, or a clock."""
    assert parse_duration(text, field="limit") == expected


@pytest.mark.parametrize(
    "text", [*BAD, float("inf"), 10**400, -(10**400), "90", "1h 30m", "1:00", "1:60:00", "1w"]
)
def test_bad_durations_are_refused(text: Any) -> None:
    """What is not a duration above zero is refused, and the field is named."""
    with pytest.raises(SpecError, match=r"^limit: "):
        parse_duration(text, field="limit")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, "1"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1536"),
        (16 * 2**30, "16Gi"),
        (2**50, "1024Ti"),
    ],
)
def test_sizes_are_written(size: int, expected: str) -> None:
    """A size is written with the largest unit that loses nothing."""
    assert render_size(size) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 ms"),
        (0.0204, "20 ms"),
        (1.0, "1 s"),
        (2.345, "2.35 s"),
        (60.0, "1m"),
        (5400.0, "1h30m"),
        (3601.0, "1h1s"),
        (86400.0, "1d"),
        (90061.4, "1d1h1m1s"),
    ],
)
def test_durations_are_written(seconds: float, expected: str) -> None:
    """A duration is written as a person would say it."""
    assert render_duration(seconds) == expected
