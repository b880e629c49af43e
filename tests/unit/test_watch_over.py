"""When it is over for a client: hosts that ended, went back to the queue, or were released; said once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from milkweed.backends.base import Capabilities
from milkweed.job.watch import ENDING_S, Watch, explain, glance
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock
from unit.keepers import host
from unit.watching import ENDED, PENDING, UNKNOWN, FakeSession, World, make_world


@pytest.fixture
def world(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(clock, monkeypatch)


def test_a_job_that_ended_is_over_and_nobody_is_lost(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm's reason is told once, however many hosts end with it."""
    sessions = [FakeSession(f"w/{number}", node=f"n{number}") for number in range(3)]
    world.ready(*sessions)
    world.backend.says = [ENDED]
    for session in sessions:
        world.hear(session, ev="closed")
    assert (world.watch.over, world.watch.lost) == ("Slurm job 7 is CANCELLED", {})
    assert world.told == [("hosts ended", "")]
    text = capsys.readouterr().err
    assert text == "milkweed: the hosts of job 'demo' have ended: Slurm job 7 is CANCELLED\n"
    assert (world.gave_up, world.backend.looks) == ([1], 1)
    assert world.watch.is_troubled()


def test_an_end_has_the_keepers_own_word_too(world: World) -> None:
    """What the keeper said last tells more than that its job has ended."""
    session = FakeSession()
    world.hear(session, ev="ending", reason="its time limit was reached")
    world.backend.says = [ENDED]
    world.hear(session, ev="closed")
    assert world.watch.over == "Slurm job 7 is CANCELLED (its time limit was reached)"


def test_an_end_that_slurm_tells_later(world: World) -> None:
    """While a job completes nobody knows; a moment later Slurm says that it ended."""
    world.backend.says = [UNKNOWN, UNKNOWN, ENDED]
    world.hear(FakeSession(), ev="closed")
    assert (world.watch.over, world.watch.lost) == (ENDED.reason, {})


def test_a_job_that_is_back_in_the_queue_is_over_for_this_client(world: World) -> None:
    """Its hosts are gone; the next `state()` waits for the new ones."""
    world.backend.says = [PENDING]
    world.hear(FakeSession(), ev="closed")
    assert world.watch.over == "it is back in the queue: Slurm job 7 is PENDING"
    assert world.watch.lost == {}


def test_keepers_of_this_machine_end_with_their_hosts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is between us and them: a connection that ended is the end, and nobody is asked."""
    monkeypatch.setattr(world.backend, "capabilities", Capabilities(machine_bound=True))
    world.hear(FakeSession(), ev="closed")
    assert (world.watch.over, world.backend.looks) == ("", 0)


def test_a_client_that_left_hears_nothing_more(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """What happens to hosts after that is nobody's loss, and an end before it keeps its reason."""
    world.watch.leave()
    world.hear(FakeSession(), ev="closed")
    assert (world.watch.over, world.backend.looks, world.told) == ("", 0, [])
    assert capsys.readouterr().err == ""
    world.watch.over = "it ended"
    world.watch.leave()
    assert world.watch.over == "it ended"


def test_a_session_that_we_left_is_no_loss(world: World) -> None:
    """Hosts that went back to the queue while they started are left, and waited for anew: nothing is over."""
    session = FakeSession()
    session.left = True
    world.hear(session, ev="closed")
    assert (world.watch.over, world.watch.lost, world.backend.looks) == (None, {}, 0)


def test_a_session_that_ended_is_dropped(world: World) -> None:
    """Whoever keeps the sessions hears of it in any case."""
    dropped: list[str] = []
    world.watch.drop = lambda session: dropped.append(session.address)
    world.watch.leave()
    world.hear(FakeSession(), ev="closed")
    assert dropped == ["unix:///n1"]


# Hosts that are released


