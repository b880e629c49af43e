"""Slurm's spellings of time: limits as people write them, spans and points in time as Slurm prints them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.backends.slurm.times import (
    parse_clock,
    parse_stamp,
    parse_time_limit,
    render_time_limit,
)
from milkweed.errors import SpecError


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is an hour or two before UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400.0),
        (90, 5400.0),
        (0.5, 30.0),
        ("90:30", 5430.0),
        ("1:30:00", 5400.0),
        ("100:00:00", 360000.0),
        ("2-12", 216000.0),
        ("2-12:30", 217800.0),
        ("2-12:30:15", 217815.0),
        ("0-0:0:1", 1.0),
        ("90m", 5400.0),
        ("12h", 43200.0),
        ("1h30m", 5400.0),
        ("90s", 90.0),
        ("1.5h", 5400.0),
        (" 2D ", 172800.0),
        ("UNLIMITED", None),
        ("unlimited", None),
        ("INFINITE", None),
        (" infinite ", None),
    ],
)
def test_time_limits_are_read(text: Any, expected: float | None) -> None:
    """All spellings of Slurm are read, and milkweed's own; a number alone is minutes."""
    assert parse_time_limit(text, field="slurm.time_limit") == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "soon",
            "-1",
            "1-",
            "-",
            ":",
            "1:",
            ":1",
            "1:2:3:4",
            "1-2:3:4:5",
            "1-2-3",
            "90 m",
            "1w",
        ),
        *("0", "0:0", "0:0:0", "0-0", "0m", 0, -1, 0.0, float("nan"), float("inf"), -float("inf")),
        *(True, False, None, "nan", "inf", "1e3", "9" * 400, 10**400, -(10**400), "9" * 39 + "h"),
        *("99999999999", "٣", "1:٣"),
    ],
)
def test_bad_time_limits_are_refused(text: Any) -> None:
    """What is not a time limit above zero is refused; the field is named, and the spellings are shown."""
    with pytest.raises(SpecError, match=r"^slurm\.time_limit: .* is not a time limit") as caught:
        parse_time_limit(text, field="slurm.time_limit")
    assert "2-12:30:00" in caught.value.hint
    assert len(caught.value.what) < 120


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "UNLIMITED"),
        (1, "00:00:01"),
        (0.2, "00:00:01"),
        (59.01, "00:01:00"),
        (5400.0, "01:30:00"),
        (86399, "23:59:59"),
        (86400, "1-00:00:00"),
        (217815.0, "2-12:30:15"),
        (31536000, "365-00:00:00"),
    ],
)
def test_time_limits_are_written(seconds: float | None, expected: str) -> None:
    """A limit is written so that no version of Slurm can misread it, and never shorter than it is."""
    assert render_time_limit(seconds) == expected


@given(st.integers(1, 60 * 2**31))
def test_time_limits_survive_being_written(seconds: int) -> None:
    """What is written reads back as the same, by us and as Slurm prints it."""
    text = render_time_limit(seconds)
    assert parse_time_limit(text, field="limit") == seconds
    assert parse_clock(text) == seconds


@given(st.text(alphabet="0123456789-:smhd. ", max_size=12))
def test_any_text_is_a_limit_or_refused(text: str) -> None:
    """Reading never fails in any other way, and a limit is always more than nothing."""
    try:
        seconds = parse_time_limit(text, field="limit")
    except SpecError:
        return
    assert seconds is not None
    assert seconds > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:45", 45.0),
        ("59:45", 3585.0),
        ("1:59:45", 7185.0),
        ("364-23:59:56", 31535996.0),
        ("00:00:00", 0.0),
        ("30:00", 1800.0),
        ("2-12:00:00", 216000.0),
        ("45", 45.0),
        ("UNLIMITED", None),
        ("infinite", None),
        ("Partition_Limit", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_spans_are_read(text: str, expected: float | None) -> None:
    """A span that Slurm prints is seconds; None stands for unlimited and for not known."""
    assert parse_clock(text) == expected


@pytest.mark.parametrize("text", ["soon", "1:2:3:4", "-5", "1h"])
def test_what_is_not_a_span_is_refused(text: str) -> None:
    """Anything else is an error that shows the text."""
    with pytest.raises(ValueError, match="is not a span of time") as caught:
        parse_clock(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-16T03:20:01", 1794795601.0),
        ("2026-07-01T00:00:00", 1782856800.0),
        ("1794799201", 1794799201.0),
        ("2026-11-16T03:20:01+00:00", 1794799201.0),
        ("N/A", None),
        ("NONE", None),
        ("None", None),
        ("Unknown", None),
        ("n/a", None),
        ("0", None),
        ("", None),
    ],
)
@pytest.mark.usefixtures("in_berlin")
def test_points_in_time_are_read(text: str, expected: float | None) -> None:
    """Without a zone a time is local, summer time included; as a number it is what it is."""
    assert parse_stamp(text) == expected


@pytest.mark.parametrize("text", ["Tomorrow 12:00", "03:20:01 today", "2026-13-01T00:00:00", "-5"])
def test_what_is_not_a_point_in_time_is_refused(text: str) -> None:
    """A user's own time format is not guessed at."""
    with pytest.raises(ValueError, match=r"."):
        parse_stamp(text)
