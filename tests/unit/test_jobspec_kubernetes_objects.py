"""What is made in a cluster for work: shapes kept, words kept, the same names every time."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from milkweed.jobspec import load_jobspec
from milkweed.jobspec.graph import Auth, Batch, Group, Need, RunFile, Shape, Work, Write
from milkweed.jobspec.transformers.kubernetes_files import File
from milkweed.jobspec.transformers.kubernetes_objects import (
    AUTH,
    IN,
    MAX_JOB_NAME,
    RUN,
    SECRETS,
    Layout,
    Task,
    escape,
    lay_out,
    make_command,
    make_objects,
    make_start,
    name_of,
)
from milkweed.jobspec.transformers.kubernetes_settings import Settings
from unit.jobspec_kubernetes import RUN_ID, container_of, graph, objects_of, pod_of, render, work

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "kubernetes"
LONGER = Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2)


# Shapes


@pytest.mark.parametrize(
    ("shape", "once", "expected"),
    [
        (Shape(), False, Layout(pods=1, tasks=1, cores=1)),
        (Shape(slots=3, cores_per_slot=2), False, Layout(pods=3, tasks=3, cores=2)),
        (Shape(slots=3, cores_per_slot=2), True, Layout(pods=1, tasks=1, cores=6)),
        (LONGER, False, Layout(pods=2, tasks=2, cores=4, gpus=2, apart=True)),
        (LONGER, True, Layout(pods=2, tasks=1, cores=4, gpus=2, apart=True, holding=True)),
        (
            Shape(nodes=2, slots=4, cores_per_slot=2, gpus_per_slot=1),
            False,
            Layout(pods=2, tasks=4, cores=4, gpus=2, apart=True),
        ),
        (Shape(nodes=1, slots=2), False, Layout(pods=1, tasks=2, cores=2)),
        (Shape(slots=2, tasks_per_slot=3), False, Layout(pods=2, tasks=6, cores=1)),
        (Shape(slots=4, tasks_total=2), False, Layout(pods=2, tasks=2, cores=1)),
        (Shape(nodes=4, slots=4, tasks_total=1), False, Layout(pods=1, tasks=1, cores=1)),
    ],
)
def test_how_a_shape_lies_in_pods(shape: Shape, once: bool, expected: Layout) -> None:
    """Cores, GPUs and tasks are not confused; a pod without a task is not made."""
    assert lay_out(shape, once=once) == expected


def test_cores_and_gpus_are_asked_for_each_pod() -> None:
    """Two nodes with four cores and two GPUs are four GPUs in all, not eight."""
    plan = render(graph(work("x", shape=LONGER)), memory="4Gi")
    (job,) = objects_of(plan)
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    assert container_of(plan)["resources"] == {
        "requests": {"cpu": "4", "memory": "4Gi"},
        "limits": {"nvidia.com/gpu": "2", "memory": "4Gi"},
    }
    rules = pod_of(plan)["affinity"]["podAntiAffinity"]
    (rule,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"


def test_another_kind_of_gpu() -> None:
    """What is a GPU can be said."""
    plan = render(graph(work("x", shape=Shape(gpus_per_slot=1))), gpu="amd.com/gpu")
    assert container_of(plan)["resources"]["limits"] == {"amd.com/gpu": "1"}


def test_slots_without_nodes_may_share_one() -> None:
    """Nobody said that they must not."""
    assert "affinity" not in pod_of(render(graph(work("x", shape=Shape(slots=2)))))


# What is said of work


def test_everything_that_is_said_is_kept() -> None:
    """Time, queue, folder, variables, architecture, account, registry."""
    said: dict[str, Any] = {
        "duration_s": 90.2,
        "queue": "fast",
        "cwd": "/data",
        "environment": {"A": "$(B)"},
        "attributes": {"requires": [{"name": "m", "field": "cpu.target", "value": "x86_64"}]},
    }
    plan = render(
        graph(work("x", "prog", **said)),
        service_account="robot",
        pull_secret="registry",
        pull_policy="Always",
    )
    pod, container = pod_of(plan), container_of(plan)
    assert pod["activeDeadlineSeconds"] == 91
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("robot", True)
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert container["imagePullPolicy"] == "Always"
    assert container["workingDir"] == "/data"
    assert {"name": "A", "value": "$$(B)"} in container["env"]
    (job,) = objects_of(plan)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "fast"
    assert job["spec"]["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"


def test_work_without_rights() -> None:
    """No token is in a pod that nobody gave an account."""
    assert pod_of(render(graph(work("x"))))["automountServiceAccountToken"] is False


def test_a_plain_command_needs_no_shell() -> None:
    """An image may have nothing but the program."""
    plan = render(graph(work("x", "/prog", "a b")))
    assert container_of(plan)["command"] == ["/prog", "a b"]
    assert objects_of(plan, "ConfigMap") == []


def test_files_secrets_and_variables_taken_away_need_one() -> None:
    """A small script comes before the command."""
    plan = render(graph(work("x", "/prog", environment={"A": None})))
    assert container_of(plan)["command"] == ["/bin/sh", f"{IN}/start.sh", "/prog"]
    (found,) = objects_of(plan, "ConfigMap")
    assert "unset A\n" in found["data"]["start.sh"]


def test_a_secret_is_not_in_the_plan() -> None:
    """The object is shown without what it will hold."""
    auth = Auth(id="a", secret="hub", variable="X", export="TOKEN")
    plan = render(graph(auth, work("x", needs=("a",))))
    (secret,) = objects_of(plan, "Secret")
    assert secret["data"] == {"hub": None}
    assert [each["name"] for each in container_of(plan)["env"] if "TOKEN" in each["name"]] == []
    volumes = {each["name"]: each for each in pod_of(plan)["volumes"]}
    assert volumes["secrets"]["emptyDir"]["medium"] == "Memory"


# Names


def test_names_are_the_same_every_time() -> None:
    """So that a second try finds what the first made; other runs and steps have others."""
    assert name_of(RUN_ID, "a.b_C") == name_of(RUN_ID, "a.b_C") != name_of(RUN_ID, "a-b-c")
    assert name_of(RUN_ID, "a") != name_of(RUN_ID.replace("1", "2"), "a")


@given(
    st.from_regex(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}(/[A-Za-z0-9][A-Za-z0-9._-]{0,62})?", fullmatch=True
    )
)
def test_every_step_has_a_name_that_a_cluster_takes(step_id: str) -> None:
    """Lowercase, short enough for a pod's host name, never odd at the ends."""
    name = name_of(RUN_ID, step_id)
    assert len(name) <= MAX_JOB_NAME
    assert name == name.lower()
    assert all(part.isalnum() for part in name.replace("-", " ").split())
    assert name[0].isalnum()


