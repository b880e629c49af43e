"""Jobspecs on a real Flux: the same files as everywhere, as jobs of an instance."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flux.instance import Instance
from flux.jobspec_runs import RUNS, carry_out, printed, states
from jobspec_work import (
    DEPENDENT_STATES,
    DOCUMENT,
    EXAMPLE_WORDS,
    EXAMPLES,
    LIVE,
    dependent_work,
    failing_group,
    hold,
    load_example,
    make,
    mixed_group,
    shell,
)
from milkweed.errors import SpecError
from milkweed.jobspec import load_runs, parse_jobspec
from milkweed.jobspec.graph import Batch, Group, Need, RunFile, Shape, Work, Write
from milkweed.jobspec.transformers.flux import Transformer


def left_behind(instance: Instance) -> list[str]:
    """What is left of jobs below the instance's own folder."""
    folder = Path(instance.uri.removeprefix("local://")).parent
    return [path.name for path in folder.rglob("jobtmp-*")]


def test_the_documents_example(instance: Instance) -> None:
    """Scripts are written, staged on all nodes and submitted one after the other; nothing stays behind."""
    run, shown = carry_out(parse_jobspec(DOCUMENT, "job.yaml"))
    assert run.progress().exit_code() == 0
    assert set(states(run).values()) == {"done"}
    hosts = sorted(line for line in shown if "installing" in line)
    assert [line[-6:] for line in hosts] == ["0 of 2", "1 of 2"]
    lines = printed(run)
    assert len([line for line in lines if "hello from" in line]) == 2
    assert sorted(line for line in lines if "install.sh" in line and "submit-job.sh|" in line) == [
        "submit-job.sh| 0: install.sh",
        "submit-job.sh| 1: install.sh",
    ]
    assert not left_behind(instance)


@pytest.mark.parametrize("name", EXAMPLE_WORDS)
def test_examples_of_all_dialects(name: str, instance: Instance) -> None:
    """The example files run as they are."""
    run, _ = carry_out(load_example(name))
    assert (run.progress().exit_code(), set(states(run).values())) == (0, {"done"})
    assert any(EXAMPLE_WORDS[name] in line for line in printed(run))


def test_batch_starts_a_script_once(instance: Instance) -> None:
    """The script runs on the first node, inside an instance of the whole shape."""
    script = (
        b"#!/bin/bash\necho nodes $(flux getattr size) rank $JOBSPEC_TASK_RANK of $JOBSPEC_TASKS on $JOBSPEC_NODES\n"
        b"flux run -n 2 -N 2 echo inner\nexit 5\n"
    )
    write = Write(id="w", filename="all.sh", content=script)
    shape = Shape(nodes=2, slots=4, cores_per_slot=1)
    work = Work(argv=("bash", RunFile("all.sh")), shape=shape)
    batch = Batch(id="b", filename="all.sh", work=work, wait=True, needs=(Need("w"),))
    run, shown = carry_out(make(write, batch))
    assert shown[:3] == ["b| nodes 2 rank 0 of 1 on 2", "b| inner", "b| inner"]
    assert run.progress().exit_code() == 5


def test_without_waiting(instance: Instance, tmp_path: Path) -> None:
    """The run is handed over at once; status, logs and the exit code come later, from anybody."""
    gate = tmp_path / "gate"
    run, _ = carry_out(make(shell("a", f"{hold(gate)}; echo out; exit 5")), wait=False)
    assert states(run)["a"] in {"pending", "running"}
    gate.touch()
    assert Transformer().wait(run, 90) == 5
    assert states(run) == {"a": "failed"}
    assert printed(run) == ["a| out"]


def test_dependencies_are_flux_s_own(instance: Instance, tmp_path: Path) -> None:
    """Everything is handed over before the first has ended, and nothing waits for what cannot come."""
    before = len(instance.jobs(ended=True))
    run, _ = carry_out(dependent_work(tmp_path / "gate"), wait=False)
    assert len(instance.jobs(ended=True)) - before == 6
    (tmp_path / "gate").touch()
    assert Transformer().wait(run, 60) == 3
    assert states(run) == DEPENDENT_STATES
    assert sorted(printed(run)) == ["after| begun", "any| whatever", "notok| repaired"]


