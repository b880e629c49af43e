"""What ranks print with real hosts: nothing is lost, however much it is and however slowly it is read."""

from __future__ import annotations

import os

import pytest

from programs import wait_until
from ranks import Runner

pytestmark = pytest.mark.e2e
LINES = 60_000
TEXT = "x" * 250


def test_a_reader_that_takes_a_break_misses_nothing(runner: Runner) -> None:
    """Ranks that print more than anybody reads wait, as they do for a pipe, and every line comes in the end."""
    runner.script(f"""
        with open(f"at{{rank}}", "w", buffering=1) as told:
            for number in range({LINES}):
                print(number, {TEXT!r})
                if number % 1000 == 0:
                    print(number, file=told)
    """)
    program = runner.start("--nnodes 2 train.py")
    assert program.stdout is not None
    fields = [f"{number} {TEXT}" for number in range(LINES)]
    wait_until(lambda: is_still(runner), 60)
    assert progress(runner) < 2 * (LINES - 1000), "nobody has waited"
    out = program.stdout.read()
    assert program.wait(60) == 0
    for rank in range(2):
        head = f"[default{rank}]:"
        shown = [line.removeprefix(head) for line in out.splitlines() if line.startswith(head)]
        assert shown == fields
    assert program.stderr is not None
    program.stderr.close()
    program.stdout.close()


def progress(runner: Runner) -> int:
    """How far both ranks are."""
    paths = [runner.folder / f"at{rank}" for rank in range(2)]
    if not all(map(os.path.exists, paths)):
        return -1
    return sum(int((path.read_text().split() or ["0"])[-1]) for path in paths)


def is_still(runner: Runner) -> bool:
    """Whether ranks that have begun get no further for a while."""
    before = progress(runner)
    if before <= 0:
        return False
    try:
        wait_until(lambda: progress(runner) != before, 3.0)
    except AssertionError:
        return True
    return False
