"""Jobspecs on a real cluster: work is Jobs, what it prints and how it ends comes back, and nothing is left."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jobspec_work import EXAMPLE_WORDS, load_example
from kubernetes.jobspecs import LIMIT_S, Place, graph, states, work
from kubernetes.lab import WORKER, wait
from milkweed.jobspec import load_jobspec, parse_jobspec
from milkweed.jobspec.graph import Auth, Group, Need, Shape, Stage, Submit, Work, Write
from milkweed.jobspec.transformers.kubernetes_cluster import check_objects

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobspec"
HOSTILE = (
    "$(HOSTNAME)",
    "$$(JOBSPEC_RUN)",
    "$HOME $",
    "a'b\"c",
    "`id`",
    "x\ny",
    "-n",
    "ünï\t☃",
    "",
)


def test_the_documents_example(place: Place) -> None:
    """Both scripts run on both nodes, one after the other, and what they print is shown live."""
    run = place.run(load_jobspec(EXAMPLES / "steps.yaml"))
    assert run.progress().exit_code() == 0
    texts = [line for _, line in place.shown]
    assert [text.split(" on ")[0].split(" from ")[0] for text in texts] == [
        *("installing", "installing"),
        *("hello", "hello"),
    ]
    assert sorted(place.shown) == place.lines(run)
    assert sorted({label for label, _ in place.shown}) == [
        *("submit-install.sh.0", "submit-install.sh.1"),
        *("submit-job.sh.0", "submit-job.sh.1"),
    ]


@pytest.mark.parametrize("name", ["flux", "tasks"])
def test_the_other_examples(place: Place, name: str) -> None:
    """The same files that run elsewhere run here, and the cluster itself finds their objects right."""
    found = load_jobspec(EXAMPLES / f"{name}.yaml")
    made: Any = place.make()
    plan = made.render(found)
    objects = [body for action in plan.actions for body in action.details.get("objects", [])]
    check_objects(made.api, objects)
    assert place.lab.objects(place.namespace) == []
    run = place.run(found)
    assert run.progress().exit_code() == 0
    printed = [text for _, text in place.lines(run)]
    if name == "flux":
        assert all(text.startswith("hello from ") for text in printed)
        assert len(printed) == 2
    else:
        assert printed.count("training tiny") == 2
        assert "all done; nothing is lost" in printed


@pytest.mark.parametrize("name", [name for name in EXAMPLE_WORDS if "hello" in name])
def test_what_machines_must_be(place: Place, name: str) -> None:
    """The kind of machine is asked for, and no GPU is needed; the same files as elsewhere."""
    run = place.run(load_example(name))
    assert run.progress().exit_code() == 0
    assert any(EXAMPLE_WORDS[name] in text for _, text in place.lines(run))


def test_a_batch_script_runs_once(place: Place) -> None:
    """It has its nodes while it runs; those that it does not run on go with it."""
    text = """
        version: 1
        resources:
        - {type: node, count: 2, with: [{type: slot, count: 1, label: s, with: [{type: core, count: 1}]}]}
        task:
          slot: s
          scripts: [{name: job.sh, content: "echo $JOBSPEC_NODE of $JOBSPEC_NODES; WAIT; exit 4\\n"}]
          transform:
          - {step: write, filename: job.sh}
          - {step: batch, filename: job.sh}
    """
    text = textwrap.dedent(text)
    until = text.replace("WAIT", "until [ -e /tmp/go ]; do sleep 0.1; done")
    run = place.run(parse_jobspec(until), waits=False)
    step = run.plan.actions[-1].id
    wait(lambda: len(running_pods(place)) == 2, 60, "two nodes", lambda: states(run))
    for pod in running_pods(place).values():
        go = ("touch", "/tmp/go")  # noqa: S108  in the pod
        place.lab.in_pod(place.namespace, pod, *go, check=False)  # one goes with the other
    assert place.make().wait(run, LIMIT_S) == 4
    assert place.lines(run) == [(step, "0 of 2")]
    again = place.run(parse_jobspec(text.replace("WAIT; exit 4", "exit 0")))
    assert again.progress().exit_code() == 0


def running_pods(place: Place) -> dict[str, str]:
    """The nodes on which pods run, and their pods."""
    pods = place.lab.get("pods", "-n", place.namespace)["items"]
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["name"]
        for pod in pods
        if pod["status"]["phase"] == "Running"
    }


def test_nobody_waits(place: Place) -> None:
    """A run goes on by itself, keeps its order, and is asked for later."""
    slow = work("slow", "sh", "-c", "echo one; sleep 3; echo two")
    run = place.run(graph(slow, work("after", "echo", "three", needs=("slow",))), waits=False)
    assert run.is_driven()
    assert not run.progress().over
    made = place.make()
    assert [text for _, text in made.logs(run, follow=True)] == ["one", "two"]
    assert made.wait(run, LIMIT_S) == 0
    assert place.lines(run) == [("after", "three"), ("slow", "one"), ("slow", "two")]


def test_work_that_fails(place: Place) -> None:
    """The code is that of the work; what needs it is skipped, what needs its failure is not."""
    steps = (
        work("bad", "sh", "-c", "exit 3"),
        work("never", "true", needs=("bad",)),
        Submit(id="sorry", work=Work(argv=("echo", "sorry")), needs=(Need("bad", "afternotok"),)),
        work("missing", "/no/such/program"),
        work("unset", "nosuch", environment={"HOME": None}),
    )
    run = place.run(graph(*steps))
    found = run.progress()
    codes = {key: entry.status.code for key, entry in found.entries.items()}
    assert codes == {"bad": 3, "never": None, "sorry": 0, "missing": 127, "unset": 127}
    assert states(run)["never"] == "skipped"
    assert found.exit_code() in {3, 127}


def test_hostile_words(place: Place) -> None:
    """Words and variables arrive as they are, with a shell between and without, alone and in a crowd."""
    show = (
        "import json, os, sys;"
        "print(json.dumps([sys.argv[1:], os.environ['HOSTILE'], os.environ.get('PATH')]))"
    )
    hostile = "$(HOSTNAME) $$ `id` 'x\" ☃"
    said = {"environment": {"HOSTILE": hostile}}
    argv = ("/usr/bin/python3", "-c", show, *HOSTILE)
    unset = {"environment": {"HOSTILE": hostile, "PATH": None}}
    crowd = Shape(nodes=1, slots=1, tasks_per_slot=2)
    run = place.run(
        graph(
            work("x" * 63, *argv, **said),
            work("A..b_c", *argv, **unset),
            work("crowd", *argv, shape=crowd, **said),
        )
    )
    assert run.progress().exit_code() == 0
    found = {label: json.loads(text) for label, text in place.lines(run)}
    assert sorted(found) == ["A..b_c", "crowd.0", "crowd.1", "x" * 63]
    assert {(tuple(words), value) for words, value, _ in found.values()} == {(HOSTILE, hostile)}
    assert found["A..b_c"][2] is None
    assert found["crowd.0"][2]


def test_several_tasks_in_a_pod(place: Place) -> None:
    """Tasks are spread over pods on nodes of their own, and each knows which it is."""
    shape = Shape(nodes=2, slots=2, tasks_per_slot=2)
    say = "echo $JOBSPEC_TASK_RANK/$JOBSPEC_TASKS on $JOBSPEC_NODE/$JOBSPEC_NODES; exit $JOBSPEC_TASK_RANK"
    run = place.run(graph(work("many", "sh", "-c", say, shape=shape)))
    assert run.progress().exit_code() in {1, 3}  # of whichever pod ended first
    expected = [(f"many.{rank}", f"{rank}/4 on {rank // 2}/2") for rank in range(4)]
    assert set(place.lines(run)) <= set(expected)


def test_a_group_is_one_pod(place: Place) -> None:
    """Its steps keep their order in it, groups inside groups too, and its code is that of the first that failed."""
    say = "echo $WHO on $(hostname)"
    inner = Group(
        id="g/in",
        needs=(Need("g/a"),),
        work=Work(argv=(), environment={"WHO": "inner"}),
        steps=(
            work("g/in/x", "sh", "-c", say),
            work("g/in/y", "sh", "-c", "exit 4", needs=("g/in/x",)),
        ),
    )
    group = Group(
        id="g",
        work=Work(argv=(), shape=Shape(slots=2), environment={"WHO": "outer"}, duration_s=60.0),
        steps=(
            work("g/a", "sh", "-c", say, replicas=2),
            inner,
            work("g/never", "echo", "never", needs=("g/in",)),
        ),
    )
    run = place.run(graph(group, work("after", "true", needs=("g",))))
    assert run.progress().exit_code() == 4
    assert states(run) == {"g": "failed", "after": "skipped"}
    lines = place.lines(run)
    assert [label for label, _ in lines] == ["g/a/1", "g/a/2", "g/in/x"]
    assert len({text.split(" on ")[1] for _, text in lines}) == 1
    assert [text.split(" on ")[0] for _, text in lines] == ["outer", "outer", "inner"]


def test_secrets(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work has them, in a file of its own and in a variable; no object but a Secret does."""
    monkeypatch.setenv("HUB_TOKEN", "s3cr3t-word")
    auth = Auth(id="auth", secret="hub", variable="HUB_TOKEN", export="TOKEN")
    show = "stat -c %a $JOBSPEC_SECRETS/hub; cat $JOBSPEC_SECRETS/hub; echo; echo $TOKEN | rev; sleep 4"
    run = place.run(graph(auth, work("use", "sh", "-c", show, needs=("auth",))), waits=False)
    wait(lambda: len(place.lines(run)) == 3, 60, "it began", lambda: states(run))
    seen = place.lab.kubectl("-n", place.namespace, "get", "jobs,pods,cm,events", "-o", "json")
    assert "s3cr3t-word" not in seen.stdout
    assert "czNjcjN0" not in seen.stdout
    assert place.make().wait(run, LIMIT_S) == 0
    assert place.lines(run) == [("use", "600"), ("use", "drow-t3rc3s"), ("use", "s3cr3t-word")]
    kept = b"".join(path.read_bytes() for path in run.folder.rglob("*.json*"))
    assert b"s3cr3t-word" not in kept
    assert not run.secrets.exists()


