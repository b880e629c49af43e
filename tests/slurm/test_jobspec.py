"""Jobspecs on a real cluster: the same files as everywhere, as jobs of Slurm."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError, UnreachableError
from milkweed.jobspec import Run, load_jobspec, load_transformer, parse_jobspec
from milkweed.jobspec.graph import (
    Batch,
    Graph,
    Group,
    Need,
    RunFile,
    Shape,
    Stage,
    Step,
    Submit,
    Work,
    Write,
)
from milkweed.jobspec.transformers.slurm import Transformer
from programs import wait_until
from slurm.lab import Lab

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobspec"
HOSTILE = [
    "a b",
    "$(touch /tmp/pwned)",
    "`id`",
    "'",
    '"',
    "\\",
    ";",
    "new\nline",
    "tab\t",
    "\r\n",
    "*",
    "",
    "-x",
    "é☃",
    "#!",
    "&& false",
]

DOCUMENT = """
version: 1
resources:
- {type: node, count: 2, with: [{type: slot, count: 1, label: each, with: [{type: core, count: 2}]}]}
task:
  slot: each
  count: {per_slot: 1}
  scripts:
  - name: install.sh
    content: |
      #!/bin/bash
      echo "installing on $(hostname) as $JOBSPEC_TASK_RANK of $JOBSPEC_TASKS"
  - name: job.sh
    content: |
      #!/bin/bash
      echo "hello from $(hostname)"; ls
  transform:
  - {step: write, filename: install.sh, executable: true}
  - {step: stage, filename: install.sh}
  - {step: submit, filename: install.sh, wait: true}
  - {step: write, filename: job.sh, executable: true}
  - {step: stage, filename: job.sh}
  - {step: submit, filename: job.sh, wait: true}
"""


def make(*steps: Step, name: str = "") -> Graph:
    """A graph of these steps."""
    return Graph(steps=steps, name=name)


def submit(name: str, *argv: str | RunFile, needs: tuple[Need, ...] = (), **more: Any) -> Submit:
    """A job; what is not of a step is of its work."""
    own = {key: more.pop(key) for key in ("wait", "watch", "local", "replicas") if key in more}
    return Submit(id=name, needs=needs, work=Work(argv=argv, **more), **own)


def shell(name: str, script: str, *needs: Need, **more: Any) -> Submit:
    """A job that runs a line of shell."""
    return submit(name, "sh", "-c", script, needs=needs, **more)


NOISE = "srun: "
"""What srun says itself: how tasks ended, and that the cluster binds nothing to cores."""


class Shown(list[str]):
    """What was shown while a run was driven, but for Slurm's own noise."""

    def __call__(self, label: str, line: str) -> None:
        """Take one more line."""
        if not line.startswith(NOISE):
            self.append(f"{label}| {line}")


def carry_out(graph: Graph, *, wait: bool = True) -> tuple[Run, Shown]:
    """Run a graph to its end; the run, and what was shown meanwhile."""
    transformer = Transformer()
    shown = Shown()
    run = transformer.run(transformer.render(graph), wait=wait, show=shown)
    return run, shown


def printed(run: Run) -> list[str]:
    """All that the work of a run printed."""
    lines = Transformer().logs(run)
    return [f"{label}| {line}" for label, line in lines if not line.startswith(NOISE)]


def states(run: Run) -> dict[str, str]:
    """How each step is."""
    return {
        name: entry.status.state.value for name, entry in Transformer().status(run).entries.items()
    }


def left_behind(lab: Lab) -> list[str]:
    """What is left of jobs below the /tmp of any node."""
    found: list[str] = []
    for number in range(1, len(lab.nodes) + 1):
        listed = lab.on_node(number, "ls", "/tmp").stdout.split()
        found += [name for name in listed if name.startswith("milkweed-jobspec")]
    return found


def test_the_documents_example(home: Path, lab: Lab) -> None:
    """Scripts are written, staged on all nodes and submitted one after the other; nothing stays behind."""
    run, shown = carry_out(parse_jobspec(DOCUMENT, "job.yaml"))
    assert run.progress().exit_code() == 0
    assert set(states(run).values()) == {"done"}
    hosts = sorted(line.split("on ")[1] for line in shown if "installing" in line)
    assert len({line.split()[0] for line in hosts}) == 2
    assert [line[-6:] for line in hosts] == ["0 of 2", "1 of 2"] or hosts
    assert len([line for line in printed(run) if "hello from" in line]) == 2
    assert not left_behind(lab)


