"""Jobspecs in a cluster in memory: what is refused, made, seen, ended, and found again."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import (
    JobspecError,
    MilkweedError,
    SpecError,
    UnreachableError,
)
from milkweed.jobspec import load_runs
from milkweed.jobspec.graph import Auth, Custom, Graph, Group, Need, Shape, Stage, Work, Write
from milkweed.jobspec.runs import Run
from milkweed.jobspec.transformers import kubernetes as module, kubernetes_cluster as clusters
from milkweed.jobspec.transformers.kubernetes_objects import name_of
from milkweed.jobspec.transformers.kubernetes_reading import log_files
from milkweed.kube.resources import CONFIG_MAPS, SECRETS
from unit.jobspec_kubernetes import (
    RUN_ID,
    Yard,
    by_step,
    fail,
    graph,
    make_transformer,
    render,
    succeed,
    work,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Nobody waits for long, and there is no other cluster."""
    monkeypatch.setattr(module, "GONE_S", 0.0)
    monkeypatch.setattr(clusters, "PAUSE_S", 0.0)
    monkeypatch.setenv("KUBECONFIG", str(folder / "none"))


def run(yard: Yard, found: Graph, **settings: Any) -> Run:
    """Carry out a graph to its end."""
    made = make_transformer(yard, **settings)
    return made.run(made.render(found, run_id=RUN_ID), wait=True)


def states(found: Run) -> dict[str, str]:
    """How every step is, with its code."""
    entries = found.progress().entries
    return {key: entry.status.describe() for key, entry in entries.items()}


def refused(*steps: Any, **settings: Any) -> str:
    """Why a graph is refused."""
    with pytest.raises(MilkweedError) as caught:
        render(graph(*steps), **settings)
    return str(caught.value)


# What is refused before anything is made


def test_tasks_and_steps_do_not_print_under_one_name() -> None:
    """In one pod lines are told apart by their label: two that have the same are refused."""
    two = Shape(slots=2)
    with pytest.raises(SpecError, match=r"two steps of 'g' would print as 'g/x\.0'"):
        render(graph(group(work("g/x", shape=two), work("g/x.0"), shape=two)))


def test_logs_have_names_of_their_own() -> None:
    """A task of one step and another step do not share a file."""
    ours = {
        *log_files("/l", "a", ["a.0", "a.1"]).values(),
        *log_files("/l", "a.0", ["a.0"]).values(),
    }
    assert ours == {"/l/a@a.0.log", "/l/a@a.1.log", "/l/a.0.log"}


def test_there_must_be_an_image() -> None:
    """Without one nothing could run; the error says how to name it."""
    text = refused(work("x"), image="")
    assert "step 'x': no image is said in which it could run" in text
    assert "-s image=" in text
    user = {"user": {"kubernetes": {"image": "file:1"}}}
    assert render(graph(work("x", attributes=user)), image="").actions


def test_settings_are_looked_at_first() -> None:
    """One wrong setting is one error."""
    assert refused(work("x"), work("y"), imgae="x").count("is not known") == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"bank": "b"}, "does not honour 'bank'"),
        ({"error": "e"}, "does not honour 'error'"),
        ({"shape": Shape(nodes=1, exclusive=True)}, "does not honour 'exclusive'"),
        ({"attributes": {"constraints": {}}}, "does not honour 'constraints'"),
        ({"cwd": "relative"}, "does not begin with a slash"),
        ({"output": "{{id}}.txt"}, "only Flux fills in"),
        ({"output": "nowhere/x"}, "'nowhere/x' lies in no folder of this machine"),
        ({"output": "/"}, "'/' is a folder"),
        ({"environment": {"A=B": "x"}}, "'A=B' cannot be set in a container"),
        ({"environment": {"A.B": None}}, "'A.B' cannot be taken away in a container"),
        ({"queue": "a b"}, "queue"),
        ({"attributes": {"requires": [{"field": "os.name", "value": "x"}]}}, "'os.name' cannot"),
        ({"attributes": {"requires": [{"field": "cpu.target", "value": "z80"}]}}, "'z80' is not"),
        ({"attributes": {"user": {"me": 1}}}, "attributes.user.me"),
    ],
)
def test_what_a_cluster_does_not_keep(said: dict[str, Any], words: str) -> None:
    """It is refused, and never left out."""
    assert words in refused(work("x", **said))


