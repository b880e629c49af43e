"""One attempt: ranks on all hosts from their start to the last one's end."""

from __future__ import annotations

import contextlib
import enum
import json
import queue
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DeadlineError, SpecError
from .console import Console, EventLog, say
from .crew import LOOK_EVERY_S, REJOIN_S, Crew
from .inbox import Interrupted
from .launch import Launch
from .layout import Gathering, lay_out, make_command, make_ranks

Message = Mapping[str, Any]
ANSWER_S = 60.0
"""How long a host may take to start its ranks."""
SLACK_S = 10.0
"""How much longer than the grace time a host may take to end ranks."""
VERDICT_S = REJOIN_S + SLACK_S
"""How long it may take until a host that does not answer is back, or lost."""
TICK_S = 0.5


class Ending(enum.Enum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    GROWN = "grown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended, and what tells why."""

    ending: Ending
    failures: tuple[Message, ...] = ()
    """Ranks that failed, the first one first; those that were ended for it come after."""
    host: str = ""
    reason: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all attempts of a run have in common."""

    launch: Launch
    wrapper: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    shell: Mapping[str, str] | None = None
    """All variables of the person's own environment, where hosts are this very machine."""
    known: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of it that may be missed, where they are not."""
    cwd: str = ""
    template: str = ""
    token: str = ""
    """Tells this run from all others."""


class Attempt:
    """Starts ranks, waits for them, and ends those that are left."""

    def __init__(
        self,
        settings: Settings,
        crew: Crew,
        console: Console,
        events: EventLog,
        *,
        attempt: int,
        restarts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._launch = settings.launch
        self._crew = crew
        self._console = console
        self._events = events
        self._attempt = attempt
        self._restarts = restarts
        self._clock = clock
        self._number = f"{settings.token}.{attempt}"
        self._running: set[int] = set()
        self._started: set[int] = set()
        self._failures: list[Message] = []
        self._ranks: dict[str, list[int]] = {}
        self._hosts: Sequence[str] = ()
        self._missed: _Lost | None = None
        """Which host was lost while ranks were being ended anyway."""
        self._stop: Interrupted | None = None
        """What wanted it to end while ranks were being ended anyway."""

    def run(self, hosts: Sequence[str]) -> Outcome:
        """Run the program on these hosts until it has ended, one way or another."""
        self._hosts = hosts
        self._crew.begin(self._number)
        try:
            outcome = self._run(hosts)
        except (Interrupted, KeyboardInterrupt) as stop:
            if (
                self._stop is not None
            ):  # they were being ended already, and more than one wants that
                raise self._stop from stop
            self._halt(stop.name if isinstance(stop, Interrupted) else "SIGINT")
            raise
        except BaseException:  # whatever it is, no rank may stay
            self._halt("SIGTERM")
            raise
        finally:
            for host in hosts:
                self._crew.order(host, {"op": "done", "id": self._number})
        if self._stop is not None:
            raise self._stop
        return outcome

    def _run(self, hosts: Sequence[str]) -> Outcome:
        try:
            self._check_there(hosts)
            gathering = self._prepare(hosts)
            self._start(gathering)
            return self._watch(gathering)
        except _Lost as lost:
            self._halt("SIGTERM")
            return Outcome(ending=Ending.LOST, host=lost.host, reason=lost.reason)

    def _check_there(self, hosts: Sequence[str]) -> None:
        """What was heard before the attempt is forgotten, but not that a host is gone."""
        for host, reason in self._crew.lost.items():
            if host in hosts:
                raise _Lost(host, reason)

    # Starting

    def _prepare(self, hosts: Sequence[str]) -> Gathering:
        """Ask hosts how many ranks they take, and the first one for a port."""
        launch = self._launch
        order = {"op": "prepare", "id": self._number, "nproc": launch.nproc, **self._variables()}
        order |= {"known": dict(self._settings.known), "numa": launch.numa_binding}
        for host in hosts:
            first = host == hosts[0] and launch.master_port is None
            self._crew.order(host, {**order, "port": first})
        answers = self._collect("prepared", hosts)
        self._tell_unlike({name for each in answers.values() for name in each.get("unlike", ())})
        counts = [(host, int(answers[host]["nproc"])) for host in hosts]
        return Gathering(
            groups=lay_out(counts),
            master_addr=self._master(hosts),
            master_port=launch.master_port or int(answers[hosts[0]]["port"]),
            attempt=self._attempt,
            restarts=self._restarts,
        )

    def _variables(self) -> dict[str, Any]:
        """What hosts are told of variables, before they start ranks and then."""
        shell = self._settings.shell
        return {
            "env": dict(self._settings.env),
            "shell": None if shell is None else dict(shell),
        }

    def _tell_unlike(self, names: Collection[str]) -> None:
        if names and self._attempt == 0:
            are = "is" if len(names) == 1 else "are"
            which = ", ".join(sorted(names))
            say(
                f"{which} of your shell {are} not what ranks have: --set-env NAME=VALUE hands it on"
            )

    def _master(self, hosts: Sequence[str]) -> str:
        launch = self._launch
        return launch.master_addr or launch.local_addr or self._crew.address(hosts[0], hosts)

    def _start(self, gathering: Gathering) -> None:
        groups = gathering.groups
        self._console.expect({group.host: group.first for group in groups})
        common = self._make_order()
        for group in groups:
            ranks = make_ranks(self._launch, gathering, group, self._settings.template)
            self._ranks[group.host] = [rank["rank"] for rank in ranks]
            self._running.update(self._ranks[group.host])
            # Hosts may be processes of one machine: each has a folder of its own.
            folder = f"{common['folder']}_{group.host.replace('/', '_')}"
            self._crew.order(group.host, {**common, "folder": folder, "ranks": ranks})
        self._collect("launched", [group.host for group in groups])

    def _make_order(self) -> dict[str, Any]:
        launch = self._launch
        run_id = launch.run_id.replace("/", "_")
        wrapper = self._settings.wrapper
        # A wrapper brings an environment, and with it the Python that is meant.
        python = "python" if wrapper and "PYTHON_EXEC" not in self._settings.env else None
        return {
            "op": "launch",
            "id": self._number,
            "argv": make_command(launch, wrapper, python=python),
            "fixed": len(wrapper) + 1,
            **self._variables(),
            "cwd": self._settings.cwd,
            "log_dir": launch.log_dir if launch.keeps_logs else None,
            "errors": launch.keeps_logs,
            "folder": f"{run_id}_{self._settings.token}",
            "attempt": self._restarts,
            "filters": {"out": list(launch.stdout_filters), "err": list(launch.stderr_filters)},
            "numa": launch.numa_binding,
            "virtual": launch.virtual_local_rank,
        }

    def _collect(self, word: str, hosts: Sequence[str]) -> dict[str, Message]:
        """Wait for an answer of every host."""
        answers: dict[str, Message] = {}
        deadline_s = self._clock() + ANSWER_S
        for message in self._messages():
            if message and message["ev"] == word and message["id"] == self._number:
                if error := message.get("error"):
                    # It has ended what it started: nothing more will be heard of these ranks.
                    self._running.difference_update(self._ranks.get(message["host"], ()))
                    raise SpecError(f"host {message['host']} cannot start ranks: {error}")
                answers[message["host"]] = message
                if word == "launched":
                    self._note_started(self._ranks[message["host"]])
            if set(hosts) <= set(answers):
                break
            if self._clock() > deadline_s:
                silent = ", ".join(sorted(set(hosts) - set(answers)))
                raise DeadlineError(
                    f"hosts did not start their ranks within {ANSWER_S:g} s: {silent}"
                )
        return answers

    def _note_started(self, ranks: Collection[int]) -> None:
        """Note each once: a short rank may end before another host has started its own."""
        for rank in sorted(set(ranks) - self._started):
            self._events.add("START", global_rank=rank)
        self._started.update(ranks)

    # Watching

    def _messages(self) -> Iterator[Message | None]:
        """What hosts say, as it comes; None now and then. Ranks' ends are noted on the way."""
        while True:
            try:
                message = self._crew.inbox.get(timeout=TICK_S)
            except queue.Empty:
                yield None
                continue
            if message["ev"] == "signal":
                raise Interrupted(str(message["name"]))
            if message["ev"] == "lost":
                self._saw_lost(message)
            elif message["ev"] == "rank-exit" and message["id"] == self._number:
                self._saw_exit(message)
            yield message

    def _saw_exit(self, message: Message) -> None:
        if message["rank"] in self._running:
            self._running.discard(message["rank"])
            self._note_started([message["rank"]])
            code = message["code"]
            state = "FAILED" if code else "SUCCEEDED"
            self._events.add(state, global_rank=message["rank"], exit_code=code)
            if code:
                self._failures.append(message)

    def _saw_lost(self, message: Message) -> None:
        if message["host"] in self._hosts:
            self._running.difference_update(self._ranks.get(message["host"], ()))
            raise _Lost(str(message["host"]), str(message["reason"]))

    def _watch(self, gathering: Gathering) -> Outcome:
        looked_s = self._clock()
        for message in self._messages():
            if self._failures:
                self._halt("SIGTERM")
                if self._launch.elastic:
                    self._raise_lost()
                return self._make_failure(gathering.size)
            if not self._running:
                return Outcome(ending=Ending.DONE, size=gathering.size)
            if message and message["ev"] == "looked" and self._has_grown(message, gathering):
                self._halt("SIGTERM")
                return Outcome(ending=Ending.GROWN, size=gathering.size)
            may_grow = len(gathering.groups) < self._launch.max_nodes
            if may_grow and self._clock() - looked_s >= LOOK_EVERY_S:
                looked_s = self._clock()
                self._crew.look_aside()
        raise AssertionError("messages never end")

    def _has_grown(self, looked: Message, gathering: Gathering) -> bool:
        """Whether more hosts are there than take part."""
        if error := looked.get("error"):
            raise error
        return len(self._crew.present) > len(gathering.groups)

    def _raise_lost(self) -> None:
        """Raise that a host is lost, when it is: ranks elsewhere fail for it sooner than that is known."""
        if self._missed is not None:
            raise self._missed
        self._crew.probe(self._hosts)
        deadline_s = self._clock() + VERDICT_S
        if self._crew.unsure(self._hosts):
            for _message in self._messages():
                if not self._crew.unsure(self._hosts) or self._clock() >= deadline_s:
                    break
        self._check_there(self._hosts)

    def _make_failure(self, size: int) -> Outcome:
        order = sorted(self._failures, key=_when)
        return Outcome(ending=Ending.FAILED, failures=tuple(order), size=size)

    # Ending

    def _halt(self, name: str) -> None:
        """End all ranks that are left, and wait until they are gone."""
        grace_s = self._launch.shutdown_timeout_s
        order = {"op": "halt", "id": self._number, "signal": name, "grace_s": grace_s}
        for host in self._ranks:
            self._crew.order(host, order)
        deadline_s = self._clock() + grace_s + SLACK_S
        with contextlib.suppress(
            KeyboardInterrupt
        ):  # a second one: they are made to end, not asked
            self._wait_gone(deadline_s)
            return
        for host in self._ranks:
            self._crew.order(host, {**order, "signal": "SIGKILL", "grace_s": 0})
        self._wait_gone(self._clock() + SLACK_S)

    def _wait_gone(self, deadline_s: float) -> None:
        while self._running and self._clock() < deadline_s:
            try:
                for _message in self._messages():
                    if not self._running or self._clock() >= deadline_s:
                        return
            except _Lost as lost:
                self._missed = self._missed or lost
            except Interrupted as stop:
                self._stop = stop
                raise KeyboardInterrupt from None


def _when(failure: Message) -> tuple[bool, int, bool, float]:
    """When a rank failed, in whole seconds: as its error file says, else when it ended.

    A rank that was ended for another's failure may have recorded the exception that led to it; one that did
    not comes after all others, whatever its host's clock says.
    """
    try:
        told: Any = json.loads(failure["error"])
        return (
            False,
            int(told["message"]["extraInfo"]["timestamp"]),
            failure["halted"],
            failure["at"],
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return failure["halted"], int(failure["at"]), failure["halted"], failure["at"]


class _Lost(Exception):  # noqa: N818  it is passed on as an outcome
    """A host that takes part is lost."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host)
        self.host = host
        self.reason = reason
