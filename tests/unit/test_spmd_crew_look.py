"""Looking for hosts holds up nobody: not the ranks that run, and not a person who wants to stop."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import AllocationEndedError
from milkweed.spmd.crew import FAR_S
from milkweed.spmd.inbox import Interrupted
from milkweed.testing import FakeClock
from unit.crew_keepers import ENDED, World
from unit.keepers import WAIT_S


@pytest.fixture
def world(tmp_path: Path, clock: FakeClock) -> Generator[World]:
    made = World(tmp_path, clock)
    yield made
    made.close()


def test_looking_aside_holds_up_nobody(world: World) -> None:
    """While new hosts are brought to their image, ranks are watched; that it is done is heard."""
    world.keeper("w/0")
    crew = world.crew(1)
    done, begun = threading.Event(), threading.Event()
    looks: list[int] = []

    def prepare(*_args: object, **_more: object) -> None:
        looks.append(1)
        begun.set()
        assert done.wait(WAIT_S)

    crew._bring = prepare
    crew.look_aside()
    assert begun.wait(WAIT_S)
    crew.look_aside()
    assert crew.inbox.empty()
    done.set()
    assert world.heard() == {"ev": "looked"}
    assert looks == [1]
    assert crew.present == ["w/0"]


def test_what_was_wrong_is_told(world: World) -> None:
    """An allocation that has ended is an error of the run, not of a thread."""
    crew = world.crew(1)
    world.backend.says = lambda _s: ENDED
    crew.look_aside()
    assert isinstance(world.heard()["error"], AllocationEndedError)


def test_a_signal_while_hosts_are_gathered(world: World) -> None:
    """It is raised where the program is, however long that would take; later it is handed on."""
    world.keeper("w/0")
    crew = world.crew(1)

    def prepare(*_args: object, **_more: object) -> None:
        crew.interrupt("SIGINT")

    crew._bring = prepare
    with pytest.raises(Interrupted, match="SIGINT"):
        world.gather(1, 1)
    crew.interrupt("SIGTERM")
    assert world.heard() == {"ev": "signal", "name": "SIGTERM"}


def test_a_signal_just_before_hosts_are_gathered(world: World) -> None:
    """It was handed on to nobody, and is not forgotten."""
    world.keeper("w/0")
    world.crew(1).interrupt("SIGINT")
    with pytest.raises(Interrupted):
        world.gather(1, 1)
    assert world.prepared == []


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(7.0, 7.0), (float("inf"), FAR_S)])
def test_preparing_has_the_limit_of_gathering(
    world: World, clock: FakeClock, timeout_s: float, limit_s: float
) -> None:
    """And none when the run is over: nobody waits for hosts then."""
    world.keeper("w/0")
    crew = world.crew(1)
    told: dict[str, Any] = {}
    crew._bring = lambda *_args, **more: told.update(more)
    began_s = clock()
    world.gather(1, 1, timeout_s=timeout_s)
    assert told["deadline_s"] == began_s + limit_s
    assert told["clock"]() == clock()
    crew.close()
    assert told["clock"]() >= told["deadline_s"]
