"""Hosts that are made up: keepers that answer at once, and an inbox in which time passes at once."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import queue
import signal
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from milkweed import registry
from milkweed.backends.base import Capabilities
from milkweed.errors import MilkweedError
from milkweed.events import Events
from milkweed.spec import JobSpec, make_meshes
from milkweed.spmd import run as run_module
from milkweed.spmd.attempt import Attempt, Outcome, Settings
from milkweed.spmd.console import Console, EventLog
from milkweed.spmd.inbox import Interrupted
from milkweed.spmd.launch import Launch, parse
from milkweed.spmd.layout import PREFIX
from milkweed.spmd.target import Target
from milkweed.testing import FakeClock
from unit.slurm_fake import APPLY_ID

Message = Mapping[str, Any]
Event = Message | Callable[[], Message | None]
PORT = 4321
TWO = ["w/0", "w/1"]
GRACE_S = 30.0
"""What torchrun gives ranks to end."""


def read_launch(line: str = "", script: str = "t.py", **environ: str) -> Launch:
    """What a torchrun command line asks for."""
    return parse([*line.split(), script], environ, new_id=lambda: "fresh")


def make_settings(line: str = "", **more: Any) -> Settings:
    """The settings of a run of that command line."""
    said = {"cwd": "/here", "template": PREFIX, "token": "T"}
    return Settings(launch=read_launch(line), **{**said, **more})


class Inbox:
    """A queue whose messages come at their time; waiting for one lets that time pass."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._end_s = clock() + 10_000.0
        self._waiting: list[tuple[float, int, Event]] = []
        self._count = itertools.count()

    def put(self, message: Event) -> None:
        """Let a message come at once."""
        self.after(0.0, message)

    def after(self, seconds: float, message: Event) -> None:
        """Let a message come later, or something happen that may give one."""
        heapq.heappush(self._waiting, (self._clock() + seconds, next(self._count), message))

    def get(self, timeout: float) -> Message:
        """The next message, or after a while nothing."""
        until_s = self._clock() + timeout
        assert until_s < self._end_s, "it is waited for ever"
        while self._waiting and self._waiting[0][0] <= until_s:
            at_s, _, event = heapq.heappop(self._waiting)
            self._clock.advance(max(0.0, at_s - self._clock()))
            message = event() if callable(event) else event
            if message is not None:
                return message
        self._clock.advance(until_s - self._clock())
        raise queue.Empty

    def get_nowait(self) -> Message:
        """What is there already."""
        return self.get(0.0)


