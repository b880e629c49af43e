"""Hosts that go back to their queue before they are used: those that come after are waited for and joined."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from milkweed.errors import AllocationEndedError
from milkweed.testing import FakeClock
from unit.joining import ENDED, PENDING, RUNNING, UNKNOWN, World
from unit.keepers import host


@pytest.fixture
def world(tmp_path: Path, clock: FakeClock) -> Generator[World]:
    made = World(tmp_path, clock)
    yield made
    made.close()


def requeue(world: World, at_s: float) -> None:
    """Have hosts go back to the queue and be started again, so fast that only who watches them hears of it."""
    gives = world.backend.gives

    def look(s: float) -> Sequence[str]:
        if s >= at_s and not done:
            done.append(s)
            world.connection._watch.end("it is back in the queue")
        return gives(s)

    done: list[float] = []
    world.backend.gives = look


def test_hosts_that_go_back_to_the_queue_are_waited_for_again(world: World) -> None:
    """The scheduler took them back before all had answered: those that had are left, and all is begun anew."""
    world.backend.says = lambda s: PENDING if 5 < s < 500 else RUNNING
    world.backend.gives = lambda s: world.addresses[: 1 if s < 500 else 2]
    world.connection.join(None)
    assert world.joined() == [2, 1]
    assert world.connection.usable


def test_hosts_that_are_requeued_unseen_are_joined_anew(world: World) -> None:
    """What was heard of the first ones' end says nothing of those that come after: their loss is told again."""
    world.backend.gives = lambda s: world.addresses[: 1 if s < 10 else 2]
    requeue(world, at_s=5)
    world.connection.join(None)
    assert world.connection.usable
    assert world.joined() == [2, 1]
    assert (world.connection._watch.over, world.connection.lost) == (None, {})


def test_hosts_that_are_requeued_while_they_start_are_waited_for(world: World) -> None:
    """All had answered and none was ready: that is no end of the job, and no reason to end it."""
    world.keepers[1].hosts = [host("w/1", "starting")]
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    world.keepers[1].hosts = [host("w/1")]
    world.connection._watch.end("it is back in the queue")
    world.backend.says = lambda s: PENDING if s < 500 else RUNNING
    assert len(world.connection._wait_ready(None)) == 2
    assert world.backend.now_s >= 500
    assert world.joined() == [2, 2]
    assert world.connection.usable


def test_hosts_that_ended_while_they_start_end_the_wait(world: World) -> None:
    """The scheduler says so: nothing is to be waited for."""
    world.keepers[1].hosts = [host("w/1", "starting")]
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    world.connection._watch.end("its processes are being ended")
    world.backend.says = lambda s: UNKNOWN if s < 100 else ENDED
    with pytest.raises(AllocationEndedError) as caught:
        world.connection._wait_ready(None)
    assert caught.value.seen == ENDED.reason