def test_a_need_that_failed_just_before(instance: Instance) -> None:
    """Flux refuses a job that waits for one that has failed: the step is left out, not failed."""
    graph = make(
        shell("bad", "exit 3"),
        shell("slow", "flux job wait-event $(flux job last) clean >/dev/null", local=True),
        shell("never", "echo never", Need("bad"), Need("slow")),
    )
    run, _ = carry_out(graph)
    assert states(run) == {"bad": "failed", "slow": "done", "never": "skipped"}
    assert run.progress().exit_code() == 3


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exec /nowhere/at/all", 127)],
)
def test_the_exit_code_is_the_works(script: str, code: int, instance: Instance) -> None:
    """Codes and signals arrive as a shell tells them."""
    run, _ = carry_out(make(shell("a", script)))
    assert run.progress().exit_code() == code
    assert states(run) == {"a": "failed"}


def test_groups(instance: Instance) -> None:
    """An instance of its own with steps in their order: groups in it, local steps, replicas."""
    group = mixed_group("echo local of $JOBSPEC_NODES in $(flux getattr instance-level)")
    run, _ = carry_out(make(group, shell("end", "echo end", Need("g"))))
    lines = printed(run)
    assert set(states(run).values()) == {"done"}, lines
    assert "g/first| first outer" in lines
    assert {"g/in/r/1| replica 0", "g/in/r/2| replica 1"} <= set(lines)
    assert "g/here| local of 2 in 1" in lines
    assert sorted(line for line in lines if line.startswith("g/all| ")) == [
        "g/all| 0: all",
        "g/all| 1: all",
    ]
    assert "end| end" in lines
    assert not left_behind(instance)


def test_a_groups_exit_code(instance: Instance) -> None:
    """It is that of the first step that failed; what needed it is left out, the rest runs."""
    inner = Group(
        id="g/in", work=Work(argv=()), steps=(shell("g/in/a", "exit 4"),), needs=(Need("g/else"),)
    )
    group = failing_group(inner)
    run, _ = carry_out(make(group, shell("after", "echo after", Need("g"))))
    lines = printed(run)
    assert run.progress().exit_code() == 9, lines
    assert states(run) == {"g": "failed", "after": "skipped"}
    assert "g/else| else" in lines
    assert {
        "g| milkweed: g/never: skipped",
        "g| milkweed: g/long: failed (124)",
        "g| milkweed: g/in: failed (4)",
    } <= set(lines)


def test_the_shape_is_kept(instance: Instance) -> None:
    """Nodes, cores and tasks are what was said, and are not confused."""
    see = "echo $FLUX_JOB_NNODES nodes $FLUX_JOB_SIZE tasks"
    for shape, tasks, cores in (
        (Shape(cores_per_slot=2), 1, 2),
        (Shape(nodes=2, slots=2, cores_per_slot=2), 2, 4),
        (Shape(slots=3, cores_per_slot=2), 3, 6),
        (Shape(slots=2, tasks_per_slot=3), 6, 2),
        (Shape(slots=4, tasks_total=2), 2, 4),
    ):
        run, shown = carry_out(make(shell("a", see, shape=shape, wait=True)))
        assert len([line for line in shown if line.endswith(f" {tasks} tasks")]) == tasks, shown
        handle = run.progress().entries["a"].handle
        assert handle is not None
        [job] = [each for each in instance.jobs(ended=True) if str(each["id"]) == handle["id"]]
        assert job["ncores"] == cores
        if shape.nodes:
            assert job["nnodes"] == shape.nodes


@pytest.fixture
def with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """An instance of one node that is said to have four GPUs."""
    (tmp_path / "resource.toml").write_text(
        "[resource]\nnoverify = true\nnorestrict = true\n"
        f'[[resource.config]]\nhosts = "{socket.gethostname()}"\ncores = "0-1"\ngpus = "0-3"\n'
    )
    made = Instance(1, wrap=("env", f"FLUX_CONF_DIR={tmp_path}"))
    monkeypatch.setenv("FLUX_URI", made.uri)
    yield made
    made.stop()


