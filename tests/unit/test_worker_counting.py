"""Counting devices: a driver that takes its time holds up nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from unit.gangs import Machine

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
SMI = """\
#!/bin/sh
touch asked
while [ ! -e answer ]; do sleep 0.02; done
case "$1" in
  -L) echo 'GPU 0: A (UUID: GPU-0)'; echo 'GPU 1: B (UUID: GPU-1)' ;;
  *) echo 00000000:07:00.0; echo 00000000:46:00.0 ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    made = Machine(tmp_path, PATH=f"{program.parent}:{os.environ['PATH']}")
    yield made
    (tmp_path / "answer").touch()
    made.close()


def prepare(machine: Machine, **more: Any) -> None:
    order = {"id": "T.0", "host": "w/0", "nproc": "gpu", "env": {}, "port": False, **more}
    machine.do(machine.gangs.prepare, "me", order)


def answers(machine: Machine, count: int = 1) -> list[Mapping[str, Any]]:
    def found() -> list[Mapping[str, Any]]:
        return [message for _, message in machine.told if message["ev"] == "prepared"]

    machine.until(lambda: len(found()) == count)
    return found()


def test_others_are_served_while_a_driver_is_asked(machine: Machine) -> None:
    """Ranks of another client start and end meanwhile; the answer comes when it comes."""
    prepare(machine)
    machine.up("asked")
    machine.launch("echo hello", host="w/1", id="U.0")
    machine.exits()
    assert [message["ev"] for _, message in machine.told] == ["launched", "out", "rank-exit"]
    (machine.folder / "answer").touch()
    assert answers(machine)[0]["nproc"] == 2


def test_where_gpus_are_is_asked_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that run near their GPUs are launched with what was answered before; `done` forgets it."""
    (machine.folder / "answer").touch()
    prepare(machine, numa="node")
    answers(machine)
    seen: list[Any] = []

    def find(_mode: str, locals_: list[int], _env: object, places: Any) -> dict[int, set[int]]:
        seen.append(places)
        return {local: os.sched_getaffinity(0) for local in locals_}

    monkeypatch.setattr("milkweed.worker.ranks.find_cpus", find)
    machine.launch("exit 0", numa="node")
    assert seen == [["0000:07:00.0", "0000:46:00.0"]]
    prepare(machine, numa="node", id="T.1")
    answers(machine, 2)
    machine.order("done", id="T.1")
    assert machine.gangs._places == {}


def test_a_number_asks_nobody(machine: Machine) -> None:
    """No driver has a say in it."""
    prepare(machine, nproc=3)
    assert answers(machine)[0]["nproc"] == 3
    assert not (machine.folder / "asked").exists()


def test_a_count_that_was_ended(machine: Machine) -> None:
    """Somebody ended the process that asked: that is told, and nothing hangs."""
    prepare(machine)
    machine.up("asked")
    [pid] = machine.fleet._children
    os.kill(pid, signal.SIGKILL)
    assert answers(machine)[0]["error"] == "its devices could not be counted"