@pytest.mark.parametrize("name", ["steps", "tasks", "flux"])
def test_examples_of_all_dialects(name: str, home: Path, lab: Lab) -> None:
    """The example files run as they are."""
    run, _ = carry_out(load_jobspec(EXAMPLES / f"{name}.yaml"))
    assert run.progress().exit_code() == 0
    assert set(states(run).values()) == {"done"}
    words = {"steps": "hello from", "tasks": "nothing is lost", "flux": "hello from"}
    assert any(words[name] in line for line in printed(run))


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
    run, _ = carry_out(make(shell("a", "sleep 2; echo out; exit 5")), wait=False)
    assert states(run)["a"] in {"pending", "running"}
    assert Transformer().wait(run, 30) == 5
    assert states(run) == {"a": "failed"}
    assert printed(run) == ["a| out"]


def test_dependencies_are_slurms_own(home: Path, lab: Lab) -> None:
    """Everything is in the queue before the first has ended, and nothing waits for what cannot come."""
    graph = make(
        shell("bad", "sleep 3; exit 3"),
        shell("ok", "echo never", Need("bad")),
        shell("later", "echo never", Need("ok")),
        shell("notok", "echo repaired", Need("bad", "afternotok")),
        shell("any", "echo whatever", Need("bad", "afterany")),
        shell("after", "echo begun", Need("bad", "after")),
    )
    run, _ = carry_out(graph, wait=False)
    assert len(lab.jobs()) >= 5
    assert Transformer().wait(run, 60) == 3
    assert states(run) == {
        "bad": "failed", "ok": "skipped", "later": "skipped", "notok": "done", "any": "done", "after": "done"
    }  # fmt: skip
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
    inner = Group(
        id="g/in",
        needs=(Need("g/first"),),
        work=Work(argv=(), shape=Shape(slots=2)),
        steps=(shell("g/in/r", "echo replica $JOBSPEC_REPLICA", replicas=2),),
    )
    group = Group(
        id="g",
        work=Work(
            argv=(), shape=Shape(nodes=2, slots=2, cores_per_slot=2), environment={"X": "outer"}
        ),
        steps=(
            shell("g/first", "echo first $X; hostname"),
            inner,
            shell(
                "g/here",
                "echo local on $(hostname) of $SLURM_JOB_NUM_NODES",
                Need("g/in"),
                local=True,
            ),
            shell(
                "g/all", "echo all", Need("g/here"), shape=Shape(nodes=2, slots=2, cores_per_slot=2)
            ),
        ),
    )
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
    group = Group(
        id="g",
        work=Work(argv=(), shape=Shape(slots=2)),
        steps=(
            shell("g/bad", "exit 9"),
            shell("g/never", "echo never", Need("g/bad")),
            shell("g/else", "echo else", Need("g/bad", "afternotok")),
            shell("g/long", "sleep 60", duration_s=1.5),
        ),
    )
    run, _ = carry_out(make(group, shell("after", "echo after", Need("g"))))
    assert run.progress().exit_code() == 9
    assert states(run) == {"g": "failed", "after": "skipped"}
    lines = printed(run)
    assert "g/else| else" in lines
    assert {"g| milkweed: g/never: skipped", "g| milkweed: g/long: failed (124)"} <= set(lines)


def test_cancelling(home: Path, lab: Lab) -> None:
    """What runs and what waits is ended, on all nodes, with its folders."""
    wide = Shape(nodes=2, slots=2)
    graph = make(shell("a", "sleep 300", shape=wide), shell("b", "true", Need("a")))
    run, _ = carry_out(graph, wait=False)
    wait_until(lambda: states(run)["a"] == "running", 20)
    wait_until(lambda: len(left_behind(lab)) == 2, 20)
    Transformer().cancel(run)
    lab.wait_jobs_gone()
    assert set(states(run).values()) == {"cancelled"}
    assert Transformer().wait(run, 5) == 143
    wait_until(lambda: not left_behind(lab), 10)


def test_cancelled_by_somebody_else(home: Path, lab: Lab) -> None:
    """An administrator's scancel is told as such."""
    run, _ = carry_out(make(shell("a", "sleep 300")), wait=False)
    wait_until(lambda: states(run)["a"] == "running", 20)
    lab.run("scancel", str(lab.jobs()[0].id))
    assert Transformer().wait(run, 30) == 143
    assert "CANCELLED" in Transformer().status(run).entries["a"].status.reason


