"""What is made of what is heard: a host that is there after all, one that is lost, and when all is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.control import Session
from milkweed.errors import UnreachableError
from milkweed.events import Events
from milkweed.job import watch as module
from milkweed.job.watch import BROKEN_S, Watch, explain, glance
from milkweed.status import HostState, HostStatus, Liveness, Status
from milkweed.testing import FakeClock
from unit.keepers import host
from unit.slurm_fake import APPLY_ID

RUNNING = Status(liveness=Liveness.RUNNING)
PENDING = Status(liveness=Liveness.PENDING, reason="Slurm job 7 is PENDING")
ENDED = Status(liveness=Liveness.ENDED, reason="Slurm job 7 is CANCELLED")
UNKNOWN = Status(liveness=Liveness.UNKNOWN, reason="nobody answered")


class Backend:
    """A scheduler that says what it is told to, and what became of hosts."""

    name = "slurm"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.says = [RUNNING]
        """What it says, look by look; the last word stays."""
        self.looks = 0
        self.words = "Slurm says that node n1 is down*\nlast line"
        self.away = False

    def glance(self, _handle: object, *, fresh: bool = False) -> Status:
        assert fresh
        self.looks += 1
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    def explain(self, _handle: object, host: str) -> HostStatus:
        if self.away:
            raise UnreachableError("Slurm's controller did not answer")
        return HostStatus(host=host, state=HostState.FAILED, reason=self.words)


class FakeSession:
    """A session, as far as a watch knows it."""

    def __init__(self, *labels: str, node: str = "n1") -> None:
        self.labels = list(labels or ("w/0",))
        self.node = node
        self.address = f"unix:///{node}"


@dataclass
class World:
    """A watch, and all that it does."""

    watch: Watch
    backend: Backend
    clock: FakeClock
    events: Events
    gave_up: list[int]
    rejoined: list[float] = field(default_factory=list[float])
    """When a session was tried again."""
    back_at_s: float = float("inf")
    """From when on a host answers again."""

    def rejoin(self, _session: Session) -> bool:
        self.rejoined.append(self.clock.now_s)
        return self.clock.now_s >= self.back_at_s

    def hear(self, session: FakeSession, **message: Any) -> None:
        self.watch.hear(cast("Session", session), message)

    def ready(self, *sessions: FakeSession) -> None:
        for session in sessions:
            for label in session.labels:
                self.hear(session, ev="host", **host(label))

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.what, event.host) for event in self.events.load()]


@pytest.fixture
def world(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> World:
    registry.folder_of(APPLY_ID).mkdir(parents=True)
    gave_up: list[int] = []
    monkeypatch.setattr(module, "give_up", lambda: gave_up.append(1))
    backend, events = Backend(), Events(APPLY_ID)
    watch = Watch("demo", "me", cast("Any", backend), {}, events, None)
    made = World(watch, backend, clock, events, gave_up)
    watch.rejoin, watch.pause, watch.clock = made.rejoin, clock.sleep, clock
    return made


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
    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, message: dict[str, Any]) -> None:
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


def test_a_host_that_stays_silent_is_lost(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """After a few seconds, with its machine's name, Slurm's word on it and the end of its log."""
    session = FakeSession()
    world.ready(session)
    began_s = world.clock.now_s
    world.hear(session, ev="closed")
    assert BROKEN_S <= world.clock.now_s - began_s <= BROKEN_S + 1
    assert len(world.rejoined) > 5
    assert world.watch.lost["w/0"] == (
        "its machine n1 does not answer; Slurm says that node n1 is down*"
    )
    assert world.watch.over is None
    assert "milkweed:   last line" in capsys.readouterr().err
    assert world.gave_up


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


# When it is over


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
    assert list(world.watch.seen) == ["w/0"]
    assert (world.watch.lost, world.watch.over, world.backend.looks) == ({}, None, 0)
    assert capsys.readouterr().err == ""


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
        return PENDING


def test_backends_without_a_cheap_look_are_polled() -> None:
    """And those that explain nothing say that nothing is known."""
    ask: Callable[[], Any] = Plain
    assert glance(ask(), {}) is PENDING
    assert explain(ask(), {}, "w/0") == HostStatus(host="w/0", state=HostState.UNKNOWN)
