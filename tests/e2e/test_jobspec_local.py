"""Jobspecs on this machine: real processes, their codes, their output, their time limits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from e2e.local_jobspecs import log, run, sh, states
from jobspec_work import EXAMPLE_WORDS, load_example
from milkweed.jobspec import load_transformer, parse_jobspec
from milkweed.jobspec.graph import (
    Auth,
    Graph,
    Group,
    Need,
    RunFile,
    Shape,
    Stage,
    Submit,
    Work,
    Write,
)
from milkweed.jobspec.progress import State
from milkweed.jobspec.transformers.processes import find_marked

pytestmark = pytest.mark.e2e

HOSTILE = [
    "a b",
    "$(touch pwned)",
    "`x`",
    "; rm -rf /",
    "'",
    '"',
    "\\",
    "*",
    "~",
    "\n",
    "",
    "--",
    "ä",
    "{{x}}",
]
SHOW = [sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))"]


@pytest.mark.parametrize("example", EXAMPLE_WORDS)
@pytest.mark.parametrize("wait", [True, False])
def test_every_example_runs(example: str, wait: bool, folder: Path) -> None:
    """The examples of all dialects end well here, waited for or not."""
    local = load_transformer("local")
    found = local.run(local.render(load_example(example)), wait=wait)
    assert local.wait(found, 60) == 0
    assert {each.status.state for each in found.progress().entries.values()} == {State.DONE}


def test_output_is_shown_while_it_runs(folder: Path) -> None:
    """Lines come with the name of their step, and of their task where there are several."""
    lines: list[tuple[str, str]] = []
    run(
        sh("a", "echo one; echo two >&2"),
        sh("b", "echo $JOBSPEC_TASK_RANK", "a", shape=Shape(slots=2)),
        lines=lines,
    )
    assert sorted(lines) == [("a", "one"), ("a", "two"), ("b.0", "0"), ("b.1", "1")]


@pytest.mark.parametrize("script", ["exit 7", "kill -9 $$", "exit 255"])
def test_the_exit_code_is_the_work_s(script: str, folder: Path) -> None:
    """A failed step is never 0, and a signal is 128 and its number."""
    found = run(sh("a", script), sh("b", "echo never", "a"))
    assert found.progress().exit_code() == {"exit 7": 7, "kill -9 $$": 137, "exit 255": 255}[script]
    assert states(found) == {"a": "failed", "b": "skipped"}


def test_the_worst_task_is_the_step_s_code(folder: Path) -> None:
    """Of several tasks the largest code counts."""
    found = run(sh("a", "exit $((JOBSPEC_TASK_RANK * 2))", shape=Shape(slots=3)))
    assert found.progress().exit_code() == 4


@pytest.mark.parametrize(
    ("argv", "code"), [(("/nowhere/program",), 127), (("/etc/hostname",), 126), (("/etc",), 126)]
)
def test_what_cannot_be_started_fails(argv: tuple[str, ...], code: int, folder: Path) -> None:
    """A program that is not there, or is none, has the code that a shell gives."""
    found = run(Submit(id="a", work=Work(argv=argv)))
    assert found.progress().exit_code() == code
    assert argv[0] in found.progress().entries["a"].status.reason


def test_a_folder_that_is_not_there_fails(folder: Path) -> None:
    """Nothing runs in some other folder instead."""
    found = run(sh("a", "touch here", cwd="/nowhere/at/all"))
    assert found.progress().exit_code() == 126
    assert "/nowhere/at/all" in found.progress().entries["a"].status.reason


def test_words_arrive_as_they_are(folder: Path) -> None:
    """Whatever a word holds, no shell reads it, in groups and out of them."""
    work = Work(argv=(*SHOW, *HOSTILE))
    inner = Group(id="g", steps=(Submit(id="g/x", work=work),), work=Work(argv=()))
    found = run(Submit(id="a", work=work), inner)
    assert json.loads(log(found, "a")) == json.loads(log(found, "g/x")) == HOSTILE
    assert list(folder.iterdir()) == []


def test_dependencies_are_real(folder: Path) -> None:
    """A step begins after the end of what it needs."""
    found = run(sh("b", "cat done", "a"), sh("a", "sleep 0.2; echo yes > done"))
    assert log(found, "b") == "yes\n"


def test_nested_groups_run_and_their_failure_counts(folder: Path) -> None:
    """A group inside a group runs, and its code is that of the whole."""
    inner = Group(id="g/h", steps=(sh("g/h/x", "echo deep; exit 5"),), work=Work(argv=()))
    outer = Group(id="g", steps=(inner, sh("g/y", "echo never", "g/h")), work=Work(argv=()))
    found = run(outer, sh("z", "echo never", "g"))
    assert log(found, "g/h/x") == "deep\n"
    assert found.progress().exit_code() == 5
    assert states(found) == {
        "g/h/x": "failed",
        "g/h": "failed",
        "g/y": "skipped",
        "g": "failed",
        "z": "skipped",
    }


def test_replicas_are_jobs_of_their_own(folder: Path) -> None:
    """Each knows its number, and all must end well for what comes after."""
    found = run(
        Submit(
            id="a",
            work=Work(argv=("/bin/bash", "-c", "exit $((JOBSPEC_REPLICA == 2))")),
            replicas=3,
        ),
        sh("b", "true", "a"),
    )
    assert states(found) == {
        "a/1": "done",
        "a/2": "done",
        "a/3": "failed",
        "a": "failed",
        "b": "skipped",
    }


def test_files_are_in_the_run_s_own_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written and staged lies in a folder of the run, and nothing in the shared one for all users."""
    shared = tmp_path / "shared-tmp"
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    (folder / "data").mkdir()
    (folder / "data" / "x").write_text("staged")
    found = run(
        Write(id="w", filename="job.sh", content=b"#!/bin/bash\ncat data/x; pwd\n"),
        Stage(id="s", path=str(folder / "data"), needs=(Need("w"),)),
        Submit(id="a", work=Work(argv=("/bin/bash", RunFile("job.sh"))), needs=(Need("s"),)),
    )
    assert log(found, "a") == f"staged{found.host}\n"
    assert found.host.stat().st_mode & 0o077 == 0
    assert list(shared.iterdir()) == []