def test_files_that_are_not_there(folder: Path) -> None:
    """They are missed before anything is made."""
    assert "there is no 'gone'" in refused(Stage(id="s", path="gone"), work("x", needs=("s",)))


def test_names_of_variables_for_secrets() -> None:
    """A shell must be able to set them."""
    auth = Auth(id="a", secret="s", variable="X", export="A-B")
    assert "'A-B' is no name of a variable" in refused(auth, work("x", needs=("a",)))


@pytest.mark.parametrize("name", ["local", "join", "group", "nothing"])
def test_steps_that_a_file_cannot_name(name: str) -> None:
    """What the transformer has for itself is not for files."""
    text = refused(Custom(id="x", step=name))
    assert "a file cannot name such a step" in text or "knows no 'nothing' step" in text


def group(*steps: Any, **said: Any) -> Group:
    """A group of two cores and one GPU."""
    shape = said.pop("shape", Shape(slots=2))
    return Group(id="g", steps=steps, work=Work(argv=(), shape=shape, **said))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (group(work("g/x"), shape=Shape(nodes=2, slots=2)), "cannot be on 2 nodes"),
        (group(work("g/x", shape=Shape(nodes=2, slots=2))), "cannot be on 2 nodes"),
        (group(work("g/x", shape=Shape(slots=3))), "3 cores are more than the 2 of its group 'g'"),
        (group(work("g/x", shape=Shape(gpus_per_slot=1))), "1 gpus are more than the 0"),
        (group(work("g/x", output="o")), "output: a step inside a group cannot have its own"),
        (group(work("g/x", queue="q")), "queue: a step inside a group cannot have its own"),
        (group(work("g/x", cwd="here")), "does not begin with a slash"),
        (group(work("g/x"), output="o"), "a group prints nothing"),
        (
            group(
                Write(id="g/a", filename="f", content=b"1"),
                Write(id="g/b", filename="f", content=b"2"),
            ),
            "the file 'f' is written twice in this group",
        ),
        (
            group(Group(id="g/h", steps=(), work=Work(argv=(), shape=Shape(slots=9)))),
            "9 cores are more than the 2",
        ),
    ],
)
def test_groups_that_are_not_one_pod(found: Group, words: str) -> None:
    """An allocation that cannot be kept together is refused."""
    assert words in refused(found)


def test_all_that_is_wrong_at_once() -> None:
    """Every step is looked at before the first is made."""
    with pytest.raises(JobspecError) as caught:
        render(graph(work("x", bank="b"), work("y", cwd="c")))
    assert "step 'x'" in caught.value.what
    assert "step 'y'" in caught.value.what


# Carrying it out


def test_steps_in_their_order() -> None:
    """Each Job is made when what it needs is over; what pods print is shown, and nothing is left."""
    yard, shown = Yard(), []
    made = make_transformer(yard)
    steps = graph(work("b", needs=("a",)), work("a", shape=Shape(slots=2)))
    found = made.run(made.render(steps), wait=True, show=lambda *line: shown.append(line))
    assert states(found) == {"a": "done", "b": "done"}
    assert sorted(shown) == [("a.0", "pod 0"), ("a.1", "pod 1"), ("b", "pod 0")]
    assert sorted(made.logs(found)) == sorted(shown)
    assert yard.made() == []
    created = [name for verb, _, name in yard.writes if verb == "create"]
    assert created == [name_of(found.id, each) for each in ("a", "b")]


def test_the_cluster_looks_at_everything_first() -> None:
    """Its no comes before anything is made or recorded, and names the step."""
    yard = Yard()
    yard.forbidden = {("create", "jobs")}
    with pytest.raises(SpecError, match="step 'x': no \\(403\\)"):
        run(yard, graph(work("x")))
    yard.forbidden = {("list", "pods")}
    with pytest.raises(MilkweedError):
        run(yard, graph(work("x")))
    yard.forbidden = set()
    with pytest.raises(SpecError, match="there is no queue 'fast' in namespace 'lab'"):
        run(yard, graph(work("x", queue="fast")))
    yard.down = True
    with pytest.raises(UnreachableError):
        run(yard, graph(work("x")))
    assert (load_runs(), yard.made()) == ([], [])


