"""The program that carries out a group inside its allocation: order, room, limits, and the right exit code."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.jobspec.transformers import group_controller
from milkweed.jobspec.transformers.group_controller import Controller, Group, Item, judge
from programs import wait_until

SOURCE = Path(group_controller.__file__)


def item(name: str, script: str = "true", *needs: tuple[str, str], **more: Any) -> dict[str, Any]:
    """An entry that runs a line of shell."""
    own = {
        "argv": ["sh", "-c", script],
        "label": name.replace("/", "+"),
        "within": ["g"],
        "cores": 1,
    }
    return {"id": name, "needs": [list(need) for need in needs], **own, **more}


class Crew:
    """A controller as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def start(
        self, *items: dict[str, Any], start: str = "", **groups: Any
    ) -> subprocess.Popen[str]:
        """Begin to carry out a plan."""
        plan = {
            "items": [*items],
            "groups": {"g": {"cores": 4, "gpus": 2}, **groups},
            "unset": ["HIDDEN"],
        }
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        argv = [sys.executable, str(SOURCE), str(path), start, str(self.folder)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=self.folder)

    def run(self, *items: dict[str, Any], start: str = "", **groups: Any) -> int:
        """Carry out a plan to its end."""
        with self.start(*items, start=start, **groups) as process:
            out, _ = process.communicate(timeout=60)
        self.said = [line.removeprefix("milkweed: ") for line in out.splitlines()]
        return process.returncode

    def log(self, label: str) -> str:
        """What an entry printed."""
        return (self.folder / f"{label}.log").read_text()


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    """A controller."""
    return Crew(tmp_path)


def test_it_needs_nothing_but_an_old_python() -> None:
    """It travels alone: the standard library, and what Python 3.7 can read."""
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 7))
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in [*names, *map(str, modules)]} <= {
        *sys.stdlib_module_names
    }
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]


@pytest.mark.parametrize(
    ("kind", "state", "verdict"),
    [
        ("afterok", "done", True), ("afterok", "failed", False), ("afterok", "skipped", False),
        ("afternotok", "failed", True), ("afternotok", "done", False), ("afternotok", "skipped", False),
        ("afterany", "failed", True), ("afterany", "skipped", True), ("afterany", "running", None),
        ("after", "running", True), ("after", "waiting", None), ("after", "skipped", False),
        ("submitted", "running", True), ("submitted", "done", True), ("afterok", "running", None),
    ],
)  # fmt: skip
def test_needs(kind: str, state: str, verdict: bool | None) -> None:
    """The same words as outside of a group."""
    needed = Item({"id": "a"})
    needed.state = state
    assert judge(kind, needed) is verdict


def test_order_and_exit_code(crew: Crew) -> None:
    """Each after what it needs; the code is that of the first that failed, and the rest goes on."""
    code = crew.run(
        item("c", "cat a b", ("b", "afterok")),
        item("b", "cat a >b; echo b >>b", ("a", "afterok")),
        item("a", "sleep 0.1; echo a >a"),
        item("bad", "exit 3"),
        item("never", "touch never", ("bad", "afterok")),
        item("later", "touch never", ("never", "afterok")),
        item("mended", "echo mended", ("bad", "afternotok")),
        item("worse", "sleep 0.3; exit 4"),
    )
    assert code == 3
    assert crew.log("c") == "a\na\nb\n"
    assert crew.log("mended") == "mended\n"
    assert not (crew.folder / "never").exists()
    assert {
        "never: skipped",
        "later: skipped",
        "bad: failed (3)",
        "worse: failed (4)",
        "c: done",
    } <= {*crew.said}


def test_signals_and_missing_programs(crew: Crew) -> None:
    """As a shell tells them."""
    assert crew.run(item("a", "kill -9 $$")) == 137
    assert crew.run({**item("a"), "argv": ["/nowhere/at/all"]}) == 126
    assert "No such file" in "".join(crew.said)


def test_what_adds_up(crew: Crew) -> None:
    """Replicas and groups inside are over when all of theirs are; one that failed has failed them."""
    code = crew.run(
        item("r/1", "exit 0"),
        item("r/2", "sleep 0.1; exit 6"),
        {"id": "r", "needs": [["r/1", "afterany"], ["r/2", "afterany"]], "inner": ["r/1", "r/2"]},
        item("never", "true", ("r", "afterok")),
        {"id": "in", "needs": [["never", "afterany"]], "inner": ["never"]},
        item("end", "echo end", ("in", "afterany")),
        {"id": "written", "needs": []},
        item("reads", "true", ("written", "afterok")),
    )
    assert code == 6
    assert {"never: skipped", "in: skipped", "end: done", "reads: done"} <= {*crew.said}


