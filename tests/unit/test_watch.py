"""What is made of what is heard: a host that is ready, one that is there after all, and one that is lost."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from milkweed.backends.programs import within
from milkweed.errors import DeadlineError
from milkweed.job.watch import BROKEN_S
from milkweed.status import HostState
from milkweed.testing import FakeClock
from unit.keepers import host
from unit.watching import UNKNOWN, FakeSession, World, make_world


@pytest.fixture
def world(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(clock, monkeypatch)


# Hosts


def test_hosts_are_seen_as_they_are_last(world: World) -> None:
    """The last word on each host counts, and nobody is told of what is in order."""
    session = FakeSession("w/0", "w/1")
    world.hear(session, ev="host", **host("w/0", "starting"))
    world.ready(session)
    assert {label: seen["state"] for label, seen in world.watch.seen.items()} == {
        "w/0": "ready",
        "w/1": "ready",
    }
    assert (world.watch.lost, world.told, world.watch.is_troubled()) == ({}, [], False)


def test_a_host_that_was_ready_and_fails_is_lost(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once, with the end of its log, and calls that wait for it are given up."""
    session = FakeSession()
    world.ready(session)
    failed = host("w/0", "failed", reason="it was ended by SIGKILL", tail=list("abcdefg"))
    world.hear(session, ev="host", **failed)
    world.hear(session, ev="host", **failed)
    assert world.watch.lost == {"w/0": "it was ended by SIGKILL"}
    assert world.told == [("host lost", "w/0")]
    assert world.gave_up == [1]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "milkweed: host w/0 is lost: it was ended by SIGKILL"
    assert lines[1:] == [f"milkweed:   {letter}" for letter in "cdefg"]


