"""A second run starts in a second, since the hosts are still there."""

from __future__ import annotations

import time

import pytest

from ranks import Runner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
LIMIT_S = 1.0
TRIES = 25
"""A machine that does other things has a free second among so many."""


def test_a_second_run_takes_less_than_a_second(runner: Runner) -> None:
    """From the command to its end, with two hosts of two ranks, at its best of several."""
    runner.script("print('rank', rank)")
    runner.run("--nnodes 2 --nproc-per-node 2 train.py")
    taken: list[float] = []
    while len(taken) < TRIES and not (taken and min(taken) < LIMIT_S):
        began_s = time.monotonic()
        out, _err = runner.run("--nnodes 2 --nproc-per-node 2 train.py")
        taken.append(time.monotonic() - began_s)
        assert len(out.splitlines()) == 4
    assert min(taken) < LIMIT_S, taken
