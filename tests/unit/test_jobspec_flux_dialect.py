"""Flux's canonical jobspec, version 1, held to the RFC where Flux itself lets things pass."""

from __future__ import annotations

import json

import pytest

from milkweed.jobspec import load_jobspec, parse_jobspec
from milkweed.jobspec.graph import Need, RunFile, Shape, Submit, Write
from unit.jobspecs import EXAMPLES, FLUX, wrong


def job_of(text: str) -> Submit:
    """The one job of a file."""
    found = parse_jobspec(text).steps[-1]
    assert isinstance(found, Submit)
    return found


def with_system(more: str) -> str:
    """The file with other system attributes."""
    return FLUX.replace("{system: {duration: 5}}", f"{{system: {{duration: 5, {more}}}}}")


def with_resources(tree: str) -> str:
    """The file with another tree of resources."""
    start, end = FLUX.index("- {type"), FLUX.index("tasks:")
    return f"{FLUX[:start]}- {tree}\n{FLUX[end:]}"


CORE = "with: [{type: core, count: 3}]"
SLOT = f"{{type: slot, count: 2, label: task, {CORE}}}"


@pytest.mark.parametrize(
    ("tree", "shape"),
    [
        (SLOT, Shape(slots=2, cores_per_slot=3)),
        (
            SLOT.replace("count: 3}", "count: 3}, {type: gpu, count: 1}"),
            Shape(slots=2, cores_per_slot=3, gpus_per_slot=1),
        ),
        (f"{{type: node, count: 4, with: [{SLOT}]}}", Shape(nodes=4, slots=8, cores_per_slot=3)),
        (
            f"{{type: node, count: 4, exclusive: true, with: [{SLOT}]}}",
            Shape(nodes=4, slots=8, cores_per_slot=3, exclusive=True),
        ),
    ],
)
def test_all_four_trees_are_read(tree: str, shape: Shape) -> None:
    """Slots of cores, with GPUs or without, on nodes or anywhere."""
    assert job_of(with_resources(tree)).work.shape == shape


def test_seconds_are_seconds() -> None:
    """This dialect counts seconds, and 0 is no limit."""
    assert job_of(FLUX).work.duration_s == 5.0
    assert job_of(FLUX.replace("duration: 5", "duration: 0")).work.duration_s is None


def test_json_is_read_as_well() -> None:
    """Flux itself writes JSON."""
    data = {
        "version": 1,
        "resources": [
            {"type": "slot", "count": 1, "label": "t", "with": [{"type": "core", "count": 1}]}
        ],
        "tasks": [{"command": ["a", "b c"], "slot": "t", "count": {"total": 1}}],
        "attributes": {"system": {"duration": 0}},
    }
    work = job_of(json.dumps(data)).work
    assert (work.argv, work.shape.tasks_total) == (("a", "b c"), 1)


def test_files_travel_with_the_job() -> None:
    """Each file is a write step, and words that name one below the job's folder mean that file."""
    more = 'files: {x.sh: {mode: 33216, data: "echo", encoding: utf-8}, y: {data: aGk=, encoding: base64}, z: {data: {a: 1}}}'
    text = with_system(more).replace("[hostname]", '["{{tmpdir}}/x.sh", "{{tmpdir}}/other", x.sh]')
    graph = parse_jobspec(text)
    writes = [step for step in graph.steps if isinstance(step, Write)]
    assert [(step.filename, step.content, step.executable) for step in writes] == [
        ("x.sh", b"echo", True),
        ("y", b"hi", False),
        ("z", b'{"a": 1}', False),
    ]
    job = graph.steps[-1]
    assert isinstance(job, Submit)
    assert job.work.argv == (RunFile("x.sh"), "{{tmpdir}}/other", "x.sh")
    assert job.needs == (Need("write-x.sh"), Need("write-y"), Need("write-z"))


def test_attributes_are_kept() -> None:
    """What only Flux understands stays with the work under its own name."""
    more = """queue: q, bank: b, project: p, cwd: /x, preemptible-after: 60,
      environment: {A: null}, job: {name: demo},
      dependencies: [{scheme: afterok, value: f123}, {scheme: begin-time, value: 1700000000.5}],
      constraints: {and: [{properties: [fast]}, {not: [{hostlist: ["n[1-3]"]}]}]},
      shell: {options: {output: {stdout: {type: file, path: o}, stderr: {type: file, path: e}}, mpi: none}}"""
    work = job_of(with_system(more)).work
    assert (work.queue, work.bank, work.project, work.cwd) == ("q", "b", "p", "/x")
    assert (work.output, work.error, work.environment) == ("o", "e", {"A": None})
    assert set(work.attributes) == {
        "preemptible-after",
        "dependencies",
        "constraints",
        "shell.options",
    }
    assert work.attributes["shell.options"] == {"mpi": "none"}