# Words


def expand(text: str, variables: dict[str, str]) -> str:
    """What a node does to words: $(NAME) is filled in, and $$ is a dollar."""
    found, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            found, at = found + text[at], at + 1
        elif text[at + 1] == "$":
            found, at = found + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            name, _, _ = text[at + 2 :].partition(")")
            found, at = found + variables.get(name, f"$({name})"), at + 3 + len(name)
        else:
            found, at = found + text[at : at + 2], at + 2
    return found


@given(st.text(alphabet="$()ABa '\"\\\n", max_size=20))
def test_every_word_arrives_as_it_is(word: str) -> None:
    """Whatever it is, the node gives the container the same."""
    assert expand(escape(word), {"A": "wrong", "B": "wrong", "AB": "wrong"}) == word


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@pytest.mark.e2e
@settings(max_examples=25, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=4), cwd=WORDS.filter(lambda w: w.strip("/. ")))
def test_no_word_is_unquoted(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], cwd: str
) -> None:
    """The script before a command hands it over word for word, in the folder that was said."""
    folder = tmp_path_factory.mktemp("pod")
    place = folder / cwd.replace("/", "_")
    try:
        place.mkdir(exist_ok=True)
    except OSError:
        return
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd()]))"
    task = make_task(argv=("python3", "-c", show, *words), cwd=str(place), environment={"X": None})
    argv, where = json.loads(run_start(folder, task))
    assert (argv, where) == (words, str(place))


def make_task(**more: Any) -> Task:
    """A step with nothing special."""
    said: dict[str, Any] = {
        "run_id": RUN_ID,
        "step_id": "x",
        "argv": ("true",),
        "layout": Layout(pods=1, tasks=1, cores=1),
        "settings": Settings(image="app:1", namespace="lab"),
    }
    return Task(**{**said, **more})


def run_start(folder: Path, task: Task, **env: str) -> str:
    """Run what a container would, with the pod's folders below one of this machine."""
    text = make_start(task)
    for place in (IN, AUTH, RUN, SECRETS):
        (folder / place[1:]).mkdir(parents=True, exist_ok=True)
    script = folder / "start.sh"
    script.write_text(text.replace("/jobspec/", f"{folder}/jobspec/"))
    words = ["sh", str(script), *task.argv]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.e2e