def test_hosts_that_are_released_are_not_lost(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their end is meant: nothing they say counts, and nobody is asked about them."""
    staying, going = FakeSession("w/0"), FakeSession("w/1", node="n2")
    world.ready(staying, going)
    world.watch.forget(["w/1"])
    world.hear(going, ev="host", **host("w/1", "failed", reason="it was released"))
    world.hear(going, ev="closed")
    world.watch.change({"jobs": [7]})
    assert list(world.watch.seen) == ["w/0"]
    assert (world.watch.lost, world.watch.over, world.backend.looks) == ({}, None, 0)
    assert capsys.readouterr().err == ""


def test_hosts_that_were_not_released_after_all_are_watched_again(world: World) -> None:
    """A scheduler that refuses a smaller size leaves all of them, as they were."""
    session = FakeSession("w/1")
    world.ready(session)
    world.watch.forget(["w/1"])
    world.watch.forget(())
    assert world.watch.seen["w/1"]["state"] == "ready"
    world.hear(session, ev="closed")
    assert "w/1" in world.watch.lost


def test_a_keeper_with_a_host_that_stays_is_still_watched(world: World) -> None:
    """Only when all its hosts are released is its end meant."""
    session = FakeSession("w/0", "w/1")
    world.ready(session)
    world.watch.forget(["w/1"])
    world.hear(session, ev="closed")
    assert "w/0" in world.watch.lost


# While it is not known


def settle_in_thread(watch: Watch) -> tuple[threading.Thread, threading.Event]:
    done = threading.Event()

    def wait() -> None:
        watch.settle()
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, done


@pytest.mark.parametrize("outcome", ["back", "lost", "over"])
def test_whoever_needs_to_know_waits_until_it_is_known(world: World, outcome: str) -> None:
    """While a host is tried again nobody says that all is well, nor that it is lost."""
    seen: list[bool] = []
    waiting: list[tuple[threading.Thread, threading.Event]] = []

    def pause(seconds: float) -> None:
        if not waiting:
            waiting.append(settle_in_thread(world.watch))
        seen.append(world.watch.is_troubled() and not waiting[0][1].is_set())
        world.clock.sleep(seconds)
        if outcome == "over":
            world.backend.says = [ENDED]

    world.watch.pause = pause
    world.back_at_s = world.clock.now_s + 1.0 if outcome == "back" else float("inf")
    world.hear(FakeSession(), ev="closed")
    [(thread, done)] = waiting
    thread.join(10.0)
    assert done.is_set()
    assert all(seen)
    assert bool(world.watch.lost) == (outcome == "lost")


def test_nothing_to_settle(world: World) -> None:
    """Where nothing broke nobody waits."""
    world.watch.settle()


# Backends that cannot tell more


class Plain:
    """A backend with nothing but what every backend has."""

    def poll(self, _handle: object) -> Status:
        """What every backend can say."""
        return PENDING


def test_backends_without_a_cheap_look_are_polled() -> None:
    """And those that explain nothing say that nothing is known."""
    ask: Callable[[], Any] = Plain
    assert glance(ask(), {}) is PENDING
    assert explain(ask(), {}, "w/0") == HostStatus(host="w/0", state=HostState.UNKNOWN)


ENDING = Status(liveness=Liveness.UNKNOWN, reason="Slurm job 7 is COMPLETING", ending=True)


def test_an_end_that_takes_its_time_is_waited_for(world: World) -> None:
    """What a site does after a job may take longer than a host that is only out of reach: how it ended is told."""
    session = FakeSession()
    world.ready(session)
    world.backend.says = [*[ENDING] * 15, ENDED]
    world.hear(session, ev="ending", reason="it was asked to stop by SIGTERM")
    world.hear(session, ev="closed")
    assert world.watch.over == "Slurm job 7 is CANCELLED (it was asked to stop by SIGTERM)"
    assert world.watch.lost == {}


def test_an_end_that_takes_too_long_is_told_as_far_as_it_is_known(world: World) -> None:
    """A host of a job that is being ended is not lost: all of it is over, in the scheduler's words."""
    session = FakeSession()
    world.ready(session)
    world.backend.says = [ENDING]
    began_s = world.clock.now_s
    world.hear(session, ev="ending", reason="it was asked to stop by SIGTERM")
    world.hear(session, ev="closed")
    assert ENDING_S <= world.clock.now_s - began_s <= ENDING_S + 1
    assert world.watch.over == "Slurm job 7 is COMPLETING (it was asked to stop by SIGTERM)"
    assert (world.watch.lost, world.gave_up) == ({}, [1])


def test_one_component_that_is_being_ended_is_named_so(world: World) -> None:
    """While others run its host is lost, with what the scheduler is doing to it."""
    world.backend.state, world.backend.words = HostState.UNKNOWN, "Slurm job 9 is COMPLETING"
    session = FakeSession()
    world.ready(session)
    world.hear(session, ev="ending", reason="it was asked to stop by SIGTERM")
    world.hear(session, ev="closed")
    assert world.watch.lost["w/0"] == "it was asked to stop by SIGTERM; Slurm job 9 is COMPLETING"
