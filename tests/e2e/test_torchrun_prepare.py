"""A torchrun program on a host that is brought to its image first: who waits can stop, and has a limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from e2e.held_keepers import HeldKeeper
from milkweed.errors import DeadlineError
from milkweed.image import Image
from milkweed.spec import JobSpec, make_meshes
from milkweed.spmd import run as run_module
from milkweed.spmd.launch import parse
from milkweed.spmd.target import Target
from milkweed.testing import FakeClock
from programs import wait_until
from unit.crew_keepers import Backend

pytestmark = pytest.mark.e2e
SLOW = Image().run_bash("touch begun; exec sleep 600")


@pytest.fixture
def keeper() -> Iterator[HeldKeeper]:
    """A host that waits for its steps."""
    with HeldKeeper() as made:
        made.status()
        yield made


def run(keeper: HeldKeeper, line: str) -> None:
    """Run a program there, after steps that take for ever."""
    backend = Backend(FakeClock())
    backend.gives = lambda _s: [keeper.address]
    client = {"images": {"w": SLOW.to_json()}}
    spec = JobSpec(name="demo", backend="slurm", meshes=make_meshes({"w": 1}), client=client)
    target = Target(backend=cast("Any", backend), handle={}, spec=spec, mesh="w")
    run_module.run(target, parse([*line.split(), "t.py"], {}))


def test_ctrl_c_while_hosts_are_prepared(keeper: HeldKeeper) -> None:
    """It is heard at once, not when the steps are done; the host ends the step, and stays."""
    pressed: list[float] = []

    def press() -> None:
        wait_until((keeper.home / "begun").exists, 60)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(keeper, "")
    finally:
        presser.join()
    assert time.monotonic() - pressed[0] < 30
    assert signal.getsignal(signal.SIGINT) is before
    assert keeper.status()["held"]


def test_preparing_counts_for_the_time_hosts_may_take(keeper: HeldKeeper) -> None:
    """`join_timeout` ends the wait for steps, too, and says what was waited for."""
    with pytest.raises(DeadlineError, match="the steps of an image were not done"):
        run(keeper, "--rdzv-conf join_timeout=3")