def test_secrets_as_a_container_has_them(tmp_path: Path) -> None:
    """Each in a file that only its owner reads, and in a variable, to the last byte."""
    auth = tmp_path / AUTH[1:]
    auth.mkdir(parents=True)
    (auth / "hub").write_bytes(b" two\nlines\n\n")
    show = f'printf %s "$TOKEN" | od -An -c | tr -d " \n"; stat -c %a {tmp_path}{SECRETS}/hub'
    task = make_task(argv=("sh", "-c", show), secrets={"hub": "TOKEN"})
    assert run_start(tmp_path, task) == "two\\nlines\\n\\n600\n"


@pytest.mark.e2e
def test_files_and_variables_as_a_container_has_them(tmp_path: Path) -> None:
    """Files are copied to a folder that work may write to, and variables are taken away."""
    files = tmp_path / IN[1:] / "files"
    (files / "sub").mkdir(parents=True)
    (files / ".dot").write_text("dot")
    (files / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (files / "sub" / "run").chmod(0o755)
    show = f'cd {tmp_path}{RUN}; cat .dot; sub/run; echo "[${{GONE-unset}}]"'
    task = make_task(argv=("sh", "-c", show), files=[File("x", b"")], environment={"GONE": None})
    assert run_start(tmp_path, task, GONE="here") == "dotran\n[unset]\n"


@pytest.mark.e2e
def test_pods_that_hold_their_nodes(tmp_path: Path) -> None:
    """Only the first runs the command."""
    task = make_task(argv=("echo", "ran"), layout=replace(lay_out(LONGER, once=True)))
    assert run_start(tmp_path, task, JOB_COMPLETION_INDEX="0") == "ran\n"
    script = tmp_path / "start.sh"
    with subprocess.Popen(
        ["sh", str(script), "echo", "ran"],
        stdout=subprocess.PIPE,
        env={**os.environ, "JOB_COMPLETION_INDEX": "1"},
        start_new_session=True,
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        os.killpg(process.pid, 15)
        assert process.communicate(timeout=10)[0] == b""


def test_a_crowd_and_a_group_have_no_words_of_their_own() -> None:
    """What is inside a pod is told in a file."""
    task = make_task(parts=[{"id": "x"}])
    assert make_command(task) == ["/bin/sh", f"{IN}/start.sh"]
    names = [each["kind"] for each in make_objects(task)]
    assert names == ["ConfigMap", "Job"]


# Golden files

PIECES = (
    Write(id="w", filename="job.sh", content=b"#!/bin/sh\necho $(hostname)\n", executable=True),
    Write(id="b", filename="data", content=b"\xff\x00"),
    Auth(id="a", secret="hub", command=("vault", "read"), export="TOKEN"),
    Batch(
        id="job",
        filename="job.sh",
        work=Work(argv=("/bin/sh", RunFile("job.sh")), shape=LONGER, duration_s=60.0, queue="q"),
        needs=(Need("w"), Need("b"), Need("a")),
    ),
    Group(
        id="train",
        needs=(Need("job"),),
        work=Work(argv=(), shape=Shape(slots=4, gpus_per_slot=1), environment={"M": "x"}),
        steps=(
            work("train/load", "sh", "-c", "echo $M"),
            work("train/fit", "fit", needs=("train/load",), replicas=2, environment={"M": None}),
            Group(id="train/end", work=Work(argv=(), duration_s=9.0), steps=(work("train/end/x"),)),
        ),
    ),
    work("crowd", "mpi", shape=Shape(nodes=2, slots=2, tasks_per_slot=2), environment={"A": "$x"}),
    work("pair", "echo", "$(X)", replicas=2, wait=True),
    work("here", "echo", "local", local=True),
)


def golden(name: str, text: str) -> None:
    """Compare with what was written once; MILKWEED_GOLDEN=1 writes it anew."""
    path = GOLDEN / name
    if os.environ.get("MILKWEED_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def without_control(text: str) -> str:
    """A plan without the program that every group carries: that is a file of the source."""
    lines, shown = [], True
    for line in text.splitlines():
        if line.strip() == "control.py: |":
            shown = False
            lines.append(f"{line} …")
        elif not shown and line.strip() and len(line) - len(line.lstrip()) <= 4:
            shown = True
        if shown:
            lines.append(line)
    return "\n".join([*lines, ""])


def test_everything_as_it_is_made() -> None:
    """A plan shows each object as it is submitted."""
    golden("jobspec-all.txt", without_control(render(graph(*PIECES)).render()))


@pytest.mark.parametrize("name", ["steps", "flux", "tasks"])
def test_the_examples_as_they_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that people are shown, in this cluster's words."""
    monkeypatch.chdir(ROOT)
    found = load_jobspec(Path("examples") / "jobspec" / f"{name}.yaml")
    golden(f"jobspec-{name}.txt", without_control(render(found).render()))