def test_files_of_this_machine(place: Place, tmp_path: Path) -> None:
    """A folder travels with hostile names, any bytes, modes, links and empty folders, large files in pieces."""
    source = tmp_path / "data set"
    (source / "in ner").mkdir(parents=True)
    (source / "in ner" / "ü $(x).bin").write_bytes(bytes(range(256)))
    (source / ".hidden").write_text("h")
    (source / "run me").write_text("#!/bin/sh\nsha256sum big.0 big.1 | wc -l\n")
    (source / "run me").chmod(0o700)
    (source / "to").symlink_to("in ner")
    (source / "void").mkdir()
    for number in range(2):
        (source / f"big.{number}").write_bytes(os.urandom(800_000))
    huge = os.urandom(2_500_000)
    (source / "huge").write_bytes(huge)
    check = (
        "cd 'data set'; wc -c <'to/ü $(x).bin'; cat .hidden; echo; './run me'; touch new; ls new;"
        "rmdir void && readlink to && sha256sum <huge"
    )
    steps = (
        Stage(id="stage", path=str(source)),
        work("use", "sh", "-c", check, needs=("stage",), environment={"LC_ALL": "C.UTF-8"}),
    )
    run = place.run(graph(*steps))
    lines = [text.strip() for _, text in place.make().logs(run)]
    assert lines == ["256", "h", "2", "new", "in ner", f"{hashlib.sha256(huge).hexdigest()}  -"]


