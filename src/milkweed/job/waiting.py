"""Waiting for a job without a connection to it, and what an interrupted wait does with a job in the queue."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TextIO, TypeVar

from ..backends.base import Admits, Backend, Controls, Glances, Handle
from ..backends.programs import is_late, unhurried, within
from ..backends.standing import Standing
from ..bell import bell
from ..control import parse_door
from ..errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    MilkweedError,
    SpecError,
    UnreachableError,
)
from ..image import is_prepared
from ..logs import write
from ..spec import JobSpec
from ..state import Record
from ..status import HostState, Liveness, Status
from .observing import find_standing
from .preparing import prepare_hosts
from .progress import Progress
from .watch import say

_T = TypeVar("_T")
GOALS = ("running", "ended")
FIRST_POLL_S = 0.01
SLOWEST_POLL_S = 2.0


@contextlib.contextmanager
def limited(timeout_s: float | None) -> Generator[float | None]:
    """The deadline of all that is done meanwhile; a scheduler's commands are not waited for beyond it."""
    deadline_s = time.monotonic() + timeout_s if timeout_s else None
    with within(deadline_s):
        yield deadline_s


def wait_until(
    goal: str,
    look: Callable[[], Status],
    *,
    name: str,
    timeout_s: float | None,
    sleep: Callable[[float], object] = bell.wait,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Look until the job is «running» (every host ready) or has «ended»."""
    if goal not in GOALS:
        raise SpecError(f"until: {goal!r} is not known", hint="say «running» or «ended»")
    progress = Progress(f"waiting until job {name!r} is {goal}", clock=clock)
    pause_s = FIRST_POLL_S
    while not _is_reached(goal, status := look()):
        progress.see(status.describe())
        if timeout_s is not None and progress.waited_s >= timeout_s:
            raise DeadlineError(
                f"the job was not {goal} within {timeout_s:g} s",
                seen=status.describe(),
                hint="nothing was cancelled: wait again, or kill()",
            )
        sleep(pause_s)
        pause_s = min(pause_s * 1.5, SLOWEST_POLL_S)
    return status


@dataclass
class Trail:
    """What the looks of one wait share: what has ended is over for good, and not asked about again."""

    _recorded: Handle | None = None
    _followed: Handle | None = None
    _lost: frozenset[str] = frozenset()

    def reach(self, record: Record) -> Record:
        """The record; once what is recorded has ended, that of its follow-up."""
        if self._followed is None or record.handle != self._recorded:
            return record
        return replace(record, handle=dict(self._followed))

    def is_news(self, status: Status) -> bool:
        """Whether hosts are lost that were not at the look before."""
        return not _lost_in(status) <= self._lost

    def note(self, record: Record, found: Standing) -> None:
        """Go on from what a look has found."""
        self._lost = _lost_in(found.status)
        if found.before.liveness is Liveness.ENDED and found.handle:
            self._recorded, self._followed = record.handle, found.handle


def _lost_in(status: Status) -> frozenset[str]:
    return frozenset(host.host for host in status.lost_hosts)


def look(backend: Backend, record: Record, trail: Trail | None = None) -> Status:
    """The status; while a scheduler still has the job in its queue, hosts are not asked.

    One that has ended, or ends, may have a follow-up: then it is its hosts that are let in. All looks of a wait
    share a `trail`.
    """
    trail = trail or Trail()
    now = trail.reach(record)
    with unhurried():
        glanced = _glance(backend, now)
        if glanced and not _tells_more(glanced):
            return glanced
        over = glanced if glanced and glanced.liveness is not Liveness.RUNNING else None
        found = find_standing(backend, now, (lambda _handle: over) if over else None)
    if glanced and trail.is_news(found.status):
        # The queue may have been read before they were lost.
        found = find_standing(backend, now)
    trail.note(record, found)
    _help_in(backend, record.spec, found)
    return found.status


def _glance(backend: Backend, record: Record) -> Status | None:
    if record.handle is None or not isinstance(backend, Glances):
        return None
    return backend.glance(record.handle)


def _tells_more(glanced: Status) -> bool:
    """Whether there are hosts to be asked, or a follow-up may have taken over."""
    return glanced.liveness in {Liveness.RUNNING, Liveness.ENDED} or glanced.ending


def _help_in(backend: Backend, spec: JobSpec, found: Standing) -> None:
    """Hosts that are silent may wait to be let in, or to be prepared."""
    silent = [host.host for host in found.status.hosts if host.state is HostState.STARTING]
    if silent and isinstance(backend, Admits):
        with contextlib.suppress(UnreachableError):  # then they are let in later
            backend.admit(found.handle, silent)
    if silent and isinstance(backend, Controls):
        _prepare(backend, spec, found.handle, silent)


def _prepare(backend: Controls, spec: JobSpec, handle: Handle, silent: Sequence[str]) -> None:
    """Hosts may wait for what their image says, and their folders; one that does not answer yet is tried later."""
    if not any(is_prepared(spec.client, mesh) for mesh in spec.sizes):
        return
    with contextlib.suppress(UnreachableError):
        doors = backend.controls(handle)
        prepare_hosts(spec, [door for door in doors if parse_door(door).host in silent])


def insist(
    act: Callable[[], _T],
    *,
    name: str,
    patient: bool,
    timeout_s: float | None,
    sleep: Callable[[float], object] = bell.wait,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Do something that changes nothing while its scheduler does not answer, until it answers."""
    progress = Progress(f"waiting for the scheduler of job {name!r}", clock=clock)
    pause_s = 0.1
    while True:
        try:
            return act()
        except UnreachableError as error:
            if not patient:
                raise
            seen = error.seen or error.what
            progress.see(seen)
            if timeout_s is not None and (progress.waited_s >= timeout_s or is_late()):
                raise DeadlineError(
                    f"the scheduler of job {name!r} did not tell within {timeout_s:g} s what becomes of it",
                    seen=seen,
                    hint="nothing was changed: try again later",
                ) from error
        sleep(pause_s)
        pause_s = min(pause_s * 1.5, SLOWEST_POLL_S)


def untimed(call: Callable[[], _T]) -> _T:
    """Do something after a wait: the deadline was for the wait, not for tidying up."""
    with within(None):
        return call()


@contextlib.contextmanager
def interruptible(gives_up: Callable[[], bool], kill: Callable[[], None]) -> Generator[None]:
    """Ctrl-C while a job waits in a queue: what becomes of it is the person's word."""
    try:
        yield
    except KeyboardInterrupt as error:
        if gives_up():
            kill_after(kill, error)
        raise


def kill_after(kill: Callable[[], None], error: BaseException) -> None:
    """End what an error leaves behind; the error is what a person must see, whatever happens now."""
    try:
        untimed(kill)
    except MilkweedError as trouble:
        error.add_note(f"the job could not be ended: {trouble.what}; `milkweed kill` does it later")


def _is_reached(goal: str, status: Status) -> bool:
    if status.liveness is Liveness.ENDED:
        if goal == "ended":
            return True
        raise AllocationEndedError("the allocation has ended", seen=status.reason)
    if goal == "running" and (failed := status.lost_hosts):
        raise HostFailedError(f"host {failed[0].host} has failed", seen=failed[0].reason)
    return goal == "running" and status.ready


def should_cancel(word: str, status: Status, *, name: str, recorded: str) -> bool:
    """Whether Ctrl-C ends a job that waits in the queue; either way a person is told.

    One of which nobody knows that it waits stays, whatever was said: it may run.
    """
    shown = f"job {name!r} is {status.describe()}"
    if status.liveness is not Liveness.PENDING:
        word = "keep"
    if word == "ask":
        word = _ask(shown) if _is_terminal(sys.stdin) and _is_terminal(sys.stderr) else "keep"
    if word == "cancel":
        say(f"{shown}; it is being cancelled")
        return True
    say(f"{shown}; it stays, on record in {recorded}")
    say(f"run the program again to go on waiting, or end it with `milkweed kill {name}`")
    return False


def _is_terminal(file: TextIO | None) -> bool:
    """Whether a person is at the other end; a program may also have closed it, or have none."""
    try:
        return file is not None and file.isatty()
    except ValueError:
        return False


def _ask(shown: str) -> str:
    write(sys.stderr, f"\nmilkweed: {shown}\nKeep it in the queue? [Y/n] ")
    try:
        return "cancel" if sys.stdin.readline().strip().lower() in {"n", "no"} else "keep"
    except (KeyboardInterrupt, OSError, ValueError):
        return "keep"
