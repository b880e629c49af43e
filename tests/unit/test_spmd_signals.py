"""Signals to a program that runs ranks: in every phase, and what is left of its handlers."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from milkweed.errors import RanksFailedError
from milkweed.spmd.inbox import Interrupted
from milkweed.testing import FakeClock
from unit.crews import TWO, Runs


@pytest.fixture
def world(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(clock, monkeypatch)


def send(world: Runs, number: signal.Signals, after_s: float = 1.0) -> None:
    """Let this very process get a real signal later."""
    world.crew.inbox.after(after_s, lambda: os.kill(os.getpid(), number))


def test_ctrl_c_ends_as_ctrl_c_does(world: Runs) -> None:
    """Ranks get SIGINT, and the program ends as interrupted ones do."""
    with pytest.raises(KeyboardInterrupt):
        world.run("--nnodes=2 --max-restarts=3", lambda: send(world, signal.SIGINT))
    assert [order["signal"] for order in world.crew.messages("halt")] == ["SIGINT", "SIGINT"]
    assert len(world.attempts) == 1
    assert world.crew.told("done") == ["done w/0", "done w/1"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_handed_on(world: Runs, number: signal.Signals) -> None:
    """The exit code is what a shell gives to a program that such a signal ended."""
    with pytest.raises(SystemExit) as caught:
        world.run("", lambda: send(world, number))
    assert caught.value.code == 128 + number
    assert {order["signal"] for order in world.crew.messages("halt")} == {number.name}


def test_signals_of_ones_own_choice(world: Runs) -> None:
    """`--signals-to-handle` says which are handed on; others are left alone."""
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def look() -> None:
        found.append(signal.getsignal(signal.SIGTERM))
        send(world, signal.SIGUSR1)

    with pytest.raises(SystemExit) as caught:
        world.run("--signals-to-handle=SIGUSR1", look)
    assert caught.value.code == 128 + signal.SIGUSR1
    assert found == [before]


def test_a_second_ctrl_c_makes_ranks_end(world: Runs) -> None:
    """Asked once, then made to."""
    world.crew.stubborn = set(TWO)

    def script() -> None:
        send(world, signal.SIGINT, 1.0)
        send(world, signal.SIGINT, 2.0)

    with pytest.raises(KeyboardInterrupt):
        world.run("--nnodes=2", script)
    assert [order["signal"] for order in world.crew.messages("halt")] == [
        *("SIGINT", "SIGINT"),
        *("SIGKILL", "SIGKILL"),
    ]


@pytest.mark.parametrize("end", ["succeed", "fail", "interrupt"])
def test_handlers_are_as_they_were(world: Runs, end: str) -> None:
    """However it ends, the signals of the program are its own again."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
    before = [signal.getsignal(number) for number in numbers]
    if end == "succeed":
        world.run("", world.succeed)
    elif end == "fail":
        with pytest.raises(RanksFailedError):
            world.run("", lambda: world.crew.exit(0, 1))
    else:
        with pytest.raises(KeyboardInterrupt):
            world.run("", lambda: send(world, signal.SIGINT))
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_thread_hears_no_signals(world: Runs) -> None:
    """A run in another thread works, and leaves the main thread's handlers alone."""
    found: list[object] = []

    def look() -> None:
        found.append(signal.getsignal(signal.SIGTERM))
        world.succeed()

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=world.run, args=("", look))
    thread.start()
    thread.join(10)
    assert found == [before]
    assert world.told[-1] == ("ranks ended", "all 1 succeeded")


@pytest.mark.parametrize(
    ("name", "error"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)]
)
def test_signals_while_hosts_are_waited_for(
    world: Runs, name: str, error: type[BaseException]
) -> None:
    """Nothing was started, so nobody is told anything."""
    world.crew.gatherings = [Interrupted(name)]
    with pytest.raises(error):
        world.run("")
    assert world.crew.orders == []


def test_a_signal_between_two_attempts(world: Runs) -> None:
    """One that came when nobody listened is heard before ranks start again."""
    gather = world.crew.gather

    def interrupted(*args: int, **more: float) -> list[str]:
        if world.crew.gathered:
            world.crew.signal("SIGINT", 0.0)
        return gather(*args, **more)

    world.crew.gather = interrupted
    with pytest.raises(KeyboardInterrupt):
        world.run("--max-restarts=3", lambda: world.crew.exit(0, 1), world.succeed)
    assert len(world.attempts) == 1
    assert world.crew.told("prepare", "done") == ["prepare w/0", "done w/0"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("how", ["fail", "lose", "come"])
def test_a_signal_while_ranks_end_is_not_forgotten(world: Runs, how: str, name: str) -> None:
    """Whoever wants the program to stop while it is about to start anew is heard."""
    world.crew.stubborn = {"w/0"}
    world.crew.present = ["w/0", "w/2"] if how == "come" else ["w/0", "w/1", "w/2"]
    happen = getattr(world, how)

    def script() -> None:
        happen()
        world.crew.signal(name, 9.0)

    with pytest.raises(KeyboardInterrupt if name == "SIGINT" else SystemExit):
        world.run("--nnodes=1:3 --max-restarts=3", script, world.succeed)
    assert len(world.attempts) == 1
