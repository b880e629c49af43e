"""What a watch says of lost hosts to the error of a call that has failed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from milkweed.job.watch import MOST_NOTES
from milkweed.status import Status
from milkweed.testing import FakeClock
from unit.keepers import host
from unit.watching import ENDED, PENDING, FakeSession, World, make_world


@pytest.fixture
def world(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(clock, monkeypatch)


def fail(world: World, *labels: str) -> None:
    """Let hosts that were ready fail."""
    session = FakeSession(*labels)
    world.ready(session)
    for label in labels:
        world.hear(session, ev="host", **host(label, "failed", reason="it was ended by SIGKILL"))


def test_of_hosts_that_are_well_there_is_nothing_to_say(world: World) -> None:
    """Not even where a proc of theirs has ended."""
    world.ready(FakeSession())
    world.hear(FakeSession(), ev="proc", client="me", host="w/0", rank=3, reason="it died")
    assert world.watch.describe_loss(0) == []


def test_a_lost_host_is_described_as_on_the_terminal(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words, so that a log and a terminal tell the same."""
    fail(world, "w/1")
    [words] = world.watch.describe_loss(0)
    assert words == "host w/1 is lost: it was ended by SIGKILL"
    assert f"milkweed: {words}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("says", "reason"),
    [(ENDED, ENDED.reason), (PENDING, f"it is back in the queue: {PENDING.reason}")],
)
def test_the_schedulers_word_is_in_it(world: World, says: Status, reason: str) -> None:
    """Why the hosts are gone is what the scheduler says of their job, not only that they are gone."""
    world.backend.says = [says]
    world.hear(FakeSession(), ev="closed")
    assert world.watch.describe_loss(0) == [f"the hosts of job 'demo' have ended: {reason}"]


def test_of_many_lost_hosts_some_are_named(world: World) -> None:
    """An error stays readable, and the number of the others is in it."""
    fail(world, *[f"w/{number}" for number in range(MOST_NOTES)])
    assert len(world.watch.describe_loss(0)) == MOST_NOTES
    fail(world, "x/0", "x/1")
    *named, rest = world.watch.describe_loss(0)
    assert (len(named), rest) == (MOST_NOTES, "2 more hosts are lost")


def test_a_client_that_left_has_nothing_more_to_say(world: World) -> None:
    """It may have other hosts by now, and what fails there has other reasons."""
    fail(world, "w/1")
    world.watch.end("Slurm job 7 is CANCELLED")
    assert len(world.watch.describe_loss(0)) == 2
    world.watch.leave()
    assert world.watch.describe_loss(0) == []


def test_what_is_being_found_out_is_waited_for(world: World) -> None:
    """A call that fails before the scheduler has answered says what it answers."""
    asked, answer = threading.Event(), threading.Event()

    def glance(_handle: object, *, fresh: bool = False) -> Status:
        assert fresh
        asked.set()
        assert answer.wait(10)
        return ENDED

    world.backend.glance = glance
    hearing = threading.Thread(target=world.hear, args=(FakeSession(),), kwargs={"ev": "closed"})
    hearing.start()
    assert asked.wait(10)
    assert world.watch.describe_loss(0) == ["the connection to w/0 broke: it is not known yet why"]
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.extend(world.watch.describe_loss(10)))
    asking.start()
    answer.set()
    for each in (hearing, asking):
        each.join(10)
    assert told == [f"the hosts of job 'demo' have ended: {ENDED.reason}"]


def test_a_host_that_answers_again_was_not_lost(world: World) -> None:
    """What failed meanwhile has failed; what fails later is not put down to it."""
    world.back_at_s = 0.0
    world.hear(FakeSession(), ev="closed")
    assert world.watch.describe_loss(0) == []


class Guarded(dict[str, str]):
    """Lost hosts, and whether somebody could go through them while one was added."""

    def __init__(self, changed: threading.Condition) -> None:
        super().__init__()
        self.changed = changed
        self.open: list[bool] = []

    def _try(self) -> None:
        if is_open := self.changed.acquire(blocking=False):
            self.changed.release()
        self.open.append(is_open)

    def __setitem__(self, host: str, reason: str) -> None:
        """Nobody else may be able to take the lock."""
        other = threading.Thread(target=self._try)
        other.start()
        other.join()
        super().__setitem__(host, reason)


@pytest.mark.parametrize("how", ["failed", "silent", "replaced"])
def test_hosts_are_lost_while_nobody_goes_through_them(world: World, how: str) -> None:
    """Sessions hear in threads of their own; a call that fails then is no error about a dictionary."""
    world.watch.lost = lost = Guarded(world.watch.changed)
    if how == "failed":
        fail(world, "w/0")
    else:
        world.back_at_s = world.clock.now_s if how == "replaced" else world.back_at_s
        world.keeper = "second"
        world.hear(FakeSession(), ev="closed")
    assert (list(lost), lost.open) == (["w/0"], [False])
