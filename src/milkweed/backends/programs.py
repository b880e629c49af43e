"""Running a scheduler's own commands, and asking for a queue no more often than it is worth."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import UnreachableError

Row = TypeVar("Row")
_T = TypeVar("_T")
_PR_SET_PDEATHSIG = 1
SLOWEST_S = 10.0
"""The longest pause between two looks at the queue."""
_PACE = 0.1
"""After waiting for t seconds without a change, look again after this share of t."""


LEAST_S = 2.0
"""How long a command may take in any case: one that is asked at the last moment must be able to answer."""
_until_s: ContextVar[float | None] = ContextVar("_until_s", default=None)
_unhurried: ContextVar[bool] = ContextVar("_unhurried", default=False)


@contextlib.contextmanager
def within(deadline_s: float | None) -> Generator[None]:
    """Wait for no command beyond a deadline, as `time.monotonic` counts."""
    token = _until_s.set(deadline_s)
    try:
        yield
    finally:
        _until_s.reset(token)


@contextlib.contextmanager
def unhurried() -> Generator[None]:
    """Read a queue no more often than it is worth: who waits looks again and again, maybe for hours."""
    token = _unhurried.set(True)
    try:
        yield
    finally:
        _unhurried.reset(token)


def is_late() -> bool:
    """Whether the deadline of what is done now is over."""
    until_s = _until_s.get()
    return until_s is not None and time.monotonic() >= until_s


def _limit(timeout_s: float) -> float:
    until_s = _until_s.get()
    return (
        timeout_s if until_s is None else min(timeout_s, max(LEAST_S, until_s - time.monotonic()))
    )


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    said: str
    trouble: str


def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    text: str = "",
    cwd: str | None = None,
    tied: bool = False,
    apart: bool = False,
) -> Done:
    """Run a command to its end; FileNotFoundError or subprocess.TimeoutExpired when there is none.

    One that is `tied` ends with this process, however that ends. One that is `apart` has no terminal: Ctrl-C is
    for the program that runs it, which then ends it and all that it has started.
    """
    with subprocess.Popen(  # noqa: S603  a list of arguments: there is nothing to quote
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=apart,
        preexec_fn=_make_tie() if tied else None,  # noqa: PLW1509  it takes no lock
    ) as program:
        try:
            # a path need not be text
            answer = program.communicate(os.fsencode(text), timeout=_limit(timeout_s))
        except BaseException:  # a deadline, or Ctrl-C: nobody hears the answer
            _end(program, apart=apart)
            raise
    said, trouble = (data.decode(errors="replace") for data in answer)
    return Done(program.returncode, said, trouble)


def _end(program: subprocess.Popen[bytes], *, apart: bool) -> None:
    """End a command; a site's own may be a script, whose last words must not come later than ours."""
    # As long as nobody has waited for it, its number is its own.
    if apart and program.poll() is None:
        os.killpg(program.pid, signal.SIGKILL)
    else:
        program.kill()


def _make_tie() -> Callable[[], object]:
    """What a new process does to be killed when the one that started it is gone."""
    libc = ctypes.CDLL(None)  # loaded before the fork: after it, other threads' locks stay locked
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_program(
    argv: Sequence[str], env: Mapping[str, str], *, tied: bool = False
) -> subprocess.Popen[str]:
    """Start a command to talk with what it runs; one that is `tied` ends with this process."""
    return subprocess.Popen(  # noqa: S603  a list of arguments: there is nothing to quote
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
        preexec_fn=_make_tie() if tied else None,  # noqa: PLW1509  it takes no lock
    )


def read_answer(command: str, read: Callable[[], _T]) -> _T:
    """What a command printed, as a value: what cannot be read says nothing."""
    try:
        return read()
    except ValueError as error:
        what = f"what {command} printed cannot be read"
        hint = "try again; if it stays so, look what the command prints"
        raise UnreachableError(what, seen=f"{command}: {error}", hint=hint) from error


class PacedQueue(Generic[Row]):
    """A user's jobs, read at most once for everybody who waits in this process."""

    def __init__(
        self,
        read: Callable[[], list[Row]],
        gist: Callable[[list[Row]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gist` is what of the jobs is worth looking again for."""
        self._load = read
        self._gist = gist
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._read_s = self._changed_s = float("-inf")
        self._error: UnreachableError | None = None
        self.queries = 0

    def rows(self, max_age_s: float | None = None) -> list[Row]:
        """The jobs; not older than asked for, or than it is worth after waiting so long.

        Who asks for 0.0 must know what is from now on, also while somebody waits.
        """
        with self._lock:
            now_s = self._clock()
            paced = max_age_s is None or (max_age_s > 0 and _unhurried.get())
            if now_s - self._read_s >= (self._pace_s(now_s) if paced else max_age_s or 0.0):
                self._read()
            if self._error is not None:
                raise self._error
            return self._rows

    def _pace_s(self, now_s: float) -> float:
        return min(SLOWEST_S, max(0.02, (now_s - self._changed_s) * _PACE))

    def _read(self) -> None:
        self.queries += 1
        began_s = self._clock()
        try:
            rows = self._load()
        except UnreachableError as error:
            self._error = error
        else:
            if self._gist(rows) != self._gist(self._rows):
                self._changed_s = self._clock()
            self._rows, self._error = rows, None
        self._read_s = began_s

    def wake(self) -> None:
        """Something happened: look soon, and often."""
        with self._lock:
            self._read_s = float("-inf")
            self._changed_s = self._clock()
