"""Telling a person what is waited for: late enough, often enough, and no more."""

from __future__ import annotations

import pytest

from milkweed.job.progress import QUIET_S, REPEAT_S, Progress
from milkweed.testing import FakeClock


@pytest.fixture
def said() -> list[str]:
    """What was told."""
    return []


@pytest.fixture
def progress(said: list[str], clock: FakeClock) -> Progress:
    """A wait that begins now."""
    return Progress("waiting for job 'x'", say=said.append, clock=clock)


def test_a_short_wait_is_silent(progress: Progress, said: list[str], clock: FakeClock) -> None:
    """What takes less than a person wonders about is not told."""
    progress.see("pending")
    clock.advance(QUIET_S - 0.01)
    progress.see("running")
    assert said == []


def test_changes_are_told_once(progress: Progress, said: list[str], clock: FakeClock) -> None:
    """Every change is told, the same again is not."""
    clock.advance(QUIET_S)
    for text in ("pending", "pending", "running", "running", "pending"):
        progress.see(text)
    assert [text.split(": ")[2] for text in said] == [
        "pending (after 2 s)",
        "running (after 2 s)",
        "pending (after 2 s)",
    ]


def test_a_long_wait_is_told_again(progress: Progress, said: list[str], clock: FakeClock) -> None:
    """Once a minute a person sees that it still goes on, and for how long it did."""
    clock.advance(QUIET_S)
    for _ in range(60):
        progress.see("pending")
        clock.advance(2.0)
    assert said == [
        "milkweed: waiting for job 'x': pending (after 2 s)",
        "milkweed: waiting for job 'x': pending (after 1m2s)",
    ]
    assert REPEAT_S == 60.0


def test_the_wait_is_measured(progress: Progress, clock: FakeClock) -> None:
    """How long it lasted is known at any time."""
    clock.advance(12.5)
    assert progress.waited_s == 12.5


def test_by_default_it_is_told_on_stderr(
    clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Output of the program stays clean."""
    progress = Progress("waiting", clock=clock)
    clock.advance(QUIET_S)
    progress.see("pending")
    assert capsys.readouterr() == ("", "milkweed: waiting: pending (after 2 s)\n")
