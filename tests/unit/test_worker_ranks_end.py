"""Ranks of one host and their end: by signals, with their host, and nothing of them stays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed.worker import ranks, serve
from milkweed.worker.ranks import left_behind
from unit.gangs import Machine

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
TERM, KILL = -signal.SIGTERM, -signal.SIGKILL
WAIT = "touch up$RANK; while :; do sleep 0.01; done"
DEAF = f"trap '' TERM INT; {WAIT}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Machine]:
    monkeypatch.setattr(ranks, "SWEEP_S", 0.05)
    monkeypatch.setattr(ranks, "KILL_RACE_S", 0.05)
    made = Machine(tmp_path)
    yield made
    made.close()


def alive(pid: int) -> bool:
    """Whether a process runs, and is not only remembered."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


# Halting


def test_a_signal_comes_first(machine: Machine) -> None:
    """All ranks get it, may tidy up, and count as halted."""
    machine.launch(f"trap 'echo tidy; exit 7' INT; {WAIT}", ranks=2)
    machine.up("up0")
    machine.up("up1")
    machine.halt("SIGINT")
    assert machine.codes(2) == {0: 7, 1: 7}
    assert {message["halted"] for message in machine.exits(2)} == {True}
    assert sorted(machine.lines()) == [("0", "tidy"), ("1", "tidy")]


def test_what_a_rank_started_gets_the_signal_too(machine: Machine) -> None:
    """Ctrl-C at a terminal reaches a whole group of processes, and so does this."""
    machine.launch(
        "sh -c 'trap \"echo child; exit\" TERM; touch up; while :; do sleep 0.01; done'; :"
    )
    machine.up()
    machine.halt("SIGTERM")
    machine.exits()
    machine.until(lambda: machine.lines() == [("0", "child")])


def test_ranks_that_do_not_listen_are_made_to_end(machine: Machine) -> None:
    """After the grace time nobody is asked any more."""
    machine.launch(DEAF)
    machine.up("up0")
    machine.halt("SIGTERM", grace_s=0.1)
    assert machine.codes() == {0: KILL}


def test_no_time_at_all(machine: Machine) -> None:
    """A second Ctrl-C: SIGKILL, and no grace."""
    machine.launch(DEAF, ranks=2)
    machine.up("up0")
    machine.up("up1")
    machine.halt("SIGTERM", grace_s=30)
    machine.halt("SIGKILL", grace_s=0)
    assert machine.codes(2) == {0: KILL, 1: KILL}


def test_other_gangs_are_left_alone(machine: Machine) -> None:
    """Two programs may run on one host; an attempt that nobody knows is no error."""
    machine.launch(WAIT, id="T.0")
    machine.launch(WAIT, id="U.0", first=5, folder="other")
    machine.up("up0")
    machine.up("up5")
    machine.halt(id="nobody")
    machine.halt(id="T.0")
    assert machine.codes() == {0: TERM}
    machine.rest(0.2)
    assert machine.codes() == {0: TERM}


def test_other_hosts_of_the_machine_are_left_alone(machine: Machine) -> None:
    """Each host is told itself: with several on one machine, ranks would get the signal several times."""
    count = "trap 'echo got it' INT; touch up$RANK; while [ ! -e end ]; do sleep 0.01; done"
    machine.launch(count, host="w/0")
    machine.launch(count, host="w/1", first=1)
    machine.up("up0")
    machine.up("up1")
    machine.halt("SIGINT", host="w/0")
    machine.rest(0.2)
    (machine.folder / "end").touch()
    machine.exits(2)
    assert machine.lines() == [("0", "got it")]