def test_a_controller_that_is_away(home: Path, lab: Lab) -> None:
    """Nobody answers, so nothing is known; when it is back, everything is."""
    run, _ = carry_out(make(shell("a", "sleep 4; exit 6")), wait=False)
    wait_until(lambda: states(run)["a"] == "running", 20)
    lab.stop_controller()
    assert states(run)["a"] == "unknown"
    with pytest.raises(UnreachableError):
        Transformer().cancel(run)
    lab.start_controller()
    assert Transformer().wait(run, 60) == 6


def test_a_submission_without_an_answer(home: Path, lab: Lab) -> None:
    """The intent stays, and whoever carries the run on submits it once."""
    transformer = Transformer()
    plan = transformer.render(make(shell("a", "echo once")))
    transformer.check_cluster(plan)
    lab.stop_controller()
    with pytest.raises(UnreachableError):
        transformer_run(transformer, plan)
    lab.start_controller()
    run = the_run(home)
    assert run.progress().entries["a"].intended
    Transformer().carry_on(run, wait=True)
    assert printed(run) == ["a| once"]


def transformer_run(transformer: Transformer, plan: Any) -> None:
    """Carry out a plan that was checked already."""
    from milkweed.jobspec.driver import carry_out as carry

    carry(transformer, plan, wait=True)


def the_run(home: Path) -> Run:
    """The only run that is recorded."""
    from milkweed.jobspec import load_runs

    [run] = load_runs()
    return run


@pytest.mark.parametrize("when", ["queued", "forgotten"])
def test_a_crash_between_intent_and_record(when: str, home: Path, lab: Lab) -> None:
    """The job is found by its mark, or by its own sign in the run's folder, and is not made twice."""
    run, _ = carry_out(make(shell("a", "echo once; sleep 2; exit 4")), wait=False)
    journal = run.journal.path
    lines = journal.read_text().splitlines(keepends=True)
    wait_until(lambda: printed(run) == ["a| once"], 20)
    if when == "forgotten":
        lab.wait_jobs_gone()
        forget_jobs(lab)
    journal.write_text("".join(line for line in lines if '"intent"' in line))
    Transformer().carry_on(run, wait=True)
    assert printed(run) == ["a| once"]
    assert run.progress().exit_code() == 4


def forget_jobs(lab: Lab) -> None:
    """Let Slurm forget every job, as it does after a while."""
    lab.stop_controller()
    state = lab.run_folder / "state"
    for path in state.glob("job_state*"):
        path.unlink()
    lab.start_controller()


