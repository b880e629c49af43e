"""Why a call to lost hosts has failed: the error says so itself, however its result is waited for."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

LEARN_S = 10.0
"""How long a call that has failed waits until it is known why; a scheduler that was asked has answered by then."""
KINDS = (RuntimeError, OSError, ValueError)
"""What the engine raises, and time-outs. What an actor raised is of a kind of its own, with its own reason."""


class Knows(Protocol):
    """Who knows how the hosts of a job are."""

    @property
    def left(self) -> bool:
        """Whether this program has left them."""
        ...

    def is_troubled(self) -> bool:
        """Whether hosts are gone or out of reach."""
        ...

    def describe_loss(self, patience_s: float) -> Sequence[str]:
        """What became of hosts; it may take so long until that is known."""
        ...


class _Left:
    """All hosts that this program has left: what fails there is no news, and nothing more is told of it."""

    left = True

    def is_troubled(self) -> bool:
        return True

    def describe_loss(self, patience_s: float) -> Sequence[str]:
        del patience_s
        return ()


knowing: list[Knows] = []
_lock = threading.Lock()


def learn_from(knows: Knows) -> None:
    """Have errors tell what somebody knows; of hosts that were left no more is kept than that there were some."""
    with _lock:
        were_left = any(each.left for each in knowing)
        others = [each for each in knowing if not each.left and each is not knows]
        knowing[:] = [*([_Left()] if were_left else []), *others, knows]


def are_known() -> bool:
    """Whether hosts of this program are gone or out of reach, and it was told so, or has left them."""
    return any(knows.is_troubled() for knows in tuple(knowing))


def _is_more_to_tell() -> bool:
    return any(knows.is_troubled() for knows in tuple(knowing) if not knows.left)


def explain_failures(results: Any) -> None:
    """Have errors say what is known of lost hosts; `results` is the class of what calls return.

    The engine makes errors in native code, each time where it wants to. Its results are of one public class, and
    these three methods are how a program waits for one.
    """
    results.get = _explain_get(results.get)
    results.__await__ = _explain_await(results.__await__)
    results.as_asyncio = _explain_conversion(results.as_asyncio)


def _explain_get(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def explained(self: Any, timeout: float | None = None) -> Any:
        began_s = time.monotonic()
        try:
            return get(self, timeout)
        except KINDS as error:
            left_s = LEARN_S if timeout is None else timeout - (time.monotonic() - began_s)
            explain(error, min(LEARN_S, max(0.0, left_s)))
            raise

    return explained


Waiting = Generator[Any, Any, Any]


def _explain_await(wait: Callable[[Any], Waiting]) -> Callable[[Any], Waiting]:
    @functools.wraps(wait)
    def explained(self: Any) -> Waiting:
        try:
            return (yield from wait(self))
        except KINDS as error:
            if _is_more_to_tell():  # what else runs in this loop goes on meanwhile
                yield from asyncio.to_thread(explain, error, LEARN_S).__await__()
            raise

    return explained


def _explain_conversion(convert: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(convert)
    def explained(self: Any) -> asyncio.Future[Any]:
        result: asyncio.Future[Any] = convert(self)
        if result.done():
            _explain_result(result)
        else:  # called before whoever waits for it goes on, since nobody can wait for it yet
            result.add_done_callback(_explain_result)
        return result

    return explained


def _explain_result(result: asyncio.Future[Any]) -> None:
    """A loop cannot be made to wait here: what is known by now must do."""
    if (
        _is_more_to_tell()
        and not result.cancelled()
        and isinstance(error := result.exception(), KINDS)
    ):
        explain(error, 0.0)


def explain(
    error: BaseException, patience_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Note in an error what became of hosts, each word once: it may be raised again.

    The patience is for all who know something: it is the program's own.
    """
    deadline_s = clock() + patience_s
    for knows in tuple(knowing):
        for words in knows.describe_loss(max(0.0, deadline_s - clock())):
            if words not in getattr(error, "__notes__", ()):
                error.add_note(words)