def test_a_signal_right_after_the_start(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that was only just forked is halted like any other, and need not be killed later."""
    setsid = os.setsid
    monkeypatch.setattr(os, "setsid", lambda: (time.sleep(0.2), setsid()))
    machine.launch("sleep 60")
    machine.halt("SIGTERM", grace_s=1)
    assert machine.codes() == {0: TERM}


def test_ending_a_fresh_fork_does_not_end_the_keeper(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper hears SIGTERM by its loop; a child must not ring that bell with its own."""
    heard: list[str] = []
    machine.loop.add_signal_handler(signal.SIGTERM, heard.append, "SIGTERM")
    monkeypatch.setattr(serve, "name_process", lambda _name: time.sleep(0.3))
    machine.launch("sleep 60")
    machine.order("done")
    machine.exits()
    machine.rest(0.1)
    assert heard == []


# Ends that nobody asked for


def test_a_rank_that_somebody_else_ended(machine: Machine) -> None:
    """It counts as failed; that is told a moment later, when the keeper itself might have been ended, too."""
    answer = machine.launch("exec sleep 60")
    machine.until(lambda: machine.processes)
    os.kill(answer["pids"]["0"], signal.SIGTERM)
    [exit_] = machine.exits()
    assert (exit_["code"], exit_["halted"]) == (TERM, False)


def test_what_was_told_is_told_again(machine: Machine) -> None:
    """A client that was away asks, and hears all that a host told after what it heard last, as it was."""
    machine.launch("echo $RANK; exit $RANK", ranks=2)
    machine.launch("exit 5", host="w/1", first=2)
    machine.exits(3)
    first = [message for _, message in machine.told if "number" in message]
    here, there = ([said for said in first if said["host"] == f"w/{n}"] for n in range(2))
    assert [message["number"] for message in here] == [1, 2, 3, 4]
    for host, number, expected in (("w/0", 0, here), ("w/0", 3, here[3:]), ("w/1", 0, there)):
        before = len(machine.told)
        machine.order("report", host=host, number=number)
        assert [message for _, message in machine.told[before:]] == expected


def test_an_end_that_is_about_to_be_told(machine: Machine) -> None:
    """It is told in its time, once, though a client that is back asks before."""
    answer = machine.launch("exec sleep 60")
    machine.until(lambda: machine.processes)
    os.kill(answer["pids"]["0"], signal.SIGTERM)
    machine.until(lambda: not machine.gangs._find("T.0")[0].running)
    machine.order("report", number=0)
    assert machine.codes() == {0: TERM}
    assert len(machine.exits()) == 1


def test_after_the_end_nothing_is_told(machine: Machine) -> None:
    """`done` forgets a gang."""
    machine.launch("exit 3")
    machine.exits()
    machine.order("done")
    machine.order("report", number=0)
    assert len(machine.exits()) == 1


def test_done_ends_what_still_runs(machine: Machine) -> None:
    """Whoever has all he wants to know leaves no ranks behind."""
    machine.launch(DEAF, ranks=2)
    machine.up("up0")
    machine.up("up1")
    machine.order("done")
    machine.until(lambda: not machine.processes)


# What is left behind


LEAVE = (
    "setsid sh -c 'trap \"\" HUP; echo $$ >left; while :; do sleep 0.05; done' >/dev/null 2>&1 &"
)


def left(machine: Machine) -> int:
    """The process that a rank has started and forgotten."""
    path = machine.folder / "left"
    machine.until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def test_what_ranks_leave_behind_is_ended(machine: Machine) -> None:
    """A process in a session of its own goes when all ranks of its gang have ended."""
    machine.launch(f"{LEAVE} while [ ! -e left ]; do sleep 0.01; done")
    pid = left(machine)
    assert machine.codes() == {0: 0}
    machine.until(lambda: not alive(pid))


def test_nothing_is_swept_while_ranks_run(machine: Machine) -> None:
    """What one rank started may serve the others."""
    code = f'[ "$RANK" = 0 ] || exec sleep 60; {LEAVE} while [ ! -e left ]; do sleep 0.01; done'
    machine.launch(code, ranks=2)
    pid = left(machine)
    machine.exits()
    machine.rest(0.3)
    assert alive(pid)
    machine.halt()
    machine.exits(2)
    machine.until(lambda: not alive(pid))


def test_only_the_gang_s_own_are_swept(machine: Machine) -> None:
    """Processes are known by the mark they carry, and that is one attempt's on one host."""
    machine.launch("exec sleep 60", id="T.0")
    machine.launch("exec sleep 60", id="T.00", folder="other", first=1)
    machine.launch("exec sleep 60", id="T.0", host="w/1", first=2)
    marks = ("T.0@w/0", "T.00@w/0", "T.0@w/1")
    for mark in marks:
        machine.until(lambda mark=mark: len(left_behind(mark)) == 1)
    assert len({pid for mark in marks for pid in left_behind(mark)}) == 3
    assert left_behind("T.0") == []


def test_hosts_of_one_machine_end_one_after_the_other(machine: Machine) -> None:
    """Ranks of w/0 may succeed long before those of w/1, which go on."""
    machine.launch("touch up1; while [ ! -e end ]; do sleep 0.01; done", host="w/1", first=1)
    machine.up("up1")
    machine.launch("exit 0", host="w/0")
    machine.exits()
    machine.rest(0.3)
    (machine.folder / "end").touch()
    assert machine.codes(2) == {0: 0, 1: 0}


# With their host


def serve_quietly(host: Any, ready_fd: int) -> int:
    """Stand in for the engine: ready at once, and there until a signal comes."""
    os.write(ready_fd, b'{"address": "ipc://here"}')
    os.close(ready_fd)
    while True:
        time.sleep(60)


@pytest.fixture
def served(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose hosts are ready."""
    monkeypatch.setattr(serve, "serve_host", serve_quietly)
    machine.do(machine.fleet.start_hosts)
    machine.until(lambda: states(machine) == ["ready", "ready"])
    return machine


def states(machine: Machine) -> list[str]:
    return [host["state"] for host in machine.fleet.snapshot()]


def server(machine: Machine, label: str) -> int:
    """The process that serves a host."""
    found = machine.fleet._children.values()
    [pid] = [child.pid for child in found if (child.kind, child.host) == ("host", label)]
    return pid


def test_ranks_end_with_their_host(served: Machine) -> None:
    """When the host fails, that is told first, and then the end of its ranks; other hosts go on."""
    served.launch(WAIT, host="w/0")
    served.launch(WAIT, host="w/1", first=1, id="U.0")
    served.up("up0")
    served.up("up1")
    os.kill(server(served, "w/0"), signal.SIGKILL)
    assert served.codes() == {0: TERM}
    assert served.news[-1]["state"] == "failed"
    assert served.news[-1]["reason"] == "its worker ended: it was ended by SIGKILL"
    assert states(served) == ["failed", "ready"]
    served.rest(0.1)
    assert len(served.exits()) == 1


def test_a_failed_host_is_started_again(served: Machine) -> None:
    """It is ready as it was before, under the same name, and takes ranks."""
    stale = Path(served.folder / "w.0.sock")
    stale.touch()
    old = server(served, "w/0")
    os.kill(old, signal.SIGKILL)
    served.until(lambda: states(served) == ["failed", "ready"])
    served.do(served.fleet.revive, "w/0")
    assert not stale.exists()
    served.until(lambda: states(served) == ["ready", "ready"])
    assert server(served, "w/0") != old
    entry = served.fleet.snapshot()[0]
    assert (entry["reason"], entry["exit_code"], entry["tail"]) == ("", None, [])
    assert [news["state"] for news in served.news if news.get("host") == "w/0"][-2:] == [
        "failed",
        "ready",
    ]
    served.launch("exit 4")
    assert served.codes() == {0: 4}


@pytest.mark.parametrize("label", ["w/1", "w/7"])
def test_only_a_failed_host_is_started_again(served: Machine, label: str) -> None:
    """One that is ready stays what it is, and nobody starts one that is not here."""
    before = set(served.fleet._children)
    served.do(served.fleet.revive, label)
    assert set(served.fleet._children) == before
    assert states(served) == ["ready", "ready"]


def test_nothing_is_started_at_the_end(served: Machine) -> None:
    """A keeper that is about to leave starts no host again."""
    os.kill(server(served, "w/0"), signal.SIGKILL)
    served.until(lambda: states(served) == ["failed", "ready"])
    served.fleet._stopping = True
    served.do(served.fleet.revive, "w/0")
    assert states(served) == ["failed", "ready"]