def test_environment_cwd_and_output_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are set and taken away, the folder is the one that was said, and output goes where it should."""
    monkeypatch.setenv("TAKEN", "away")
    run(
        sh(
            "a",
            "pwd; echo $GIVEN ${TAKEN-gone}; echo oops >&2",
            cwd=str(folder),
            environment={"GIVEN": "yes", "TAKEN": None},
            output="out.txt",
            error="err.txt",
        )
    )
    assert (folder / "out.txt").read_text() == f"{folder}\nyes gone\n"
    assert (folder / "err.txt").read_text() == "oops\n"


@pytest.mark.parametrize("script", ["sleep 60", "trap '' TERM; sleep 60 & wait; sleep 60"])
def test_a_time_limit_ends_the_work(script: str, folder: Path) -> None:
    """What takes longer is ended, also if it does not want to."""
    found = run(sh("a", f"{script}; touch late", duration_s=0.3))
    assert found.progress().exit_code() == 124
    assert not (folder / "late").exists()
    assert find_marked(found.plan.mark("")) == []


def test_a_group_s_time_limit_is_for_all_of_it(folder: Path) -> None:
    """What is left of it is all that a later step gets."""
    group = Group(
        id="g",
        steps=(sh("g/a", "sleep 0.2"), sh("g/b", "sleep 60", "g/a")),
        work=Work(argv=(), duration_s=4.0),
    )
    found = run(group)
    assert states(found)["g/b"] == "failed"
    assert found.progress().exit_code() == 124


def test_secrets_reach_the_work_and_nobody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps after it find it in a file and in the variable that was named; the words of no process hold it."""
    monkeypatch.setenv("HUB_TOKEN", "hunter2-and-more")
    check = '[ "$(cat $JOBSPEC_SECRETS/hub)" = "$TOKEN" ] && [ ${#TOKEN} = 16 ] && ! grep -qaFf $JOBSPEC_SECRETS/hub /proc/[0-9]*/cmdline'
    found = run(
        Auth(id="k", secret="hub", variable="HUB_TOKEN", export="TOKEN"),
        Submit(
            id="a",
            work=Work(argv=("/bin/bash", "-c", check), environment={"HUB_TOKEN": None}),
            needs=(Need("k"),),
        ),
        sh("b", '[ -z "$TOKEN$JOBSPEC_SECRETS" ]'),
    )
    assert found.progress().exit_code() == 0
    held = [
        path
        for path in found.folder.rglob("*")
        if path.is_file() and b"hunter2" in path.read_bytes()
    ]
    assert held == []