def test_gpus(with_gpus: Instance) -> None:
    """Each task has those of its slot, and nobody else's; work that asks for none has none."""
    see = "echo gpus $CUDA_VISIBLE_DEVICES"
    shape = Shape(nodes=1, slots=2, gpus_per_slot=2)
    _, shown = carry_out(make(shell("a", see, shape=shape, wait=True)))
    assert sorted(shown) == ["a| 0: gpus 0,1", "a| 1: gpus 2,3"]
    _, shown = carry_out(make(shell("a", see, wait=True)))
    assert shown == ["a| gpus -1"]


def test_whole_nodes(instance: Instance) -> None:
    """Exclusive nodes have all their cores in use by the work."""
    run, _ = carry_out(make(shell("a", "true", shape=Shape(nodes=2, slots=2, exclusive=True))))
    handle = run.progress().entries["a"].handle
    assert handle is not None
    [job] = [each for each in instance.jobs(ended=True) if str(each["id"]) == handle["id"]]
    every = int(instance.run("resource", "list", "-no", "{ncores}").stdout.split()[0])
    assert job["ncores"] == every // 2


def test_where_work_runs_and_prints(instance: Instance, tmp_path: Path) -> None:
    """cwd, output and error are honoured; a folder that is not there is an error, not /tmp."""
    work = {"cwd": str(tmp_path), "output": "out.txt", "error": str(tmp_path / "err")}
    (tmp_path / "out.txt").write_text("before\n")
    run, _ = carry_out(make(shell("a", "pwd; echo no >&2", **work)))
    assert run.progress().exit_code() == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == ["before", str(tmp_path)]
    assert (tmp_path / "err").read_text() == "no\n"
    run, _ = carry_out(make(shell("a", "echo out; echo no >&2", output=str(tmp_path / "both"))))
    assert sorted((tmp_path / "both").read_text().splitlines()) == ["no", "out"]
    run, _ = carry_out(make(shell("a", "pwd", cwd="/nowhere")))
    assert run.progress().exit_code() != 0
    assert any("/nowhere" in line for line in printed(run))


def test_limits_and_replicas(instance: Instance) -> None:
    """Limits are seconds; replicas are jobs of their own, and all of them count."""
    run, _ = carry_out(make(shell("a", "sleep 60", duration_s=1.5)))
    assert (run.progress().exit_code(), states(run)) == (124, {"a": "failed"})
    graph = make(
        shell("r", "echo $JOBSPEC_REPLICA; exit $JOBSPEC_REPLICA", replicas=3),
        shell("never", "echo never", Need("r")),
        shell("repair", "echo repaired", Need("r", "afternotok")),
    )
    run, _ = carry_out(graph)
    assert [line for line in printed(run) if line.startswith("r/")] == [
        "r/1| 0", "r/2| 1", "r/3| 2"
    ]  # fmt: skip
    assert states(run) == {"r": "failed", "never": "skipped", "repair": "done"}
    assert run.progress().exit_code() in {1, 2}


def test_what_the_instance_cannot_give(instance: Instance) -> None:
    """It is refused before anything is submitted."""
    before = len(instance.jobs(ended=True))
    for shape, words in (
        (Shape(nodes=99, slots=99), "99 nodes"),
        (Shape(cores_per_slot=99), "99 cores"),
        (Shape(slots=99), "99 slots"),
        (Shape(nodes=1, slots=1, gpus_per_slot=9), "9 gpus"),
    ):
        with pytest.raises(SpecError, match=words):
            carry_out(make(shell("a", "true", shape=shape)))
    with pytest.raises(SpecError, match="there is no queue 'nowhere'"):
        carry_out(make(shell("a", "true", queue="nowhere")))
    assert len(instance.jobs(ended=True)) == before
    assert load_runs() == []