COUNT = ": >on.$$; sleep 0.15; set -- on.*; echo $#; rm on.$$"
"""Each tells how many run by a file of its own: one that all change would lose some of the changes."""


def test_no_more_at_once_than_there_is_room(crew: Crew) -> None:
    """Four cores run two steps of two; a GPU is used by one at a time."""
    names = [f"s{number}" for number in range(5)]
    assert crew.run(*(item(name, COUNT, cores=2) for name in names)) == 0
    assert max(int(crew.log(name)) for name in names) <= 2


def test_a_group_inside_has_its_own_room(crew: Crew) -> None:
    """What lies in it shares what it has, not what the outer one has."""
    names = [f"s{number}" for number in range(3)]
    items = [item(name, COUNT, within=["g", "in"]) for name in names]
    assert crew.run(*items, **{"in": {"cores": 1, "gpus": 0}}) == 0
    assert [int(crew.log(name)) for name in names] == [1, 1, 1]


def test_whole_nodes_are_used_alone() -> None:
    """Nothing else runs beside what takes all; where Slurm knows the cores, they are not counted here."""
    group = Group({"cores": None, "gpus": 1})
    one, whole, gpu = (
        Item({"id": "one", "cores": 99}), Item({"id": "whole", "alone": True}), Item({"id": "gpu", "gpus": 2}),
    )  # fmt: skip
    assert group.has_room(one)
    assert not group.has_room(gpu)
    group.take(one, 1)
    assert not group.has_room(whole)
    group.take(one, -1)
    group.take(whole, 1)
    assert not group.has_room(one)
    group.take(whole, -1)
    assert group.has_room(one)


def test_time_limits(crew: Crew) -> None:
    """A step that takes too long is ended, and one of a group whose time is over, too."""
    code = crew.run(
        item("long", "sleep 60", limit_s=0.2),
        item("inner", "sleep 60", within=["g", "in"]),
        **{"in": {"cores": 1, "gpus": 0, "limit_s": 0.3}},
    )
    assert code == 124
    assert {*crew.said} == {"long: failed (124)", "inner: failed (124)"}


def test_the_end_of_the_allocation(crew: Crew) -> None:
    """SIGTERM ends all that runs, and starts nothing more."""
    process = crew.start(
        item("a", "echo $$ >pid; exec sleep 60"), item("b", "touch never", ("a", "afterany"))
    )
    pid = crew.folder / "pid"
    wait_until(lambda: pid.exists() and bool(pid.read_text().strip()), 10)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 143
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert not (crew.folder / "never").exists()


def test_where_output_goes(crew: Crew) -> None:
    """To files of their own where the file says so."""
    said = {"output": str(crew.folder / "o"), "error": str(crew.folder / "e")}
    assert crew.run(item("a", "echo out; echo err >&2", **said)) == 0
    assert ((crew.folder / "o").read_text(), (crew.folder / "e").read_text()) == ("out\n", "err\n")
    assert crew.run(item("b", "true", output="/nowhere/at/all")) == 126


def test_srun_is_told_everything_by_arguments(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the allocation are hidden from it alone; the empty word is how tasks start."""
    srun = crew.folder / "srun"
    srun.write_text('#!/bin/sh\necho "${HIDDEN:-none}" "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{crew.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HIDDEN", "seen")
    steps = item("a") | {"argv": ["srun", "--ntasks=1", ""]}, item("b", 'echo "$HIDDEN"')
    assert crew.run(*steps, start="how") == 0
    assert crew.log("a") == "none --ntasks=1 how\n"
    assert crew.log("b") == "seen\n"


def test_many_steps(crew: Crew) -> None:
    """A chain of many is carried out one after the other, without waiting in between."""
    chain = [item("s0")]
    chain += [item(f"s{at}", "true", (f"s{at - 1}", "afterok")) for at in range(1, 60)]
    assert crew.run(*chain) == 0
    assert crew.said == [f"s{at}: done" for at in range(60)]


def test_nothing_to_do() -> None:
    """A plan of files alone is over at once."""
    plan = {"items": [{"id": "w"}], "groups": {}}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert Controller(plan, "", "").run() == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