def test_the_code_of_the_work() -> None:
    """The run's code is that of the first step that failed; what needs it is skipped."""
    yard = Yard(by_step(bad=fail(3)))
    steps = (
        work("bad", shape=Shape(slots=2)),
        work("next", needs=("bad",)),
        work("sorry", needs=(Need("bad", "afternotok"),)),
    )
    found = run(yard, graph(*steps))
    assert states(found)["bad"] == "failed (3)"
    assert states(found)["next"].startswith("skipped")
    assert states(found)["sorry"] == "done"
    assert found.progress().exit_code() == 3
    assert yard.made() == []


def test_replicas() -> None:
    """Each is a Job of its own that knows its number; whoever needs the step needs all of them."""
    yard, numbers = Yard(), []

    def note(yard: Yard, job: Any) -> None:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        numbers.extend(each["value"] for each in container["env"] if "REPLICA" in each["name"])
        succeed(yard, job)

    yard.behave = note
    found = run(yard, graph(work("many", replicas=2), work("after", needs=("many",))))
    assert set(states(found)) == {"many/1", "many/2", "many", "after"}
    assert sorted(numbers) == ["0", "1"]
    assert found.progress().exit_code() == 0
    yard.behave = by_step(**{"many-2": fail(4)})
    again = make_transformer(yard)
    failed = again.run(again.render(graph(work("many", replicas=2))), wait=True)
    assert states(failed)["many"] == "failed (4)"


@pytest.mark.e2e
def test_local_steps_are_processes_here(folder: Path) -> None:
    """They come in their order among the others, with output of theirs to read."""
    steps = (
        work("pod", output="out.txt"),
        work("here", "sh", "-c", "cat out.txt; exit 5", needs=("pod",), local=True),
        work("more", "echo", "x", local=True, replicas=2),
    )
    found = run(Yard(), graph(*steps))
    assert states(found)["here"] == "failed (5)"
    assert (folder / "out.txt").read_text() == "pod 0\n"
    assert ("here", "pod 0") in list(make_transformer(Yard()).logs(found))


def test_a_group_is_one_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are told to what runs inside; their lines come back under their own labels."""
    monkeypatch.setenv("WORD", "s3cret")
    told: list[Any] = []

    def look(yard: Yard, job: Any) -> None:
        (found,) = yard.of_kind(CONFIG_MAPS.plural)
        told.append(json.loads(found["data"]["parts.json"]))
        (secret,) = yard.of_kind(SECRETS.plural)
        told.append(base64.b64decode(secret["data"]["hub"]))
        yard.add(job, 0, prints="g/b\tline\ng/a\tx\n", code=0)
        yard.conclude(job, "Complete")

    inside = (
        Auth(id="g/k", secret="hub", variable="WORD", export="HUB"),
        work("g/a", needs=("g/k",)),
        work("g/b", "echo", needs=("g/a",), local=True),
    )
    yard = Yard(look)
    found = run(yard, graph(group(*inside, environment={"E": "1"}, duration_s=60.0)))
    assert sorted(make_transformer(yard).logs(found)) == [("g/a", "x"), ("g/b", "line")]
    parts = {part["id"]: part for part in told[0]["parts"]}
    assert (told[0]["cores"], told[1]) == (2, b"s3cret")
    assert parts["g/a"]["secrets"] == {"hub": "HUB"}
    assert parts["g/b"]["cores_per_slot"] == 0
    assert parts["g/b"]["environment"] == {"E": "1"}
    assert "within" not in parts["g/a"]
    assert b"s3cret" not in b"".join(path.read_bytes() for path in found.folder.rglob("*.json*"))


def test_secrets_are_gone_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in a Secret while work runs, and nowhere afterwards, also where the rest is kept."""
    monkeypatch.setenv("WORD", "s3cret")
    yard = Yard()
    auth = Auth(id="a", secret="hub", variable="WORD", export="T")
    found = run(yard, graph(auth, work("x", needs=("a",))), keep=True)
    assert states(found)["x"] == "done"
    assert yard.made() == ["configmaps", "jobs", "pods"]
    assert not found.secrets.exists()
    monkeypatch.delenv("WORD")
    again = make_transformer(yard)
    missing = again.run(again.render(graph(auth, work("x", needs=("a",)))), wait=True)
    assert states(missing)["a"].startswith("failed (1): there is no secret 'hub'")
