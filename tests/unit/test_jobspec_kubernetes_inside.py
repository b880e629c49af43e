"""What runs inside a pod with more than one thing to do, run as a pod would."""

from __future__ import annotations

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.jobspec.transformers import kubernetes_inside

TIMEOUT_S = 30.0


def start(folder: Path, *parts: Any, index: int = 0, **told: Any) -> subprocess.Popen[bytes]:
    """Start it as a pod does: a copy of the file, and what it is told."""
    source = folder / "control.py"
    source.write_text(inspect.getsource(kubernetes_inside))
    whole = {"pods": 1, "cores": 4, "gpus": 0, **told, "parts": list(parts)}
    (folder / "parts.json").write_text(json.dumps(whole))
    env = {**os.environ, "JOB_COMPLETION_INDEX": str(index), "GONE": "x", "PYTHONPATH": ""}
    words = [sys.executable, "-I", str(source), str(folder / "parts.json"), str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def run(folder: Path, *parts: Any, **told: Any) -> tuple[int, list[tuple[str, str]]]:
    """Run it to its end: the code, and the lines by label."""
    process = start(folder, *parts, **told)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert err == b""
    lines = [line.partition("\t") for line in out.decode().splitlines()]
    return process.returncode, [(label, text) for label, _, text in lines]


def part(name: str, *argv: str, needs: Any = (), **more: Any) -> dict[str, Any]:
    """Something to do; a need is a name, or a name and a kind."""
    pairs = [(each, "afterok") if isinstance(each, str) else each for each in needs]
    found = [{"id": needed, "kind": kind} for needed, kind in pairs]
    return {"id": name, "kind": "work", "needs": found, "argv": argv, "tasks": 1, **more}


def sh(name: str, script: str, **more: Any) -> dict[str, Any]:
    """A shell script."""
    return part(name, "sh", "-c", script, **more)


def test_it_is_for_older_pythons() -> None:
    """Images have what they have: the file is read by Python 3.8, and imports nothing of ours."""
    tree = ast.parse(inspect.getsource(kubernetes_inside), feature_version=(3, 8))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert sorted(names) == ["__future__", "typing"]


@pytest.mark.e2e
def test_order_and_labels(tmp_path: Path) -> None:
    """What needs something comes after it, and each line has its label."""
    steps = sh("g/b", "cat f", needs=["g/a"], cwd=str(tmp_path)), sh("g/a", f"echo x >{tmp_path}/f")
    assert run(tmp_path, *steps) == (0, [("g/b", "x")])


@pytest.mark.e2e
def test_the_code_is_that_of_the_first_that_failed(tmp_path: Path) -> None:
    """What needs it is skipped, what needs its failure or its end is not."""
    steps = (
        sh("bad", "exit 3"),
        sh("never", "echo never", needs=["bad"]),
        sh("deeper", "echo never", needs=["never"]),
        sh("sorry", "echo sorry", needs=[("bad", "afternotok")]),
        sh("anyway", "echo anyway", needs=[("never", "afterany"), "sorry"]),
        sh("worse", "exit 9", needs=["anyway"]),
    )
    assert run(tmp_path, *steps) == (3, [("sorry", "sorry"), ("anyway", "anyway")])


@pytest.mark.e2e
def test_groups_inside_groups(tmp_path: Path) -> None:
    """A join is over with all of its steps, and failed with one of them."""
    join = {"id": "g", "kind": "join", "steps": ["g/a", "g/b"]}
    needs = [{"id": each, "kind": "afterany"} for each in ("g/a", "g/b")]
    wrote = {"id": "w", "kind": "done", "needs": []}
    steps = (
        wrote,
        sh("g/a", "exit 4", needs=["w"]),
        sh("g/b", "echo b"),
        {**join, "needs": needs},
        sh("after", "echo after", needs=["g"]),
        sh("else", "echo else", needs=[("g", "afternotok")]),
    )
    assert run(tmp_path, *steps) == (4, [("g/b", "b"), ("else", "else")])


@pytest.mark.e2e
def test_tasks_of_one_pod_of_several(tmp_path: Path) -> None:
    """Each pod starts its own share; each task knows its rank, and the worst code counts."""
    say = "echo $JOBSPEC_STEP $JOBSPEC_TASK_RANK $JOBSPEC_TASKS; exit $JOBSPEC_TASK_RANK"
    many = sh("many", say, tasks=5, slots=2)
    code, lines = run(tmp_path, many, pods=2, index=0)
    assert (code, sorted(lines)) == (2, [(f"many.{rank}", f"many {rank} 5") for rank in range(3)])
    code, lines = run(tmp_path, many, pods=2, index=1)
    assert (code, sorted(lines)) == (4, [(f"many.{rank}", f"many {rank} 5") for rank in (3, 4)])


@pytest.mark.e2e
def test_words_and_variables_arrive_as_they_are(tmp_path: Path) -> None:
    """So do variables that are taken away, secrets, and the number of a replica."""
    (tmp_path / "hub").write_bytes(b"s3cret\n\n")
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    words = ("$(x)", "a'b\"", "x\ny", "", "☃")
    step = part("s", sys.executable, "-c", show, *words, secrets={"hub": "TOKEN", "other": ""})
    step |= {"environment": {"A": "$B 'x'", "GONE": None}, "replica": 1}
    code, ((label, text),) = run(tmp_path, step)
    argv, env = json.loads(text)
    assert (code, label, tuple(argv)) == (0, "s", words)
    assert (env["A"], env["TOKEN"], env["JOBSPEC_REPLICA"]) == ("$B 'x'", "s3cret\n\n", "1")
    assert "GONE" not in env


@pytest.mark.e2e
def test_what_cannot_be_started(tmp_path: Path) -> None:
    """It has the code of a shell, and a line that says why."""
    code, lines = run(tmp_path, part("x", "/no/such"))
    assert (code, lines) == (127, [("x", "No such file or directory: /no/such")])
    code, lines = run(tmp_path, part("x", "true", cwd="/no/folder"))
    assert (code, lines) == (126, [("x", "No such file or directory: /no/folder")])
    assert run(tmp_path, part("x", str(tmp_path)))[0] == 126


@pytest.mark.e2e
def test_cores_and_gpus_are_given_once(tmp_path: Path) -> None:
    """Steps that do not fit beside each other run one after the other, with GPUs of their own."""
    busy = (
        f"mkdir {tmp_path}/lock && echo $CUDA_VISIBLE_DEVICES && sleep 0.2 && rmdir {tmp_path}/lock"
    )
    half = {"cores_per_slot": 3, "gpus_per_slot": 2}
    code, lines = run(tmp_path, sh("a", busy, **half), sh("b", busy, **half), gpus=2)
    assert (code, lines) == (0, [("a", "0,1"), ("b", "0,1")])
    beside = {"gpus_per_slot": 1, "slots": 2, "tasks": 2}
    code, lines = run(tmp_path, sh("c", "echo $CUDA_VISIBLE_DEVICES", **beside), gpus=2)
    assert (code, sorted(lines)) == (0, [("c.0", "0"), ("c.1", "1")])


@pytest.mark.e2e
def test_time_limits(tmp_path: Path) -> None:
    """A step's own, and that of the group around it, which runs from the group's beginning."""
    code, lines = run(tmp_path, sh("x", "sleep 60 & wait", duration_s=0.2))
    assert (code, lines) == (124, [])
    steps = (
        sh("g/a", "sleep 0.1", within={"g": 0.4}),
        sh("g/b", "sleep 60; echo late", within={"g": 0.4}, needs=["g/a"]),
    )
    assert run(tmp_path, *steps) == (124, [])


@pytest.mark.e2e
def test_being_told_to_end(tmp_path: Path) -> None:
    """Everything is told so, also what a task has started; nothing else begins."""
    catch = "trap 'echo ended; exit 0' TERM; echo began; while :; do sleep 0.05; done"
    process = start(tmp_path, sh("x", catch), sh("next", "echo next", needs=["x"]))
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\tbegan\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (143, b"")
    assert out.endswith(b"x\tended\n")  # a shell may say first that its sleep was ended
    assert b"next" not in out


@pytest.mark.e2e
def test_a_task_that_leaves_something_behind(tmp_path: Path) -> None:
    """A process in the background that keeps the pipe open holds nobody up for long."""
    code, lines = run(tmp_path, sh("x", "sleep 20 & echo done"))
    assert (code, lines) == (0, [("x", "done")])


@pytest.mark.e2e
def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Lines are bytes, and one without an end gets one."""
    process = start(tmp_path, sh("x", r"printf 'a\377\tb\nend'"))
    assert process.communicate(timeout=TIMEOUT_S) == (b"x\ta\xff\tb\nx\tend\n", b"")
