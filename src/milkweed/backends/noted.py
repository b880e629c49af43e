"""Asking a scheduler for a job, and what may still come of it when it was not answered.

A scheduler that was frozen, or busy, reads a request after its sender has given up, and may answer a look at the
queue before that. So a job that was asked for in vain is known not to be there only after a second look.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import BackendError, UnreachableError

_T = TypeVar("_T")
SETTLE_S = 5.0
"""How long a scheduler that answers again may take over what was sent to it before."""
_NOTE = "asked-for"
"""A file that is there from before a scheduler is asked until its answer is known."""


def ask_noted(folder: Path, ask: Callable[[], _T]) -> _T:
    """Ask for a job. UnreachableError: nobody knows whether it was taken."""
    note = folder / _NOTE
    before = note.exists()
    note.touch(mode=0o600)
    try:
        answer = ask()
    except UnreachableError:
        raise
    except BackendError:
        _settle(note, before=before)
        raise
    _settle(note, before=before)
    return answer


def _settle(note: Path, *, before: bool) -> None:
    """This one was answered; an earlier one may not have been."""
    if not before:
        note.unlink(missing_ok=True)


def is_asked(folder: Path) -> bool:
    """Whether something was asked for, and the answer is not known."""
    return (folder / _NOTE).exists()


def settle(folder: Path, sleep: Callable[[float], object]) -> None:
    """Wait until a look tells what came of something that was asked for in vain."""
    if is_asked(folder):
        sleep(SETTLE_S)


def look_twice(
    folder: Path, read: Callable[[], list[_T]], sleep: Callable[[float], object]
) -> list[_T]:
    """What a scheduler has of a job; nothing only when nothing can come any more."""
    found = read()
    if not found and is_asked(folder):
        settle(folder, sleep)
        found = read()
    return found