def test_output_goes_to_a_file(place: Place, folder: Path) -> None:
    """It is whole before the step is over."""
    steps = (
        work("print", "echo", "line", output="out.txt"),
        work("look", "cat", str(folder / "out.txt"), needs=("print",), local=True),
    )
    run = place.run(graph(*steps))
    assert run.progress().exit_code() == 0
    assert (folder / "out.txt").read_text() == "line\n"
    assert ("look", "line") in place.lines(run)


def test_output_that_cannot_be_written(place: Place, folder: Path) -> None:
    """The step has failed with the reason, and the run ends; nobody tries for ever."""
    (folder / "out").mkdir()
    steps = (
        work("gone", "rmdir", str(folder / "out"), local=True),
        work("print", "echo", "line", output="out/x", needs=("gone",)),
    )
    run = place.run(graph(*steps))
    assert run.progress().exit_code() == 1
    status = run.progress().entries["print"].status
    assert status.describe().startswith("failed (1): its output cannot be written: No such file")


def test_files_are_kept_apart(place: Place) -> None:
    """A script runs in a folder of its own that it may write to, and a Job kept on purpose stays."""
    script = Write(id="w", filename="s.sh", content=b"pwd; touch x; ls\n", executable=True)
    run = place.run(graph(script, work("s", "sh", "./s.sh", needs=("w",))), keep="true")
    assert [text for _, text in place.make().logs(run)] == ["/jobspec/run", "s.sh", "x"]
    assert [job["status"].get("succeeded") for job in place.jobs()] == [1]
    place.make().cancel(run)


def test_on_the_command_line(place: Place, folder: Path) -> None:
    """The cluster is chosen by its name, and the exit code is that of the work."""
    text = (EXAMPLES / "steps.yaml").read_text().replace('echo "hello', 'exit 3; echo "hello')
    (folder / "job.yaml").write_text(text)
    said = [f"image={WORKER}", f"namespace={place.namespace}", "pull_policy=Never"]
    settings = [word for each in said for word in ("-s", each)]
    words = ["run", "-t", "kubernetes", *settings, "--wait", "job.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "milkweed", "jobspec", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("installing on") == 2