def test_templates(instance: Instance) -> None:
    """What Flux fills in is filled in where the file is in Flux's own language, and nowhere else."""
    text = """
version: 1
resources: [{type: slot, count: 1, label: t, with: [{type: core, count: 1, unit: cores}]}]
tasks: [{command: [echo, "{{jobid.dec}}", "{{name}}"], slot: t, count: {per_slot: 1}}]
attributes: {system: {duration: 60, job: {name: mine}}, user: {note: kept}}
"""
    run, _ = carry_out(parse_jobspec(text))
    handle = run.progress().entries["job"].handle
    assert handle is not None
    assert printed(run) == [f"job| {handle['id']} mine"]
    run, _ = carry_out(make(shell("a", "echo '{{jobid}} {{'")))
    assert printed(run) == ["a| {{jobid}} {{"]


def test_local_steps(instance: Instance) -> None:
    """They are processes of the machine that submits, before and between jobs."""
    graph = make(
        shell("here", "echo here${FLUX_JOB_ID}", local=True),
        shell("there", "test -n $FLUX_JOB_ID && echo there", Need("here")),
    )
    run, _ = carry_out(graph)
    assert printed(run) == ["here| here", "there| there"]


@pytest.mark.parametrize("name", LIVE)
def test_live_output(name: str, instance: Instance, tmp_path: Path) -> None:
    """Lines are shown while the work runs: of what says so, also in a group, and of all that is waited for."""
    wait, work = LIVE[name]
    gate = tmp_path / "gate"
    step = work(gate)
    label = "g/a" if step.id == "g" else "a"
    shown = RUNS.see_live(make(step), gate, wait=wait)
    assert [line for line in shown if line.startswith(f"{label}|")] == [
        f"{label}| begun",
        f"{label}| seen",
    ]


def test_the_command_line(instance: Instance, tmp_path: Path) -> None:
    """`milkweed jobspec run` shows what the work prints, and ends with its code; Flux is where it runs."""
    command = [sys.executable, "-m", "milkweed", "jobspec", "run", "--wait"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "steps.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hello from") == 2
    bad = tmp_path / "bad.yaml"
    text = (EXAMPLES / "steps.yaml").read_text()
    bad.write_text(text.replace('echo "hello', 'exit 9; echo "hello'))
    done = subprocess.run([*command, str(bad)], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["hello-world-jobspec"],
        ["hello-world-wait-jobspec"],
        ["hello-world-batch"],
        ["-t", "flux", "hello-world-wait-jobspec"],
        ["--transformer", "flux", "hello-world-wait-jobspec"],
    ],
    ids=" ".join,
)
def test_the_documents_own_commands(words: list[str], instance: Instance) -> None:
    """`jobspec run FILE`, with files named as the document names them: Flux is where they run."""
    *flags, name = words
    program = "from milkweed.cli import jobspec; jobspec()"
    command = [sys.executable, "-c", program, "run", *flags, str(EXAMPLES / f"{name}.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if name != "hello-world-jobspec" and platform.machine() != "x86_64":
        assert "the jobspec requires x86_64" in done.stdout + done.stderr
        return
    assert done.returncode == 0, done.stderr
    run = load_runs()[-1]
    assert Transformer().wait(run, 60) == 0
    assert any("hello world from" in line for line in printed(run))
    if "wait" in name or "batch" in name:
        assert "hello world from" in done.stdout


def test_another_kind_of_machine(instance: Instance) -> None:
    """Work that requires another kind of machine is not begun on this one, and says why."""
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    requires: Any = [{"name": "m", "field": "cpu.target", "value": other}]
    run, shown = carry_out(make(shell("a", "echo never", attributes={"requires": requires})))
    assert run.progress().exit_code() == 78
    [line] = shown
    assert f"and the jobspec requires {other}" in line


def test_no_instance(instance: Instance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is none that is said, with what to do, and nothing is recorded."""
    monkeypatch.setenv("FLUX_URI", f"local://{tmp_path}/nowhere")
    command = [sys.executable, "-m", "milkweed", "jobspec", "run", str(EXAMPLES / "steps.yaml")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert "-t local" in done.stderr
    assert "Traceback" not in done.stderr
