"""What fails on lost hosts says so itself, however a program waits for it; nothing else is touched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from milkweed import failures
from milkweed.failures import LEARN_S, explain, explain_failures, learn_from
from milkweed.testing import FakeClock

LOST = "host w/1 is lost: its machine n2 does not answer"


class Known:
    """A job that has lost a host, and whose program is told so after a while."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.left = False
        self.waits: list[float] = []
        self.threads: list[threading.Thread] = []

    def is_troubled(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.words)

    def describe_loss(self, patience_s: float) -> Sequence[str]:
        """What is known."""
        self.waits.append(patience_s)
        self.threads.append(threading.current_thread())
        return self.words


def make_results(error: BaseException | None, *, done: bool = True) -> Any:
    """A class of results like the engine's, all of which fail, or give 7."""

    class Results:
        def get(self, timeout: float | None = None) -> int:
            if error:
                raise error
            return 7

        def __await__(self) -> Generator[Any, Any, int]:
            return self.as_asyncio().__await__()

        def as_asyncio(self) -> asyncio.Future[int]:
            result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            if done:
                settle(result)
            else:
                asyncio.get_running_loop().call_soon(settle, result)
            return result

    def settle(result: asyncio.Future[int]) -> None:
        if result.cancelled():
            return
        if error:
            result.set_exception(error)
        else:
            result.set_result(7)

    explain_failures(Results)
    return Results()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """One job of the program has lost a host."""
    made = Known(LOST)
    monkeypatch.setattr(failures, "knowing", [Known(), made])
    return made


async def convert(results: Any) -> int:
    return await results.as_asyncio()


async def wait(results: Any) -> int:
    return await results


WAYS: dict[str, Callable[[Any], int]] = {
    "get": lambda results: results.get(),
    "limited": lambda results: results.get(timeout=3),
    "positional": lambda results: results.get(3),
    "await": lambda results: asyncio.run(wait(results)),
    "as_asyncio": lambda results: asyncio.run(convert(results)),
}


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError])
@pytest.mark.parametrize("way", WAYS)
def test_an_error_says_which_host_is_lost(
    known: Known, way: str, kind: type[Exception], *, done: bool
) -> None:
    """Once, and it is the engine's own error that is raised."""
    error = kind("no status received from process")
    with pytest.raises(kind) as caught:
        WAYS[way](make_results(error, done=done))
    assert caught.value is error
    assert error.__notes__ == [LOST]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_what_goes_well_is_handed_on(known: Known, way: str, *, done: bool) -> None:
    """Nobody is asked about it."""
    assert WAYS[way](make_results(None, done=done)) == 7
    assert known.waits == []


@pytest.mark.parametrize("way", WAYS)
def test_an_actors_own_error_has_its_own_reason(known: Known, way: str) -> None:
    """It is no kind of error that the engine raises for hosts, and stays as it is."""

    class ActorError(Exception):
        pass

    error = ActorError("mine")
    with pytest.raises(ActorError):
        WAYS[way](make_results(error))
    assert not hasattr(error, "__notes__")


def test_an_error_that_is_raised_again_says_it_once(known: Known) -> None:
    """What is known by then is added."""
    error = RuntimeError()
    explain(error, 0)
    known.words = (LOST, "the hosts of job 'demo' have ended")
    explain(error, 0)
    assert error.__notes__ == [LOST, "the hosts of job 'demo' have ended"]


def test_an_error_waits_for_the_reason(known: Known) -> None:
    """A while, and never beyond the time that the program gave it."""
    results = make_results(TimeoutError())
    for timeout_s in (None, 1000, 5, 0):
        with pytest.raises(TimeoutError):
            results.get(timeout=timeout_s)
    first, long, short, none = known.waits
    assert LEARN_S - 1 < long <= LEARN_S
    assert LEARN_S - 1 < first <= LEARN_S
    assert 4 < short <= 5
    assert none == 0


def test_all_who_know_something_share_one_patience(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """A program that gave a call half a second gets its error then, however many jobs it has."""

    class Unsettled(Known):
        def describe_loss(self, patience_s: float) -> Sequence[str]:
            clock.sleep(patience_s)
            return super().describe_loss(patience_s)

    jobs = [Unsettled(LOST) for _ in range(3)]
    monkeypatch.setattr(failures, "knowing", jobs)
    began_s = clock()
    explain(error := TimeoutError(), 0.5, clock)
    assert clock() - began_s == 0.5
    assert [each.waits for each in jobs] == [[0.5], [0.0], [0.0]]
    assert error.__notes__ == [LOST]


def test_who_knows_something_is_asked_once(known: Known) -> None:
    """However often a program connects to the same hosts, as after each change of sizes."""
    for _ in range(3):
        learn_from(known)
    explain(RuntimeError(), 0)
    assert len(known.waits) == 1


def test_of_hosts_that_were_left_only_that_is_kept(known: Known) -> None:
    """A program may go over to other hosts for months; faults of those before must not end it all the same."""
    for _ in range(100):
        known.left = True
        learn_from(known := Known())
    assert len(failures.knowing) <= 3
    assert failures.are_known()
    error = RuntimeError()
    with pytest.raises(RuntimeError):
        WAYS["await"](make_results(error))
    assert not hasattr(error, "__notes__")
    assert known.waits == []


def test_a_loop_goes_on_while_the_reason_is_waited_for(known: Known) -> None:
    """It is asked for in another thread; where a loop cannot wait, it must be known."""
    for way in ("await", "as_asyncio"):
        with pytest.raises(RuntimeError):
            WAYS[way](make_results(RuntimeError(), done=False))
    elsewhere = [thread is not threading.main_thread() for thread in known.threads]
    assert sorted(zip(map(round, known.waits), elsewhere, strict=True)) == [
        (0, False),
        (0, False),
        (LEARN_S, True),
    ]


def test_without_a_loss_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no loop starts a thread for it."""
    nothing = Known()
    monkeypatch.setattr(failures, "knowing", [nothing])
    for call in WAYS.values():
        error = RuntimeError("its own")
        with pytest.raises(RuntimeError):
            call(make_results(error, done=False))
        assert not hasattr(error, "__notes__")
    assert all(thread is threading.main_thread() for thread in nothing.threads)


def test_a_result_that_is_not_wanted_any_more(known: Known) -> None:
    """Cancelled, it stays cancelled, and nobody is asked."""

    async def cancel() -> None:
        result = make_results(RuntimeError(), done=False).as_asyncio()
        result.cancel()
        await asyncio.sleep(0)
        assert result.cancelled()

    asyncio.run(cancel())
    assert known.waits == []