class FakeCrew:
    """Keepers that answer at once, each with its ranks; what else happens is up to a test."""

    def __init__(self, clock: FakeClock, *labels: str, nproc: int = 1, declared: int = 0) -> None:
        spec = JobSpec(
            name="demo", backend="fake", meshes=make_meshes({"w": declared or len(labels) or 1})
        )
        backend: Any = SimpleNamespace(capabilities=Capabilities())
        self.target = Target(backend=backend, handle={}, spec=spec, mesh="w")
        self.clock = clock
        self.inbox = Inbox(clock)
        self.begun: list[str] = []
        """The attempts that have begun."""
        self.on_begin: Callable[[], None] = lambda: None
        """What happens as soon as an attempt has begun, before hosts are told anything."""
        self.present = list(labels)
        self.lost: dict[str, str] = {}
        """Hosts that are lost, and why."""
        self.nproc = dict.fromkeys(labels, nproc)
        self.unlike: dict[str, list[str]] = {}
        """Which variables hosts have otherwise than a person."""
        self.orders: list[tuple[str, str, Message]] = []
        """All that hosts were told: the order, the host, the message."""
        self.errors: dict[tuple[str, str], str] = {}
        """What an order cannot do at a host."""
        self.silent: set[tuple[str, str]] = set()
        """Which orders a host does not answer."""
        self.gone: set[str] = set()
        self.doubtful: set[str] = set()
        """Hosts that do not answer, and are not lost yet."""
        self.probed: list[Sequence[str]] = []
        self.stubborn: set[str] = set()
        """Hosts whose ranks end only when they are made to."""
        self.scripts: list[Callable[[], None]] = []
        """What happens in one attempt after another, from its first launch on."""
        self.gathered: list[dict[str, Any]] = []
        self.gatherings: list[Sequence[str] | BaseException] = []
        """What gathering gives, time after time; then it is all that are there."""
        self.looks = 0
        self.on_look: Callable[[], None] = lambda: None
        self.revived = 0
        self.closed = False
        self.show: Callable[[Message], None] = lambda _message: None
        self._live: dict[int, tuple[str, int]] = {}
        self._number = ""

    # What a crew offers

    def begin(self, number: str) -> None:
        """Begin an attempt: what is in the inbox by now is forgotten, but for a signal."""
        self.begun.append(number)
        with contextlib.suppress(queue.Empty):
            while True:
                message = self.inbox.get_nowait()
                if message["ev"] == "signal":
                    raise Interrupted(str(message["name"]))
        self.on_begin()

    def address(self, label: str, among: Sequence[str]) -> str:
        """How ranks reach a host."""
        return f"n{label.rpartition('/')[2]}" if len(among) > 1 else "localhost"

    def order(self, label: str, message: Message) -> None:
        """Take an order; one that is gone does nothing."""
        self.orders.append((message["op"], label, message))
        if label not in self.gone:
            getattr(self, f"_{message['op']}")(label, message)

    def probe(self, labels: Sequence[str]) -> None:
        """Have hosts answer."""
        self.probed.append(list(labels))

    def unsure(self, labels: Sequence[str]) -> list[str]:
        """Those that do not answer."""
        return [label for label in labels if label in self.doubtful]

    def look_aside(self) -> None:
        """Ask the scheduler."""
        self.looks += 1
        try:
            self.on_look()
        except MilkweedError as error:
            self.inbox.put({"ev": "looked", "error": error})
        else:
            self.inbox.put({"ev": "looked"})

    def interrupt(self, name: str) -> None:
        """Take a signal."""
        self.inbox.put({"ev": "signal", "name": name})

    def revive(self) -> None:
        """Have lost hosts started again."""
        self.revived += 1

    def gather(self, least: int, most: int, *, timeout_s: float, last_call_s: float) -> list[str]:
        """Give the hosts that a test wants to be there."""
        asked = {"least": least, "most": most, "timeout_s": timeout_s, "last_call_s": last_call_s}
        self.gathered.append(asked)
        found = self.gatherings.pop(0) if self.gatherings else self.present[:most]
        if isinstance(found, BaseException):
            raise found
        return list(found)

    def close(self) -> None:
        """Leave."""
        self.closed = True

    # What hosts do with orders

    def _answer(self, label: str, order: Message, word: str, **more: Any) -> bool:
        if (order["op"], label) in self.silent:
            return False
        error = self.errors.get((order["op"], label))
        said = {"error": error} if error else more
        self.inbox.put({"ev": word, "id": order["id"], "host": label, **said})
        return error is None

    def _prepare(self, label: str, order: Message) -> None:
        port = PORT if order["port"] else 0
        more = {"nproc": self.nproc[label], "port": port, "unlike": self.unlike.get(label, [])}
        self._answer(label, order, "prepared", **more)

    def _launch(self, label: str, order: Message) -> None:
        if order["id"] != self._number:
            self._number = order["id"]
            if self.scripts:
                self.scripts.pop(0)()
        if self._answer(label, order, "launched", pids={}, logs=""):
            for rank in order["ranks"]:
                self._live[rank["rank"]] = (label, rank["local"])

    def _halt(self, label: str, order: Message) -> None:
        number = signal.Signals[order["signal"]]
        waits = label in self.stubborn and number != signal.SIGKILL
        delay_s = order["grace_s"] if waits else 0.01
        code = -signal.SIGKILL if waits else -number
        for rank in [rank for rank, (host, _) in self._live.items() if host == label]:
            self.exit(rank, code, delay_s, halted=True)

    def _done(self, label: str, _order: Message) -> None:
        self._live = {rank: place for rank, place in self._live.items() if place[0] != label}

    def _report(self, _label: str, _order: Message) -> None:
        pass

    # What happens

    def exit(self, rank: int, code: int, after_s: float = 1.0, **more: Any) -> None:
        """Let a rank end later, if it still lives then."""
        self.inbox.after(after_s, functools.partial(self._exit, rank, code, more))

    def _exit(self, rank: int, code: int, more: Message) -> Message | None:
        place = self._live.pop(rank, None)
        return make_exit(self._number, rank, code, place, self.clock(), more) if place else None

    def exit_all(self, code: int = 0, after_s: float = 1.0) -> None:
        """Let all ranks end later."""
        for rank in range(20):
            self.exit(rank, code, after_s)

    def lose(self, label: str, after_s: float = 1.0, reason: str = "it is down") -> None:
        """Let a host be lost later, with its ranks."""
        self.inbox.after(after_s, functools.partial(self._lose, label, reason))

    def _lose(self, label: str, reason: str) -> Message:
        self.gone.add(label)
        self.doubtful.discard(label)
        self.lost[label] = reason
        self.present = [other for other in self.present if other != label]
        self._live = {rank: place for rank, place in self._live.items() if place[0] != label}
        return {"ev": "lost", "host": label, "reason": reason}

    def signal(self, name: str, after_s: float = 1.0) -> None:
        """Let a person, or a scheduler, stop it later."""
        self.inbox.after(after_s, {"ev": "signal", "name": name})

    # What was done

    @property
    def live(self) -> list[int]:
        """The ranks that live."""
        return sorted(self._live)

    def told(self, *ops: str) -> list[str]:
        """The orders so far, all or of these kinds, such as `halt w/1`."""
        return [f"{op} {label}" for op, label, _ in self.orders if not ops or op in ops]

    def messages(self, op: str) -> list[Message]:
        """The messages of all orders of that kind."""
        return [message for known, _, message in self.orders if known == op]


