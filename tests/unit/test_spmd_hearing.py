"""Hearing hosts: each word once and in order, whatever connections and terminals do."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest

from milkweed.errors import UnreachableError
from milkweed.spmd.hearing import Hearing
from unit.keepers import WAIT_S

Message = Mapping[str, Any]


class Said:
    """A session that remembers what was sent."""

    def __init__(self, *, broken: bool = False) -> None:
        self.sent: list[Message] = []
        self.broken = broken

    def send(self, message: Message) -> None:
        """Take a message."""
        if self.broken:
            raise UnreachableError("it is gone")
        self.sent.append(message)


class Ears:
    """What was shown and handed on, in the order in which it was."""

    def __init__(self) -> None:
        self.all: list[Message] = []
        self.free = threading.Event()
        self.free.set()
        self.hearing = Hearing(self._show, self.all.append)
        self.session = Said()

    def _show(self, message: Message) -> None:
        assert self.free.wait(WAIT_S)
        self.all.append(message)

    def take(self, *messages: Message) -> None:
        """Hear messages of the session."""
        for message in messages:
            self.hearing.take(cast("Any", self.session), message)

    @property
    def words(self) -> list[Any]:
        """All numbers that were heard, at the end."""
        self.hearing.close()
        return [message["number"] for message in self.all]


@pytest.fixture
def ears() -> Ears:
    return Ears()


def out(number: int, **more: Any) -> Message:
    said = {"ev": "out", "kind": "rank", "id": "T.0", "host": "w/0", "lines": ["x"]}
    return {**said, "number": number, **more}


def end(number: int) -> Message:
    return {"ev": "rank-exit", "id": "T.0", "host": "w/0", "number": number}


def test_words_that_are_known_are_not_heard_again(ears: Ears) -> None:
    """A host that says more than was missed shows nothing twice."""
    ears.take(out(1), out(2), out(1), out(2), end(3), end(3))
    assert ears.words == [1, 2, 3]


def test_words_that_overtake_others_wait_for_them(ears: Ears) -> None:
    """A connection that is back carries new words before the old ones are told again: an end is the last."""
    ears.take(out(1), end(4), out(2), out(3))
    assert ears.hearing.number("T.0", "w/0") == 3
    ears.take(end(4))
    assert ears.words == [1, 2, 3, 4]


def test_hosts_and_attempts_have_numbers_of_their_own(ears: Ears) -> None:
    """Each begins with one."""
    ears.take(out(1), out(1, host="w/1"), out(1, id="T.1"), out(2, host="w/1"))
    assert ears.hearing.number("T.0", "w/1") == 2
    assert ears.hearing.number("T.9", "w/0") == 0
    assert ears.words == [1, 1, 1, 2]


def test_a_host_is_answered_when_its_words_are_shown(ears: Ears) -> None:
    """Not before: ranks wait for a terminal that is not read, and the connection does not."""
    ears.free.clear()
    ears.take(out(1, ask=True), out(2))
    assert ears.session.sent == []
    ears.free.set()
    assert ears.words == [1, 2]
    assert ears.session.sent == [{"op": "heard", "id": "T.0", "host": "w/0", "number": 1}]


def test_a_host_that_is_gone_is_not_answered(ears: Ears) -> None:
    """What it said is shown nevertheless."""
    ears.session.broken = True
    ears.take(out(1, ask=True), out(2))
    assert ears.words == [1, 2]


def test_what_others_print_is_not_shown(ears: Ears) -> None:
    """Ranks are one thing, procs of actors another."""
    ears.take({"ev": "out", "kind": "proc", "lines": ["x"]}, out(1))
    assert ears.words == [1]


def test_an_answer_waits_for_no_line_that_nobody_reads(ears: Ears) -> None:
    """One host's output fills a terminal that stands still: another host's ranks start all the same."""
    ears.free.clear()
    ears.take(out(1), out(2), {"ev": "launched", "id": "T.0", "host": "w/1"})
    assert [message["ev"] for message in ears.all] == ["launched"]
    ears.free.set()
    ears.hearing.close()
    assert [message["ev"] for message in ears.all] == ["launched", "out", "out"]
