"""Jobspecs on a real cluster: the same files as everywhere, as jobs of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobspec_work import (
    DEPENDENT_STATES,
    EXAMPLE_WORDS,
    EXAMPLES,
    LIVE,
    dependent_work,
    failing_group,
    hold,
    load_example,
    mixed_group,
)
from milkweed.errors import SpecError
from milkweed.jobspec import parse_jobspec
from milkweed.jobspec.graph import (
    Batch,
    Need,
    RunFile,
    Shape,
    Work,
    Write,
)
from milkweed.jobspec.transformers.slurm import Transformer
from slurm.jobspec_runs import DOCUMENT, RUNS, carry_out, left_behind, make, printed, shell, states
from slurm.lab import Lab


def test_the_documents_example(home: Path, lab: Lab) -> None:
    """Scripts are written, staged on all nodes and submitted one after the other; nothing stays behind."""
    run, shown = carry_out(parse_jobspec(DOCUMENT, "job.yaml"))
    assert run.progress().exit_code() == 0
    assert set(states(run).values()) == {"done"}
    hosts = sorted(line.split("on ")[1] for line in shown if "installing" in line)
    assert len({line.split()[0] for line in hosts}) == 2
    assert sorted(line[-6:] for line in hosts) == ["0 of 2", "1 of 2"]
    assert len([line for line in printed(run) if "hello from" in line]) == 2
    assert not left_behind(lab)


@pytest.mark.parametrize("name", EXAMPLE_WORDS)
def test_examples_of_all_dialects(name: str, home: Path, lab: Lab) -> None:
    """The example files run as they are."""
    run, _ = carry_out(load_example(name))
    assert (run.progress().exit_code(), set(states(run).values())) == (0, {"done"})
    assert any(EXAMPLE_WORDS[name] in line for line in printed(run))


def test_batch_starts_a_script_once(home: Path, lab: Lab) -> None:
    """The script runs on the first node, and has the whole allocation for its own steps."""
    script = b"#!/bin/bash\necho tasks $SLURM_NTASKS nodes $SLURM_JOB_NUM_NODES\nsrun -n 2 -N 2 hostname\n"
    write = Write(id="w", filename="all.sh", content=script)
    shape = Shape(nodes=2, slots=4, cores_per_slot=2)
    work = Work(argv=("bash", RunFile("all.sh")), shape=shape)
    batch = Batch(id="b", filename="all.sh", work=work, wait=True, needs=(Need("w"),))
    _, shown = carry_out(make(write, batch))
    assert shown[0] == "b| tasks 4 nodes 2"
    assert len([line for line in shown if line.startswith("b| n")]) == 2


def test_without_waiting(home: Path, lab: Lab) -> None:
    """The run is handed over at once; status, logs and the exit code come later, from anybody."""
    gate = home / "gate"
    run, _ = carry_out(make(shell("a", f"{hold(gate)}; echo out; exit 5")), wait=False)
    assert states(run)["a"] in {"pending", "running"}
    gate.touch()
    assert Transformer().wait(run, 90) == 5
    assert states(run) == {"a": "failed"}
    assert printed(run) == ["a| out"]


def test_dependencies_are_slurms_own(home: Path, lab: Lab) -> None:
    """Everything is in the queue before the first has ended, and nothing waits for what cannot come."""
    run, _ = carry_out(dependent_work(home / "gate"), wait=False)
    assert len(lab.jobs()) >= 5
    (home / "gate").touch()
    assert Transformer().wait(run, 60) == 3
    assert states(run) == DEPENDENT_STATES
    assert sorted(printed(run)) == ["after| begun", "any| whatever", "notok| repaired"]


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exec /nowhere/at/all", 127)],
)
def test_the_exit_code_is_the_works(script: str, code: int, home: Path, lab: Lab) -> None:
    """Codes and signals arrive as a shell tells them."""
    run, _ = carry_out(make(shell("a", script)))
    assert run.progress().exit_code() == code
    assert states(run) == {"a": "failed"}


def test_groups(home: Path, lab: Lab) -> None:
    """One allocation with steps in their order: groups in it, local steps, replicas."""
    group = mixed_group("echo local on $(hostname) of $SLURM_JOB_NUM_NODES")
    run, _ = carry_out(make(group, shell("end", "echo end", Need("g"))))
    assert set(states(run).values()) == {"done"}
    lines = printed(run)
    assert "g/first| first outer" in lines
    assert {"g/in/r/1| replica 0", "g/in/r/2| replica 1"} <= set(lines)
    assert any(line.startswith("g/here| local on n") and line.endswith("of 2") for line in lines)
    assert len([line for line in lines if line.startswith("g/all| ")]) == 2
    assert "end| end" in lines
    assert not left_behind(lab)


def test_a_groups_exit_code(home: Path, lab: Lab) -> None:
    """It is that of the first step that failed; what needed it is left out, the rest runs."""
    group = failing_group()
    run, _ = carry_out(make(group, shell("after", "echo after", Need("g"))))
    assert run.progress().exit_code() == 9
    assert states(run) == {"g": "failed", "after": "skipped"}
    lines = printed(run)
    assert "g/else| else" in lines
    assert {"g| milkweed: g/never: skipped", "g| milkweed: g/long: failed (124)"} <= set(lines)


def test_the_shape_is_kept(home: Path, lab: Lab) -> None:
    """Nodes, cores, tasks and GPUs are what was said, and are not confused."""
    see = "echo $SLURM_JOB_NUM_NODES nodes $SLURM_NTASKS tasks gpus $CUDA_VISIBLE_DEVICES; scontrol show job $SLURM_JOB_ID | grep -o 'NumCPUs=[0-9]*'"
    _, shown = carry_out(
        make(
            shell(
                "a",
                see,
                shape=Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2),
                wait=True,
            )
        )
    )
    assert sorted(shown) == [
        "a| 0: 2 nodes 2 tasks gpus 0,1", "a| 0: NumCPUs=8", "a| 1: 2 nodes 2 tasks gpus 0,1", "a| 1: NumCPUs=8"
    ]  # fmt: skip
    _, shown = carry_out(make(shell("a", see, shape=Shape(slots=3, cores_per_slot=2), wait=True)))
    assert {line.split(": ")[1] for line in shown if "NumCPUs" in line} == {"NumCPUs=6"}
    _, shown = carry_out(make(shell("a", see, shape=Shape(slots=2, tasks_per_slot=3), wait=True)))
    assert len([line for line in shown if "NumCPUs=2" in line]) == 6
    _, shown = carry_out(
        make(shell("a", see, shape=Shape(slots=4, tasks_total=2, gpus_per_slot=1), wait=True))
    )
    assert len([line for line in shown if "NumCPUs=4" in line]) == 2


def test_whole_nodes(home: Path, lab: Lab) -> None:
    """Exclusive nodes have all their cores in use by the work."""
    see = "scontrol show job $SLURM_JOB_ID | grep -oE '(NumCPUs|NumNodes|OverSubscribe)=[A-Z0-9]*' | tr '\\n' ' '"
    _, shown = carry_out(
        make(shell("a", see, shape=Shape(nodes=2, slots=2, exclusive=True), wait=True))
    )
    assert len(shown) == 2
    assert all("NumNodes=2 NumCPUs=8 OverSubscribe=NO" in line for line in shown), shown


def test_where_work_runs_and_prints(home: Path, lab: Lab, tmp_path: Path) -> None:
    """cwd, output, error and the umask are honoured; a folder that is not there is an error."""
    work = {"cwd": str(tmp_path), "output": "out %j.txt", "error": str(tmp_path / "err")}
    run, _ = carry_out(make(shell("a", "pwd; umask; echo no >&2", **work)))
    assert run.progress().exit_code() == 0
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "out %j.txt").read_text().splitlines() == [str(tmp_path), f"{mask:04o}"]
    assert (tmp_path / "err").read_text().endswith("no\n")
    run, _ = carry_out(make(shell("a", "pwd", cwd="/nowhere")))
    assert run.progress().exit_code() != 0
    assert any("/nowhere" in line for line in printed(run))


def test_limits_queues_and_replicas(home: Path, lab: Lab) -> None:
    """Seconds are rounded up to Slurm's minutes; replicas are an array, and all of them count."""
    see = "scontrol show job $SLURM_JOB_ID | grep -oE '(TimeLimit|Partition)=[a-z0-9:]*'; exit $JOBSPEC_REPLICA"
    run, _ = carry_out(make(shell("a", see, duration_s=61, queue="debug", replicas=3)))
    lines = printed(run)
    assert lines.count("a/2| TimeLimit=00:02:00") == 1
    assert "a/3| Partition=debug" in lines
    assert states(run) == {"a": "failed"}
    assert run.progress().exit_code() in {1, 2}


