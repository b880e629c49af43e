"""What ranks print is kept until it was heard, and ranks wait for a client that does not keep up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from milkweed.worker import clients, outbox
from milkweed.worker.children import Lines, Output
from milkweed.worker.clients import Client
from milkweed.worker.outbox import Outbox
from unit.gangs import Machine

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
FLOOD = 'i=0; while [ $i -lt 3000 ]; do echo "$i"; i=$((i+1)); done; touch over'


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


# Numbers


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_whatever_is_lost_is_said_again_in_order(steps: list[tuple[int, bool]]) -> None:
    """However often a connection breaks, a client has every word once when it is back for the last time."""
    heard: list[int] = []
    there = True

    def hear(message: Any) -> None:
        if there and message["number"] == len(heard) + 1:
            heard.append(message["word"])

    box, said = Outbox(hear), 0
    for count, there in steps:
        if there:
            box.repeat(len(heard))
        for _ in range(count):
            box.put({"ev": "out", "word": said})
            said += 1
    there = True
    box.repeat(len(heard))
    assert heard == list(range(said))


def test_what_was_heard_is_forgotten() -> None:
    """Nothing is kept for longer than it is needed, and the client is asked now and then."""
    told: list[Any] = []
    box = Outbox(told.append)
    for _ in range(3):
        box.put({"ev": "out", "lines": ["x" * outbox.ASK_BYTES]})
    assert [message.get("ask") for message in told] == [True] * 3
    box.heard(2)
    told.clear()
    box.repeat(2)
    assert [message["number"] for message in told] == [3]


# Waiting


def test_ranks_wait_for_a_client_that_does_not_hear(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that prints more than is kept is held up, not cut short; it goes on when it is heard."""
    monkeypatch.setattr(outbox, "WINDOW_BYTES", 1000)
    machine.launch(FLOOD + "; head -c 300000 /dev/zero | tr '\\0' x; touch through")
    machine.up("over")
    [box] = [gang.outbox for gang in machine.gangs._find("T.0")]
    machine.until(lambda: box._outputs[0]._paused)
    machine.rest(0.2)
    assert not (machine.folder / "through").exists()
    assert box._size < 1000 + 2 * 65536 + 3000
    machine.until(lambda: catch_up(machine, box) and (machine.folder / "through").exists())
    machine.until(lambda: catch_up(machine, box) and machine.codes() == {0: 0})
    lines = [line for _, line in machine.lines()]
    assert lines[:3000] == [str(number) for number in range(3000)]
    assert len("".join(lines[3000:])) == 300_000


def catch_up(machine: Machine, box: Outbox) -> bool:
    """Hear all that was said so far."""
    machine.order("heard", number=box._last)
    return True


def test_one_rank_that_floods_holds_up_no_other_gang(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's ranks wait for their own client only."""
    monkeypatch.setattr(outbox, "WINDOW_BYTES", 1000)
    machine.launch(FLOOD + "; exec yes")
    machine.until(lambda: machine.gangs._find("T.0")[0].outbox._outputs[0]._paused)
    machine.launch("echo hello", host="w/1", id="U.0", first=7, folder="other")
    machine.until(lambda: ("7", "hello") in machine.lines())


def test_nobody_waits_after_the_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gang leaves behind is not stopped by a client that has gone."""
    monkeypatch.setattr(outbox, "WINDOW_BYTES", 1000)
    machine.launch("exec yes")
    machine.until(lambda: machine.gangs._find("T.0")[0].outbox._outputs[0]._paused)
    machine.order("done")
    machine.until(lambda: not machine.processes)
    machine.until(lambda: all(output.read_fd < 0 for output in machine.fleet._outputs))


def test_draining_follows_nobody_for_ever(tmp_path: Path) -> None:
    """Who asks for what was printed so far is answered, though somebody goes on printing."""

    async def drain() -> int:
        taken: list[list[str]] = []
        output = Output(Lines(lambda lines: taken.append(lines) or write(output)))
        write(output)
        output.drain()
        output.close_writer()
        output._loop.remove_reader(output.read_fd)
        return len(taken)

    def write(output: Output) -> None:
        os.write(output.write_fd, b"more\n")

    assert 1 <= asyncio.run(drain()) <= 10


# Lines that are left out


class Slow:
    """A client's connection, with so much that was not read yet."""

    def __init__(self) -> None:
        self.transport = self
        self.backlog = 0
        self.sent: list[dict[str, Any]] = []

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def get_write_buffer_size(self) -> int:
        """How much was not read yet."""
        return self.backlog

    def write(self, data: bytes) -> None:
        """Take a message."""
        self.sent.append(json.loads(data))


def line(rank: str, text: str, **more: Any) -> dict[str, Any]:
    return {"ev": "out", "host": "w/0", "rank": rank, "stream": "out", "lines": [text], **more}


def test_that_lines_are_missing_is_told_before_anything_else() -> None:
    """With its own count for each that printed them, though no line follows."""
    slow = Slow()
    client = Client(cast("Any", slow))
    slow.backlog = clients.MAX_BACKLOG_BYTES + 1
    for rank, text in (("0", "a"), ("1", "b"), ("0", "c")):
        client.send(line(rank, text))
    assert slow.sent == []
    client.send({"ev": "synced"})
    *missing, last = slow.sent
    assert [(each["rank"], each["lines"], each["dropped"]) for each in missing] == [
        ("0", [], 2),
        ("1", [], 1),
    ]
    assert last == {"ev": "synced"}
    slow.backlog = 0
    client.send(line("1", "d"))
    assert slow.sent[-1] == line("1", "d")


def test_numbered_lines_are_never_left_out() -> None:
    """Those of ranks are bounded where they come from."""
    slow = Slow()
    slow.backlog = clients.MAX_BACKLOG_BYTES + 1
    Client(cast("Any", slow)).send(line("0", "a", number=1))
    assert slow.sent == [line("0", "a", number=1)]


def test_empty_lines_take_room_too() -> None:
    """A rank that prints nothing but line ends fills no memory either."""
    box, told = Outbox(lambda _message: None), 0
    while box._size < outbox.WINDOW_BYTES:
        box.put({"ev": "out", "lines": [""] * 1000})
        told += 1
    assert told < 300