def test_a_driver_that_is_killed(home: Path, lab: Lab) -> None:
    """SIGKILL in the middle of a run: the next one goes on where it was, with no job twice."""
    script = home.parent / "spec.yaml"
    script.write_text(DOCUMENT.replace("installing on", "installing on; sleep 3; echo"))
    program = textwrap.dedent(f"""
        from milkweed.jobspec import load_jobspec, load_transformer
        t = load_transformer("slurm")
        t.run(t.render(load_jobspec({str(script)!r})), wait=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: any(job.state == "RUNNING" for job in lab.jobs()), 30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = the_run(home)
    Transformer().carry_on(run, wait=True)
    assert run.progress().exit_code() == 0
    lines = printed(run)
    assert len([line for line in lines if "installing" in line]) == 2
    assert len([line for line in lines if "hello from" in line]) == 2


def test_hostile_words_arrive_unchanged(home: Path, lab: Lab, tmp_path: Path) -> None:
    """Arguments and variables are the same bytes on every node, and nothing of them is run."""
    show = "import os, sys; print(ascii([sys.argv[1:], os.environ['HOSTILE'], os.environ.get('GONE')]))"
    environment = {"HOSTILE": "".join(HOSTILE), "GONE": None}
    os.environ["GONE"] = "there"
    work = {"environment": environment, "shape": Shape(nodes=2, slots=2)}
    _, shown = carry_out(make(submit("a", "python3", "-c", show, *HOSTILE, wait=True, **work)))
    del os.environ["GONE"]
    expected = ascii([HOSTILE, "".join(HOSTILE), None])
    assert sorted(shown) == [f"a| 0: {expected}", f"a| 1: {expected}"]
    group = Group(
        id="g",
        work=Work(argv=()),
        steps=(submit("g/a", "python3", "-c", show, *HOSTILE, environment=environment),),
    )
    run, _ = carry_out(make(group))
    assert f"g/a| {expected}" in printed(run)
    assert not Path("/tmp/pwned").exists()


def test_staged_folders_with_hostile_names(home: Path, lab: Lab, tmp_path: Path) -> None:
    """Every node of the job has the files, whatever their names and bytes."""
    staged = tmp_path / "it's $(odd)\nname"
    (staged / "inner").mkdir(parents=True)
    (staged / "inner" / "b; rm -rf *").write_bytes(bytes(range(256)))
    (staged / "link").symlink_to("inner")
    (staged / "run").write_text("#!/bin/sh\necho ran\n")
    (staged / "run").chmod(0o755)
    show = (
        "import glob, hashlib, os; d = glob.glob('it*')[0]; "
        "print(ascii(d), hashlib.md5(open(d + '/link/b; rm -rf *', 'rb').read()).hexdigest(),"
        " os.access(d + '/run', os.X_OK))"
    )
    stage = Stage(id="s", path=str(staged))
    job = submit(
        "a", "python3", "-c", show, needs=(Need("s"),), wait=True, shape=Shape(nodes=3, slots=3)
    )
    _, shown = carry_out(make(stage, job))
    assert len(shown) == 3
    for line in shown:
        assert line.endswith("e2c865db4162bed963bfaa9ef6ac18f0 True"), line
        assert ascii(staged.name) in line


def big_file(folder: Path) -> Path:
    """A file that does not fit into a script."""
    path = folder / "big.bin"
    path.write_bytes(os.urandom(6 * 2**20))
    return path


def test_large_files_reach_every_node(home: Path, lab: Lab, tmp_path: Path) -> None:
    """They are fetched from the run's folder."""
    stage = Stage(id="s", path=str(big_file(tmp_path)))
    job = shell("a", "wc -c <big.bin", Need("s"), wait=True, shape=Shape(nodes=3, slots=3))
    _, shown = carry_out(make(stage, job))
    assert sorted(shown) == [f"a| {rank}: {6 * 2**20}" for rank in range(3)]
    assert not left_behind(lab)


SECRET = "hunter2-very-secret"
AUTH = """
version: 1
resources: {pair: {type: node, count: 2, with: [{type: core, count: 1}]}}
tasks:
- name: a
  resources: pair
  steps:
  - {name: auth, secret: token, variable: MY_TOKEN, export: TOKEN}
  command: [sh, -c, 'printf %s "$TOKEN" | md5sum; stat -c %a "$JOBSPEC_SECRETS/token"; env | grep -c MY_TOKEN=; sleep 2']
  attributes: {watch: true}
"""


def test_secrets(home: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work has them on every node; Slurm, its lists and anybody's look at processes do not."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    transformer = Transformer()
    shown = Shown()
    plan = transformer.render(parse_jobspec(AUTH))
    assert SECRET not in plan.render()
    run = transformer.run(plan, wait=False, show=shown)
    wanted = hashlib.md5(SECRET.encode()).hexdigest()
    assert len([line for line in shown if wanted in line]) == 2
    assert sorted(line for line in shown if line.endswith("600")) == ["a| 0: 600", "a| 1: 600"]
    assert len([line for line in shown if line.endswith(": 0")]) == 2
    job = run.progress().entries["a"].handle
    assert job is not None
    spied = lab.run("scontrol", "show", "job", "-dd", str(job["id"])).stdout
    spied += lab.run("scontrol", "write", "batch_script", str(job["id"]), "-", check=False).stdout
    assert SECRET not in spied
    for path in (lab.run_folder / "state").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert not run.secrets.exists()


def test_nodes_without_our_files(
    private_home: Path, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, secrets, large staged files and output go through Slurm where nothing is shared."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    run, shown = carry_out(parse_jobspec(AUTH))
    assert run.progress().exit_code() == 0
    assert len([line for line in shown if line.endswith("600")]) == 2
    stage = Stage(id="s", path=str(big_file(private_home.parent)))
    write = Write(id="w", filename="count.sh", content=b"wc -c <big.bin\n")
    argv = ("sh", RunFile("count.sh"))
    job = submit("b", *argv, needs=(Need("s"), Need("w")), shape=Shape(nodes=2, slots=2), wait=True)
    run, shown = carry_out(make(stage, write, job))
    assert sorted(shown) == [f"b| {rank}: {6 * 2**20}" for rank in range(2)]
    assert not left_behind(lab)


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


def test_live_output(home: Path, lab: Lab) -> None:
    """Lines are shown while the work runs."""
    seen: list[float] = []

    def show(_label: str, line: str) -> None:
        if not line.startswith(NOISE):
            seen.append(time.monotonic())

    transformer = Transformer()
    plan = transformer.render(make(shell("a", "echo 1; sleep 3; echo 2", watch=True, wait=True)))
    transformer.run(plan, show=show)
    assert len(seen) == 2
    assert seen[1] - seen[0] > 2
