"""Time that passes only when somebody sleeps."""

from __future__ import annotations


class FakeClock:
    """A clock and a sleep in one: give it as `clock=clock, sleep=clock.sleep`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s
        self.slept: list[float] = []
        """Every sleep so far, in seconds."""

    def __call__(self) -> float:
        """The time now."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self.slept.append(seconds)
        self.now_s += seconds

    def advance(self, seconds: float) -> None:
        """Let time pass though nobody sleeps."""
        self.now_s += seconds