def test_a_host_that_never_was_ready_is_the_starters_news(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits for the hosts raises it; it is not told twice."""
    world.hear(FakeSession(), ev="host", **host("w/0", "failed", reason="no engine"))
    assert world.watch.lost == {"w/0": "no engine"}
    assert capsys.readouterr().err == ""


def test_a_proc_of_ours_that_ends_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of other clients are their own business."""
    session = FakeSession()
    for client in ("me", "somebody"):
        world.hear(session, ev="proc", client=client, host="w/0", rank=3, reason="it died")
    assert capsys.readouterr().err == "milkweed: a proc of host w/0 ended: rank 3: it died\n"
    assert world.told == [("proc ended", "w/0")]


class Terminal:
    """A terminal that takes down what kind of output it is given."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, message: dict[str, Any]) -> None:
        """Take down what is printed."""
        self.taken.append(message["kind"])


def test_only_what_procs_print_is_printed(world: World) -> None:
    """What workers and a batch client say is for their logs; without a terminal nothing is printed."""
    world.hear(FakeSession(), ev="out", kind="proc", lines=["x"])
    terminal = world.watch.terminal = cast("Any", Terminal())
    for kind in ("proc", "host", "client"):
        world.hear(FakeSession(), ev="out", kind=kind, lines=["x"])
    assert terminal.taken == ["proc"]


def test_words_that_nobody_knows_are_passed_over(world: World) -> None:
    """A newer keeper may say more."""
    world.hear(FakeSession(), ev="news", more=1)
    assert world.watch.is_troubled() is False


# A session that broke


def test_a_host_that_answers_again_is_not_lost(world: World) -> None:
    """A cable that was pulled for a moment: the session is opened again, and nothing else happens."""
    session = FakeSession()
    world.ready(session)
    world.back_at_s = world.clock.now_s + 2.0
    world.hear(session, ev="closed")
    assert (world.watch.lost, world.watch.over) == ({}, None)
    assert world.told == [("reconnected", "w/0")]
    assert not world.watch.is_troubled()


def test_another_keeper_behind_the_same_door(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod was replaced: what ran there is gone, so the host is lost to this client, and that is told."""
    session = FakeSession()
    world.ready(session)
    world.back_at_s = world.clock.now_s + 2.0
    world.keeper = "second"
    world.backend.words = "OOMKilled"
    world.hear(session, ev="closed")
    assert (world.watch.lost, world.watch.over) == ({"w/0": "OOMKilled"}, None)
    assert world.told == [("host replaced", "w/0")]
    assert "w/0 was lost, and there is another in its place: OOMKilled" in capsys.readouterr().err
    assert world.gave_up


def test_a_host_that_stays_silent_is_lost(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """After a few seconds: where Slurm knows why, in its words, with the end of the log that it gave."""
    session = FakeSession()
    world.ready(session)
    began_s = world.clock.now_s
    world.hear(session, ev="closed")
    assert BROKEN_S <= world.clock.now_s - began_s <= BROKEN_S + 1
    assert len(world.rejoined) > 5
    assert world.watch.lost["w/0"] == "Slurm says that node n1 is down*"
    assert world.watch.over is None
    assert "milkweed:   last line" in capsys.readouterr().err
    assert world.gave_up


@pytest.mark.parametrize("away", [False, True])
def test_a_loss_that_slurm_has_not_noticed_has_the_end_of_the_right_log(
    world: World, capsys: pytest.CaptureFixture[str], away: bool
) -> None:
    """A node that has just died is in order for Slurm, or Slurm is away: the host's own last lines are shown."""
    world.backend.state, world.backend.away = HostState.STARTING, away
    world.backend.words = "its keeper does not answer"
    world.backend.logs = {"w/0": ["of w/0"], "w/1": ["of w/1"]}
    sessions = [FakeSession("w/0", node="n1"), FakeSession("w/1", node="n2")]
    world.ready(*sessions)
    world.hear(sessions[1], ev="closed")
    assert world.watch.lost == {"w/1": "its machine n2 does not answer"}
    assert capsys.readouterr().err.splitlines() == [
        "milkweed: host w/1 is lost: its machine n2 does not answer",
        "milkweed:   of w/1",
    ]


@pytest.mark.parametrize("unheard", [False, True])
def test_a_machine_is_blamed_for_what_is_not_known_to_be_otherwise(
    world: World, unheard: bool
) -> None:
    """A keeper that ended says nothing about its machine; a node that Slurm does not hear either may be gone."""
    world.backend.words, world.backend.unheard = "Slurm's word", unheard
    world.hear(FakeSession(), ev="closed")
    blamed = "its machine n1 does not answer; " if unheard else ""
    assert world.watch.lost == {"w/0": f"{blamed}Slurm's word"}


def test_all_hosts_of_a_keeper_are_lost_with_it(world: World) -> None:
    """One keeper may keep several."""
    session = FakeSession("w/0", "w/1")
    world.ready(session)
    world.hear(session, ev="closed")
    assert sorted(world.watch.lost) == ["w/0", "w/1"]


def test_a_keeper_that_said_why_is_not_tried_again(world: World) -> None:
    """It ended by itself: its own word is the reason, then Slurm's."""
    session = FakeSession()
    world.ready(session)
    world.hear(session, ev="ending", reason="nobody was connected")
    world.hear(session, ev="closed")
    assert world.rejoined == []
    assert world.watch.lost["w/0"].startswith("nobody was connected; Slurm says")


def test_a_loss_that_nobody_can_explain_is_still_a_loss(world: World) -> None:
    """With the scheduler away the host is lost all the same: whoever waits for it must not wait for ever."""
    session = FakeSession()
    world.ready(session)
    world.backend.says, world.backend.away = [UNKNOWN], True
    world.hear(session, ev="closed")
    assert world.watch.lost == {"w/0": "its machine n1 does not answer"}
    assert not world.watch._broken


def test_a_loss_without_words(world: World) -> None:
    """A scheduler that knows nothing adds nothing."""
    world.backend.words = ""
    world.hear(FakeSession(), ev="closed")
    assert world.watch.lost == {"w/0": "its machine n1 does not answer"}


def test_silence_of_the_scheduler_ends_nothing(world: World) -> None:
    """Nobody knows whether the job is over: the host is tried until it is back."""
    world.backend.says = [UNKNOWN]
    world.back_at_s = world.clock.now_s + 3.0
    world.hear(FakeSession(), ev="closed")
    assert (world.watch.lost, world.watch.over) == ({}, None)


def test_what_became_of_a_host_is_waited_for_until_the_deadline(world: World) -> None:
    """A scheduler that is silent may take long to tell; who waits is told which hosts it is about."""
    session = FakeSession("w/0", "w/1")
    world.watch._broken[session.address] = session.labels
    with within(time.monotonic() - 1.0), pytest.raises(DeadlineError) as caught:
        world.watch.settle()
    assert "what became of hosts of job 'demo'" in caught.value.what
    assert caught.value.seen == "the connection to w/0, w/1 broke"
    world.watch._broken.clear()
    with within(time.monotonic() - 1.0):
        world.watch.settle()


def test_a_scheduler_that_cannot_be_asked_tells_no_end(world: World) -> None:
    """Its command may be gone for a moment: the host is tried until it is back, and no thread dies of it."""
    world.backend.broken = True
    world.back_at_s = world.clock.now_s + 2.0
    world.hear(FakeSession(), ev="closed")
    assert (world.watch.lost, world.watch.over) == ({}, None)