def test_what_the_cluster_cannot_give(home: Path, lab: Lab) -> None:
    """It is refused before anything is submitted."""
    for shape, words in (
        (Shape(nodes=99, slots=99), "99 hosts"),
        (Shape(cores_per_slot=99), "99 CPUs"),
    ):
        with pytest.raises(SpecError, match=words):
            carry_out(make(shell("a", "true", shape=shape)))
    with pytest.raises(SpecError, match="no partition"):
        carry_out(make(shell("a", "true", queue="nowhere")))
    assert not lab.jobs()


def test_local_steps(home: Path, lab: Lab) -> None:
    """They are processes of the login node, before and between jobs."""
    graph = make(
        shell("here", "hostname; echo $SLURM_JOB_ID", local=True),
        shell("there", "hostname", Need("here")),
    )
    run, _ = carry_out(graph)
    assert [line for line in printed(run) if line.startswith("here")] == ["here| head", "here| "]
    assert [line for line in printed(run) if line.startswith("there| n")]


@pytest.mark.parametrize("name", LIVE)
def test_live_output(name: str, home: Path, lab: Lab) -> None:
    """Lines are shown while the work runs: of what says so, also in a group, and of all that is waited for."""
    wait, work = LIVE[name]
    gate = home / "gate"
    step = work(gate)
    label = "g/a" if step.id == "g" else "a"
    shown = RUNS.see_live(make(step), gate, wait=wait)
    assert [line for line in shown if line.startswith(f"{label}|")] == [
        f"{label}| begun",
        f"{label}| seen",
    ]


def test_the_command_line(home: Path, lab: Lab) -> None:
    """`milkweed jobspec run` shows what the work prints, and ends with its code."""
    command = [
        sys.executable,
        "-m",
        "milkweed",
        "jobspec",
        "run",
        "-t",
        "slurm",
        "--set",
        "partition=debug",
    ]
    done = subprocess.run(
        [*command, "--wait", str(EXAMPLES / "steps.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hello from n") == 2
    bad = home.parent / "bad.yaml"
    bad.write_text(
        (EXAMPLES / "steps.yaml").read_text().replace('echo "hello', 'exit 9; echo "hello')
    )
    done = subprocess.run(
        [*command, "--wait", str(bad)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 9, done.stderr