def test_what_this_dialect_says_twice_runs_once(folder: Path) -> None:
    """A file of tasks runs each of them once, in the order of its dependencies."""
    text = "version: 1\nresources: {r: {type: core, count: 4}}\ntasks:\n"
    text += "- {name: c, resources: r, command: [bash, -c, 'echo c >> order'], depends_on: [b]}\n"
    text += "- {name: b, resources: r, command: [bash, -c, 'echo b >> order'], depends_on: [a]}\n"
    text += "- {name: a, resources: r, command: [bash, -c, 'echo a >> order']}\n"
    local = load_transformer("local")
    local.run(local.render(parse_jobspec(text)), wait=True)
    assert (folder / "order").read_text() == "a\nb\nc\n"


def test_many_tasks(folder: Path) -> None:
    """Two hundred tasks that depend on each other all run, each after the one that it needs."""
    steps = [
        sh(
            f"t{at}",
            f"[ {at} -lt 10 ] || [ -e {at - 10} ] && touch {at}",
            *(f"t{at - 10}",) * (at >= 10),
        )
        for at in range(200)
    ]
    assert run(*steps).progress().exit_code() == 0
    assert len([name for name in os.listdir(folder) if name.isdecimal()]) == 200


def test_no_process_and_no_descriptor_stays(folder: Path) -> None:
    """A run leaves this process as it found it."""
    run(sh("a", "true"))
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(sh("a", "true"))
    after = sorted(os.listdir("/proc/self/fd"))
    assert len(after) <= len(before) + 5


def test_a_plan_means_the_same_in_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of this machine is named whole when the plan is made, also inside groups."""
    (folder / "token").write_text("s3cret")
    (folder / "token").chmod(0o600)
    (folder / "say").write_text("#!/bin/sh\necho other\n")
    (folder / "say").chmod(0o700)
    (folder / "data").write_text("data")
    local = load_transformer("local")
    group = Group(
        id="g",
        work=Work(argv=()),
        steps=(Auth(id="g/b", secret="b", command=("./say", "x")), sh("g/c", "true", "g/b")),
    )
    plan = local.render(
        Graph(steps=(Auth(id="a", secret="a", file="token"), Stage(id="s", path="data"), group))
    )
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = local.run(plan, wait=True)
    assert run.progress().exit_code() == 0, run.progress()
    assert (run.host / "data").read_text() == "data"
    details = {action.id: action.details for action in plan.actions}
    assert details["a"]["file"] == str(folder / "token")
    assert details["g/b"]["command"] == [str(folder / "say"), "x"]


def test_a_task_and_a_step_of_the_same_name(folder: Path) -> None:
    """The first task of `a` and the step `a.0` are told under one name, and are two logs."""
    found = run(
        sh("a", "echo task $JOBSPEC_TASK_RANK", shape=Shape(slots=2)), sh("a.0", "echo step", "a")
    )
    printed = sorted(load_transformer("local").logs(found))
    assert printed == [("a.0", "step"), ("a.0", "task 0"), ("a.1", "task 1")]
