"""Ranks that fail since others are gone: in an elastic run that is a host's loss, and no failure of theirs."""

from __future__ import annotations

import pytest

from milkweed.spmd.attempt import VERDICT_S, Ending
from milkweed.spmd.inbox import Interrupted
from milkweed.testing import FakeClock
from unit.crews import Attempts

LOST = (Ending.LOST, "w/1", "node n1 is down")


@pytest.fixture
def world(clock: FakeClock) -> Attempts:
    made = Attempts(clock)
    made.line = "--nnodes=1:2 --shutdown-timeout=1"
    return made


def vanish(world: Attempts, *, verdict_s: float | None) -> None:
    """Let a host fall silent as ranks of the other fail for it, and be lost later, if ever."""
    world.crew.gone.add("w/1")
    world.crew.doubtful.add("w/1")
    if verdict_s is not None:
        world.crew.lose("w/1", verdict_s, reason="node n1 is down")


def seen(world: Attempts) -> tuple[Ending, str, str]:
    outcome = world.run()
    return outcome.ending, outcome.host, outcome.reason


@pytest.mark.parametrize("verdict_s", [1.5, 20.0, 34.0])
def test_a_failure_waits_for_the_word_about_a_host(world: Attempts, verdict_s: float) -> None:
    """Peers notice in milliseconds what takes a client half a minute, and their end is not the reason."""
    world.script(
        lambda: world.crew.exit(0, 1),
        lambda: world.crew.inbox.after(0.9, lambda: vanish(world, verdict_s=verdict_s)),
    )
    assert seen(world) == LOST
    assert not [rank for rank in world.crew.live if rank < 2]


def test_a_host_that_is_lost_while_failed_ranks_end(world: Attempts) -> None:
    """The word of it may come while the others are being ended for the failure."""
    world.line = "--nnodes=1:2"
    world.crew.stubborn = {"w/0"}
    world.script(
        lambda: world.crew.exit(0, 1),
        lambda: world.crew.lose("w/1", 3.0, reason="node n1 is down"),
    )
    assert seen(world) == LOST


def test_a_host_that_is_back_was_not_the_reason(world: Attempts, clock: FakeClock) -> None:
    """A connection that is mended leaves a failure what it is."""
    world.script(
        lambda: world.crew.exit(0, 1),
        lambda: world.crew.doubtful.add("w/1"),
        lambda: world.crew.inbox.after(8.0, world.crew.doubtful.clear),
    )
    began_s = clock()
    outcome = world.run()
    assert (outcome.ending, outcome.failures[0]["rank"]) == (Ending.FAILED, 0)
    assert 8.0 <= clock() - began_s < 10.0


def test_a_host_of_which_nothing_is_heard(world: Attempts, clock: FakeClock) -> None:
    """The failure is told in the end, whatever becomes of it."""
    world.script(
        lambda: world.crew.exit(0, 1),
        lambda: world.crew.inbox.after(0.9, lambda: vanish(world, verdict_s=None)),
    )
    began_s = clock()
    assert world.run().ending is Ending.FAILED
    assert VERDICT_S <= clock() - began_s < VERDICT_S + 20.0


def test_hosts_are_asked_before_a_failure_counts(world: Attempts, clock: FakeClock) -> None:
    """One that vanished just now has not been missed yet; those that answer cost no time."""
    world.script(lambda: world.crew.exit(0, 1))
    began_s = clock()
    assert world.run().ending is Ending.FAILED
    assert world.crew.probed == [["w/0", "w/1"]]
    assert clock() - began_s < 2.0


def test_a_fixed_number_of_hosts_is_not_waited_for(world: Attempts) -> None:
    """There a failure ends the attempt either way, and it is the failure that is reported."""
    world.line = "--nnodes=2"
    world.script(lambda: world.crew.exit(0, 1), lambda: world.crew.doubtful.add("w/1"))
    assert world.run().ending is Ending.FAILED
    assert world.crew.probed == []


def test_ctrl_c_while_a_host_is_waited_for(world: Attempts, clock: FakeClock) -> None:
    """A person waits for nothing."""
    world.script(
        lambda: world.crew.exit(0, 1),
        lambda: world.crew.doubtful.add("w/1"),
        lambda: world.crew.signal("SIGINT", 5.0),
    )
    began_s = clock()
    assert world.fails(Interrupted).name == "SIGINT"
    assert clock() - began_s < 7.0