def make_exit(  # noqa: PLR0917  all of one message
    number: str, rank: int, code: int, place: tuple[str, int], at_s: float, more: Message
) -> Message:
    """What a host says of a rank that ended."""
    label, local = place
    said = {"ev": "rank-exit", "id": number, "host": label, "rank": rank, "local": local}
    rest = {"pid": 100 + rank, "code": code, "at": at_s, "halted": False, "error": "", "tail": []}
    return {**said, **rest, **more}


class Attempts:
    """Hosts of two ranks each, and attempts on them."""

    def __init__(self, clock: FakeClock, *labels: str) -> None:
        self.clock = clock
        self.crew = FakeCrew(clock, *(labels or TWO), nproc=2)
        self.console = Console(lambda rank, local: f"[{rank}.{local}]:")
        self.line = "--nnodes=2"
        self.settings: dict[str, Any] = {}
        self.events = "null"

    def run(self, hosts: list[str] | None = None, **more: Any) -> Outcome:
        """One attempt."""
        attempt = Attempt(
            make_settings(self.line, **self.settings),
            cast("Any", self.crew),
            self.console,
            EventLog(self.events, "default", "fresh"),
            attempt=more.pop("attempt", 0),
            restarts=more.pop("restarts", 0),
            clock=self.clock,
        )
        return attempt.run(hosts or TWO)

    def script(self, *steps: Callable[[], None]) -> None:
        """What happens once ranks are launched."""
        self.crew.scripts.append(lambda: [step() for step in steps] and None)

    def fails(self, kind: type[BaseException], hosts: list[str] | None = None) -> Any:
        """What an attempt raises; whatever it is, all hosts are told that it is over."""
        with pytest.raises(kind) as caught:
            self.run(hosts)
        assert self.crew.told()[-2:] == ["done w/0", "done w/1"]
        assert not self.crew.live
        return caught.value


class Runs:
    """Three hosts of one rank, and runs on them."""

    def __init__(self, clock: FakeClock, patch: pytest.MonkeyPatch) -> None:
        registry.folder_of(APPLY_ID).mkdir(parents=True)
        self.events = Events(APPLY_ID)
        self.crew = FakeCrew(clock, "w/0", "w/1", "w/2")
        patch.setattr(run_module, "Attempt", functools.partial(Attempt, clock=clock))
        patch.setattr(run_module, "Crew", self._make_crew)

    def _make_crew(self, target: Any, show: Callable[[Any], None]) -> Any:
        assert target is self.crew.target
        self.crew.show = show
        return self.crew

    def run(self, line: str, *scripts: Callable[[], None], **more: Any) -> None:
        """Run a program; each script says what happens in one attempt."""
        self.crew.scripts = list(scripts)
        more.setdefault("events", self.events)
        try:
            run_module.run(self.crew.target, read_launch(line), **more)
        finally:
            assert self.crew.closed

    @property
    def attempts(self) -> list[list[str]]:
        """Who took part in each attempt."""
        found: dict[str, list[str]] = {}
        for op, label, message in self.crew.orders:
            if op == "launch":
                found.setdefault(message["id"], []).append(label)
        return list(found.values())

    @property
    def counts(self) -> list[str]:
        """What ranks were told of restarts, attempt by attempt."""
        told = {order["id"]: order["ranks"][0]["env"] for order in self.crew.messages("launch")}
        return [env["TORCHELASTIC_RESTART_COUNT"] for env in told.values()]

    @property
    def told(self) -> list[tuple[str, str]]:
        """The events of the job."""
        return [(event.what, event.detail) for event in self.events.load()]

    # What happens in an attempt

    def succeed(self) -> None:
        """All ranks succeed."""
        self.crew.exit_all()

    def fail(self) -> None:
        """Rank 1 fails."""
        self.crew.exit(1, 3)

    def lose(self) -> None:
        """Host w/1 is lost."""
        self.crew.lose("w/1")

    def come(self) -> None:
        """Host w/1 is there again, later."""
        self.crew.inbox.after(5.0, self._come)

    def _come(self) -> None:
        self.crew.gone.discard("w/1")
        self.crew.lost.pop("w/1", None)
        self.crew.present = ["w/0", "w/1", "w/2"]
