"""What is wrong with a file is told in its place, and what is said means the same everywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import BackendError, JobspecError, SpecError
from milkweed.jobspec import load_transformer, parse_jobspec, render_jobspec
from milkweed.jobspec.graph import Shape, Submit, Work
from milkweed.jobspec.order import MAX_REPLICAS
from milkweed.jobspec.spool import SETTLE_S, Spool
from milkweed.units import parse_duration
from unit.jobspecs import FLUX, STEPS, TASKS, graph, job, wrong

SLOT = "{type: slot, count: 1, label: task, with: [{type: core, count: 1}]}"


def flux_with(resources: str = f"[{SLOT}]", more: str = "") -> str:
    """A jobspec in Flux's own language."""
    return (
        f"version: 1\nresources: {resources}\n"
        "tasks: [{command: [x], slot: task, count: {per_slot: 1}}]\n"
        f"attributes: {{system: {{duration: 0{more}}}}}\n"
    )


@pytest.mark.parametrize("text", [STEPS, TASKS, FLUX])
@pytest.mark.parametrize(
    ("version", "said"), [("true", "true is not 1"), ("1.0", "1.0 is not 1"), ("2", "2 is not 1")]
)
def test_versions_are_the_number(text: str, version: str, said: str) -> None:
    """What only equals 1 is no version."""
    told = wrong(text.replace("version: 1", f"version: {version}", 1))
    assert f"version: {said}" in told


@pytest.mark.parametrize("kind", ["core", "gpu"])
def test_whole_nodes_are_said_of_nodes(kind: str) -> None:
    """Cores and GPUs of a slot are nobody else's anyway: such a word never becomes whole nodes."""
    other = ", {type: gpu, count: 1, exclusive: true}" if kind == "gpu" else ""
    core = "{type: core, count: 1" + (", exclusive: true}" if kind == "core" else "}")
    slot = f"{{type: slot, count: 1, label: task, with: [{core}{other}]}}"
    told = wrong(flux_with(f"[{slot}]"))
    assert f"a {kind} of a slot is nobody else's anyway" in told
    inner = SLOT.replace("label: task", "label: task, exclusive: true")
    told = wrong(flux_with(f"[{{type: node, count: 2, with: [{inner}]}}]"))
    assert "whole nodes are said of the node" in told
    fine = parse_jobspec(flux_with(f"[{SLOT.replace('count: 1}', 'count: 1, exclusive: false}')}]"))
    [step] = fine.steps
    assert isinstance(step, Submit)
    assert not step.work.shape.exclusive


def test_this_machine_says_what_it_cannot_keep() -> None:
    """Other programs run beside work that wants a node alone, and the plan says so."""
    work = Work(argv=("true",), shape=Shape(nodes=1, exclusive=True))
    [action] = load_transformer("local").render(graph(Submit(id="a", work=work))).actions
    assert action.details["note"] == "exclusive: nothing keeps other programs off this machine"


def test_replicas_have_a_limit() -> None:
    """So many that nobody could plan them are refused at once, with the place."""
    text = TASKS.replace("{name: a, ", "{name: a, replicas: 3000000, ", 1)
    assert text != TASKS
    assert "3,000,000 replicas are more than 10,000" in wrong(text)
    graph(job("a", replicas=MAX_REPLICAS))


def test_nothing_is_nothing() -> None:
    """Work that may be preempted at once stays so, and is written back as it was."""
    found = parse_jobspec(flux_with(more=", preemptible-after: 0"))
    [step] = found.steps
    assert isinstance(step, Submit)
    assert step.work.attributes["preemptible-after"] == 0
    assert step.work.duration_s is None
    assert parse_jobspec(render_jobspec(found, "flux-v1")) == found


def test_a_step_inside_a_group_is_named_whole() -> None:
    """`depends_on` reaches steps beside it; the name is told as it was written, where it was written."""
    text = """\
version: 1
resources: {r: {type: slot}}
groups:
- {name: g, resources: r, tasks: [{name: a, command: [x]}]}
tasks:
- {name: b, resources: r, command: [x]}
- name: c
  resources: r
  command: [x]
  depends_on: [b, g/a]
"""
    told = wrong(text)
    assert "no step beside it is named 'g/a'" in told
    assert ":10:19" in told
    assert "beside it, not on what is inside them" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: 1\na: 2\n", "a"), ("name: x\nsteps: *nowhere\n", "nowhere")],
)
def test_what_is_wrong_with_the_text_comes_first(text: str, said: str) -> None:
    """A file that no dialect knows may be one whose text is wrong."""
    told = wrong(text)
    assert said in told
    assert re.search(r":2:\d+", told)
    assert "no jobspec of a dialect" not in told


@pytest.mark.parametrize("key", ["variable", "export"])
def test_names_of_variables_are_checked(key: str) -> None:
    """In their place, and both of them."""
    source = "" if key == "variable" else "variable: FINE, "
    text = TASKS.replace(
        "{name: a, ", f"{{name: a, steps: [{{name: auth, secret: s, {source}{key}: A B}}], ", 1
    )
    told = wrong(text)
    assert f"{key}: 'A B' is not a name of a variable" in told
    assert "export.export" not in told


@pytest.mark.parametrize("text", ["5", "0.5", "soon"])
def test_durations_want_a_unit(text: str) -> None:
    """The hint is one that works wherever a duration is written as text."""
    with pytest.raises(SpecError) as caught:
        parse_duration(text, field="--every")
    assert "a number with a unit, such as 90s, 5m or 1h30m" in caught.value.hint
    assert "seconds as a number" not in str(caught.value)
    told = wrong(TASKS.replace("{name: a, ", f"{{name: a, attributes: {{duration: '{text}'}}, ", 1))
    assert "seconds as a number" not in told


def make_spool(folder: Path, said: list[str], **more: Any) -> Spool:
    """A service of a folder of its own."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return Spool(folder, transformer="local", say=said.append, **more)


def test_a_file_of_the_future_is_told_once(folder: Path) -> None:
    """It is left alone until its time comes, and that is said."""
    said: list[str] = []
    spool = make_spool(folder / "spool", said, clock=lambda: 1000.0)
    path = folder / "spool" / "a.yaml"
    path.write_text(TASKS)
    os.utime(path, (1001.0, 1001.0))
    spool.look()
    assert said == []
    os.utime(path, (1e6, 1e6))
    spool.look()
    spool.look()
    [told] = said
    assert "a.yaml: was changed at 1970-01-1" in told
    assert "`touch`" in told
    assert path.exists()


def test_a_look_says_whether_all_could_be_done(folder: Path) -> None:
    """A file that could not be begun is trouble; one that is wrong was seen to."""
    said: list[str] = []

    def fail(_run: object) -> None:
        raise BackendError("no process could be started")

    spool = make_spool(folder / "spool", said, clock=lambda: 1000.0 + SETTLE_S, start=fail)
    for name, text in (("a.yaml", TASKS), ("b.yaml", "version: 3\n")):
        (folder / "spool" / name).write_text(text)
        os.utime(folder / "spool" / name, (1000.0, 1000.0))
    assert spool.look() == 1
    assert any("no process could be started" in line for line in said)
    assert [path.suffix for path in (folder / "spool" / "failed").iterdir()].count(".yaml") == 1


def test_texts_are_errors_of_the_file() -> None:
    """All of these are errors that a person can put right."""
    with pytest.raises(JobspecError):
        parse_jobspec("version: true\n")