@pytest.mark.parametrize(
    "output",
    ["{stdout: {type: file, path: o, label: true}}", "{stdout: {type: kvs}}", "{limit: 5M}"],
)
def test_output_that_is_more_than_a_file_stays_with_flux(output: str) -> None:
    """Only plain files are everybody's; the rest is an option of Flux's shell."""
    work = job_of(with_system(f"shell: {{options: {{output: {output}}}}}")).work
    assert work.output is None
    assert "output" in work.attributes["shell.options"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version: 1", "version: 9999", "version: 9999 is not 1"),
        ("slot: task,", "slot: other,", "tasks[0].slot: no slot is labelled 'other'"),
        ("{per_slot: 1}", "{per_slot: 2}", "at version 1 a slot runs one task"),
        ("{per_slot: 1}", "{total: 3}", "3 tasks are more than the 2 slots"),
        (
            "{per_slot: 1}",
            "{per_resource: {type: core}}",
            "tasks[0].count.per_resource: unknown key",
        ),
        ("[hostname]", "hostname", "write a list of words"),
        ("[hostname]", "[]", "is empty"),
        ("duration: 5", "queue: q", "attributes.system.duration: is missing"),
        ("duration: 5", "duration: 5m", "this dialect counts seconds"),
        ("duration: 5", "duration: -1", "-1 is too small"),
        ("{system: {duration: 5}}", "{user: {}}", "attributes.system: is missing"),
        ("{duration: 5}}", "{duration: 5}, other: {}}", "attributes.other: unknown key"),
        (
            "count: 2,",
            "count: {min: 1, max: 2, operator: +},",
            "ranges of counts are not part of version 1",
        ),
        ("count: 2,", "count: 2-3,", "ranges and sets are not part of version 1"),
        ("count: 2,", "count: 2+,", "ranges and sets are not part of version 1"),
        ("count: 2,", "", "resources[0].count: is missing"),
        ("count: 2,", "count: 2, colour: red,", "resources[0].colour: unknown key"),
        ("label: task, ", "", "resources[0].label: is missing"),
        ("{type: core, count: 3}", "{type: gpu, count: 3}", "a slot has GPUs and no core"),
        (
            "{type: core, count: 3}",
            "{type: core, count: 3}, {type: gpu, count: 0}",
            "0 is too small",
        ),
        ("{type: core, count: 3}", "{type: core, count: 3, with: []}", "a core has nothing inside"),
        ("with: [{type: core, count: 3}]", "exclusive: true", "resources[0].with: is missing"),
        (
            "tasks:\n",
            "tasks:\n- {command: [a], slot: task, count: {per_slot: 1}}\n",
            "a second task",
        ),
        ("resources:\n", f"resources:\n- {SLOT}\n", "a second tree of resources"),
        ("type: slot, count: 2", "type: core, count: 2", "'core' is not one of: node, slot"),
    ],
)
def test_what_flux_lets_pass_is_refused(old: str, new: str, said: str) -> None:
    """Wrong labels, two tasks, too many tasks, ranges and no GPUs are found before anything is submitted."""
    assert said in wrong(FLUX.replace(old, new, 1), "flux-v1")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("dependencies: [{scheme: later, value: x}]", "'later' is not one of"),
        ("dependencies: [{scheme: afterok}]", "value: is missing"),
        ("dependencies: [{scheme: begin-time, value: soon}]", "'soon' is not a time"),
        ("constraints: {near: [x]}", "attributes.system.constraints.near: unknown key"),
        ("constraints: {properties: [x], ranks: ['1']}", "has more than one operator"),
        ("constraints: {and: []}", "is empty"),
        ("files: {../x: {data: y}}", "no plain file name"),
        ("files: {x: {mode: 41471, data: y}}", "is not the mode of a plain file"),
        ("files: {x: {data: '%%', encoding: base64}}", "is not base64"),
        ("files: {x: {data: y, encoding: rot13}}", "'rot13' is not one of"),
        ("files: {x: {}}", "data: is missing"),
        ("job: {title: x}", "attributes.system.job.title: unknown key"),
        ("colour: red", "attributes.system.colour: unknown key"),
    ],
)
def test_wrong_attributes_are_refused(more: str, said: str) -> None:
    """Each attribute is checked as far as the RFC says what it is."""
    assert said in wrong(with_system(more))


def test_the_example_is_one() -> None:
    """The example file is read, with its file and its name."""
    graph = load_jobspec(EXAMPLES / "flux.yaml")
    assert (graph.name, [step.kind for step in graph.steps]) == ("hello", ["write", "submit"])
