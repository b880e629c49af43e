"""Text for people: tables, colours, ages."""

from __future__ import annotations

import pytest

from milkweed.cli.render import paint_state, render_age, render_table


def test_tables_are_aligned() -> None:
    """Columns stand one below the other, and no line ends with spaces."""
    assert render_table([("a", "bb"), ("ccc", "")]) == "a    bb\nccc"


def test_states_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known states are painted, other words and NO_COLOR are not, and columns stay aligned."""
    assert paint_state("ready  ") == "\x1b[32mready\x1b[0m  "
    assert paint_state("readyish") == "readyish"
    assert "\x1b[31mfailed\x1b[0m  x" in render_table([("failed", "x")], paint=0)
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint_state("ready") == "ready"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7200, "2h"),
        (172_800, "2d"),
        (9e5, "10d"),
    ],
)
def test_ages_are_short(seconds: float, shown: str) -> None:
    """An age has one unit, and never a minus."""
    assert render_age(seconds) == shown
