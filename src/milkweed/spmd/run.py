"""Running a torchrun program on a job's hosts: attempts, restarts, fewer and more hosts, and the report."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from ..errors import HostFailedError, RanksFailedError
from ..events import Events
from ..job.preparing import find_sent
from .attempt import Attempt, Ending, Outcome, Settings
from .console import Console, EventLog, say
from .crew import Crew
from .inbox import Interrupted
from .launch import Launch
from .layout import PREFIX, PREFIX_ENV, make_prefix, passed_on, pick_known
from .report import copy_error, describe_end, make_report
from .target import Target, check_size

ERROR_FILE_ENV = "TORCHELASTIC_ERROR_FILE"
JOIN_TIMEOUT_S = 600.0
LAST_CALL_S = 30.0


def run(
    target: Target,
    launch: Launch,
    *,
    wrapper: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    events: Events | None = None,
    gathered: Callable[[], object] = lambda: None,
) -> None:
    """Run the program to its end; RanksFailedError when a rank failed and no restart is left.

    `wrapper` is a command that sets up an environment and runs its arguments; `env` are variables of all ranks.
    `gathered` is called when hosts are there, before ranks start.
    """
    check_size(target.spec, target.mesh, launch.min_nodes)
    _tell_size(target, launch)
    template = os.environ.get(PREFIX_ENV) or PREFIX
    given = {**passed_on(os.environ), **(env or {}), **launch.env}
    here = target.backend.capabilities.machine_bound
    settings = Settings(
        launch=launch,
        wrapper=wrapper,
        env=given,
        shell=dict(os.environ) if here else None,
        known={} if here else pick_known(os.environ, given),
        cwd=_choose_folder(target, cwd),
        template=template,
        token=uuid.uuid4().hex[:8],
    )
    for note in launch.notes:
        say(note)
    console = Console(lambda rank, local: make_prefix(launch, template, rank, local))
    crew = Crew(target, console.take)
    try:
        with _signals(launch.signals, crew.interrupt):
            _Run(settings, crew, console, events, gathered).run()
    except Interrupted as stop:
        _raise_interrupt(stop.name)
    finally:
        crew.close()


def _choose_folder(target: Target, folder: str | None) -> str:
    """Where ranks run: in a folder that was named, else here; where hosts do not have that, where it was sent to.

    One that was not sent is looked for on hosts when it was named; else ranks run where hosts are.
    """
    if target.backend.capabilities.shares_files:
        return folder or os.getcwd()
    sent = find_sent(target.spec.client.get("sync_dirs") or (), folder or os.getcwd())
    return sent or folder or ""


def _tell_size(target: Target, launch: Launch) -> None:
    """Torchrun uses one machine unless it is told otherwise; that may surprise those who have more."""
    hosts = len(target.labels)
    if launch.max_nodes < hosts:
        verb = "takes" if launch.max_nodes == 1 else "take"
        say(f"{launch.max_nodes} of the {hosts} hosts of {target.mesh} {verb} part (--nnodes)")


def _raise_interrupt(name: str) -> None:
    """End as a program does that got the signal."""
    if name == "SIGINT":
        raise KeyboardInterrupt
    raise SystemExit(128 + signal.Signals[name])


@contextlib.contextmanager
def _signals(names: Sequence[str], take: Callable[[str], None]) -> Generator[None]:
    """Hand signals on to the ranks while they run; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.Signals[name] for name in names]

    def heard(number: int, _frame: Any) -> None:
        take(signal.Signals(number).name)

    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """All attempts."""

    def __init__(
        self,
        settings: Settings,
        crew: Crew,
        console: Console,
        events: Events | None,
        gathered: Callable[[], object],
    ) -> None:
        self._settings = settings
        self._launch = settings.launch
        self._crew = crew
        self._console = console
        self._events = events
        self._gathered = gathered
        self._log = EventLog(self._launch.event_log_handler, self._launch.role, self._launch.run_id)
        self._attempts = 0
        self._restarts = 0

    def run(self) -> None:
        while True:
            hosts = self._gather()
            self._gathered()
            self._note("ranks started", f"on {', '.join(hosts)}")
            outcome = self._attempt(hosts)
            if outcome.ending is Ending.DONE:
                self._note("ranks ended", f"all {outcome.size} succeeded")
                return
            self._go_on(outcome)

    def _gather(self) -> list[str]:
        launch = self._launch
        # Without a word of the person, a job in a queue is waited for as long as it takes.
        first = self._attempts == 0
        patience_s = launch.join_timeout_s or (float("inf") if first else JOIN_TIMEOUT_S)
        last_call_s = launch.last_call_timeout_s
        return self._crew.gather(
            launch.min_nodes,
            launch.max_nodes,
            timeout_s=patience_s,
            last_call_s=LAST_CALL_S if last_call_s is None else last_call_s,
        )

    def _attempt(self, hosts: Sequence[str]) -> Outcome:
        attempt = Attempt(
            self._settings,
            self._crew,
            self._console,
            self._log,
            attempt=self._attempts,
            restarts=self._restarts,
        )
        self._attempts += 1
        return attempt.run(hosts)

    def _go_on(self, outcome: Outcome) -> None:
        """Find out whether there is another attempt, and say so; else raise what ended this one."""
        if outcome.ending is Ending.GROWN:
            self._tell("ranks restart", "more hosts are there")
            return
        if outcome.ending is Ending.LOST:
            self._go_on_without(outcome)
            return
        if self._restarts < self._launch.max_restarts:
            self._restarts += 1
            words = describe_end(outcome.failures[0])
            self._tell("ranks restart", f"{words}; restart {self._count()}")
            return
        self._note("ranks failed", describe_end(outcome.failures[0]))
        if path := os.environ.get(ERROR_FILE_ENV):
            copy_error(outcome.failures[0], path)
        raise make_report(outcome, restarts=self._restarts)

    def _go_on_without(self, outcome: Outcome) -> None:
        words = f"host {outcome.host} is lost: {outcome.reason}"
        self._crew.revive()
        left = len(self._crew.present)
        if self._launch.elastic and left >= self._launch.min_nodes:
            self._tell("ranks restart", f"{words}; going on with {left} hosts")
        elif self._restarts < self._launch.max_restarts or self._launch.elastic:
            self._restarts += not self._launch.elastic
            self._tell("ranks restart", f"{words}; waiting for {self._launch.min_nodes} hosts")
        else:
            self._note("ranks failed", words)
            raise HostFailedError(
                f"host {outcome.host} was lost while ranks ran there",
                seen=outcome.reason,
                hint="--nnodes MIN:MAX goes on with fewer hosts, --max-restarts waits for them",
            )

    def _count(self) -> str:
        return f"{self._restarts} of {self._launch.max_restarts}"

    def _tell(self, what: str, words: str) -> None:
        self._note(what, words)
        say(words)

    def _note(self, what: str, words: str) -> None:
        if self._events is not None:
            self._events.add(what, detail=words)


__all__ = ["RanksFailedError", "run"]
