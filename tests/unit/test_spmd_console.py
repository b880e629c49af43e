"""What ranks print, as the person at the terminal sees it."""

from __future__ import annotations

import io
import json
import sys
import threading
from typing import Any

import pytest

from milkweed.spmd import console as module
from milkweed.spmd.console import Console, EventLog, say, write


def out(rank: int, *lines: str, host: str = "w/0", stream: str = "out", **more: Any) -> Any:
    """A message of a keeper; it tells ranks as text."""
    message = {"ev": "out", "kind": "rank", "host": host, "rank": str(rank), "stream": stream}
    return {**message, "lines": list(lines), **more}


@pytest.fixture
def console() -> Console:
    made = Console(lambda rank, local: f"[{rank}.{local}]:")
    made.expect({"w/0": 0, "w/1": 3})
    return made


def test_each_line_has_its_rank(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    """Local ranks are counted from the first rank of the host, whatever hosts before it have."""
    console.take(out(2, "one", "two"))
    console.take(out(4, "three", host="w/1"))
    assert capsys.readouterr().out == "[2.2]:one\n[2.2]:two\n[4.1]:three\n"


def test_streams_stay_apart(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    """What ranks print as errors is printed as errors."""
    console.take(out(0, "fine"))
    console.take(out(0, "oh", stream="err"))
    assert capsys.readouterr() == ("[0.0]:fine\n", "[0.0]:oh\n")


def test_a_new_attempt_counts_anew(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer hosts the same host has other ranks."""
    console.expect({"w/1": 0})
    console.take(out(1, "x", host="w/1"))
    assert capsys.readouterr().out == "[1.1]:x\n"


def test_a_host_that_nobody_expects_has_a_prefix_too(
    console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    """Late lines of an attempt that is over are shown, not an error."""
    console.take(out(5, "late", host="w/9"))
    assert capsys.readouterr().out == "[5.5]:late\n"


def test_lines_that_were_left_out_are_counted(
    console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a slow reader missed is told before what comes next."""
    console.take(out(1, "next", dropped=7))
    missed = "… 7 lines came faster than they could be sent; `milkweed logs` has them"
    assert capsys.readouterr().out == f"[1.1]:{missed}\n[1.1]:next\n"


def test_empty_lines_are_lines(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty line has its rank before it as every other."""
    console.take(out(0, "", "x"))
    assert capsys.readouterr().out == "[0.0]:\n[0.0]:x\n"


class Slow(io.StringIO):
    """A stream that takes one character at a time, and lets others come in between."""

    def write(self, text: str) -> int:
        """Take a text slowly."""
        for letter in text:
            super().write(letter)
            threading.Event().wait(0.0001)
        return len(text)


def test_messages_of_several_hosts_do_not_mix(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are threads of their own, and a line stays whole."""
    slow = Slow()
    monkeypatch.setattr(sys, "stdout", slow)
    threads = [
        threading.Thread(target=console.take, args=(out(rank, "a" * 20, "b" * 20),))
        for rank in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [f"[{rank}.{rank}]:{letter * 20}" for rank in range(4) for letter in "ab"]
    assert sorted(slow.getvalue().splitlines()) == sorted(lines)


class Broken(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        """Refuse."""
        raise BrokenPipeError


def test_nobody_reads_any_more(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """`milkweed torchrun … | head` does not end ranks with a traceback."""
    monkeypatch.setattr(sys, "stdout", Broken())
    console.take(out(0, "x"))
    closed = io.StringIO()
    closed.close()
    write(closed, "x")


def test_saying(capsys: pytest.CaptureFixture[str]) -> None:
    """What milkweed itself says is on standard error, with its name."""
    say("more hosts are there")
    assert capsys.readouterr() == ("", "milkweed: more hosts are there\n")


def test_events_are_lines_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--event-log-handler console` writes what torch's would: who, when and what."""
    monkeypatch.setattr(module.time, "time", lambda: 12.9)
    log = EventLog("console", "trainer", "run-1")
    log.add("FAILED", global_rank=3, exit_code=-9)
    log.add("SUCCEEDED")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    head = {"run_id": "run-1", "role": "trainer"}
    assert first == {
        "name": "torchelastic.worker.status.FAILED",
        "source": "WORKER",
        "timestamp": 12,
        "metadata": {**head, "state": "FAILED", "global_rank": 3, "exit_code": -9},
    }
    assert (second["source"], second["metadata"]) == ("AGENT", {**head, "state": "SUCCEEDED"})


def test_no_events_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option nothing is written."""
    EventLog("null", "trainer", "run-1").add("START", global_rank=0)
    assert capsys.readouterr() == ("", "")
