"""What is asked of Slurm: nodes, cores, GPUs and tasks are what a file says, and never each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import SpecError
from milkweed.jobspec import parse_jobspec
from milkweed.jobspec.graph import Group, Shape, Submit, Work
from milkweed.jobspec.transformers.groups import check_inside
from milkweed.jobspec.transformers.slurm_shape import (
    check_work,
    describe_rounding,
    job_name,
    make_component,
    render_allocation,
    render_limit,
    render_settings,
    render_step,
)

ONE_EACH = ["--threads-per-core=1"]


def words(text: str) -> list[str]:
    """Arguments, as they are easier to read."""
    return [f"--{word}" for word in text.split()]


ALLOCATIONS: dict[str, tuple[Shape, str]] = {
    "cores are not tasks": (Shape(cores_per_slot=4), "ntasks=1 cpus-per-task=4 threads-per-core=1"),
    "GPUs of two nodes": (
        Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2),
        "nodes=2 ntasks-per-node=1 ntasks=2 cpus-per-task=4 gpus-per-node=2 threads-per-core=1",
    ),
    "several slots on a node": (
        Shape(nodes=2, slots=8, cores_per_slot=3, gpus_per_slot=1),
        "nodes=2 ntasks-per-node=4 ntasks=8 cpus-per-task=3 gpus-per-node=4 threads-per-core=1",
    ),
    "slots anywhere": (
        Shape(slots=6, cores_per_slot=2, gpus_per_slot=1),
        "ntasks=6 cpus-per-task=2 gpus-per-task=1 threads-per-core=1",
    ),
    "whole nodes": (
        Shape(nodes=3, slots=3, exclusive=True),
        "nodes=3 ntasks-per-node=1 ntasks=3 cpus-per-task=1 exclusive",
    ),
    "more tasks than slots": (
        Shape(slots=2, cores_per_slot=4, tasks_per_slot=4),
        "ntasks=2 cpus-per-task=4 threads-per-core=1",
    ),
    "fewer tasks than slots": (
        Shape(slots=4, tasks_total=2),
        "ntasks=4 cpus-per-task=1 threads-per-core=1",
    ),
}


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_allocations(name: str) -> None:
    """A slot is a task of the allocation, with its own cores and GPUs."""
    shape, expected = ALLOCATIONS[name]
    assert render_allocation(shape) == words(expected)


STEPS: dict[str, tuple[Shape, str]] = {
    "cores are not tasks": (Shape(cores_per_slot=4), "ntasks=1 cpus-per-task=4 exact"),
    "GPUs of two nodes": (
        Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2),
        "nodes=2 ntasks-per-node=1 ntasks=2 cpus-per-task=4 exact gpus-per-task=2",
    ),
    "whole nodes": (
        Shape(nodes=3, slots=3, exclusive=True),
        "nodes=3 ntasks-per-node=1 ntasks=3 overlap cpu-bind=none",
    ),
    "more tasks than slots": (
        Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=1, tasks_per_slot=4),
        "nodes=2 ntasks-per-node=4 ntasks=8 overcommit overlap cpu-bind=none gpus-per-node=1",
    ),
    "fewer tasks than nodes": (
        Shape(nodes=4, slots=4, tasks_total=2, gpus_per_slot=1),
        "nodes=2 ntasks-per-node=1 ntasks=2 cpus-per-task=1 exact gpus=4",
    ),
    "tasks that do not divide": (
        Shape(nodes=2, slots=4, tasks_total=3),
        "nodes=2 ntasks=3 cpus-per-task=1 exact",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    """The command is started once for each task, with what its slot has."""
    shape, expected = STEPS[name]
    found = render_step(shape, label=False)
    assert found[: len(words(expected))] == words(expected)
    assert found[len(words(expected)) :] == words("mem=0 kill-on-bad-exit=0 wait=0 quiet")


def test_a_step_without_gpus_takes_none_of_its_groups() -> None:
    """Slurm gives a step everything where nothing is said."""
    group = Shape(slots=2, gpus_per_slot=1)
    assert "--gres=none" in render_step(Shape(), label=False, within=group)
    assert "--gres=none" not in render_step(Shape(), label=False, within=Shape())
    assert "--gpus-per-task=1" in render_step(Shape(gpus_per_slot=1), label=False, within=group)
    assert render_step(Shape(), label=True)[-1] == "--label"


@given(
    nodes=st.none() | st.integers(1, 8),
    per_node=st.integers(1, 8),
    cores=st.integers(1, 64),
    gpus=st.integers(0, 8),
)
def test_nothing_is_multiplied_twice(
    nodes: int | None, per_node: int, cores: int, gpus: int
) -> None:
    """What the arguments add up to is what the shape has."""
    shape = Shape(
        nodes=nodes, slots=per_node * (nodes or 1), cores_per_slot=cores, gpus_per_slot=gpus
    )
    said = dict(word[2:].partition("=")[::2] for word in render_allocation(shape))
    assert int(said["ntasks"]) * int(said["cpus-per-task"]) == shape.cores
    assert said.get("nodes") == (None if nodes is None else str(nodes))
    if nodes is None:
        assert int(said.get("gpus-per-task", "0")) * int(said["ntasks"]) == shape.gpus
    else:
        assert int(said["ntasks-per-node"]) * nodes == shape.slots
        assert int(said.get("gpus-per-node", "0")) * nodes == shape.gpus


FACTS = """\
version: 1
resources:
  wide: {{type: node, count: 2, with: [{{type: core, count: 4}}, {{type: gpu, count: 2}}]}}
  cores: {{type: core, count: 4}}
tasks:
- {{name: a, resources: {name}, command: [true]}}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wide", "nodes=2 ntasks-per-node=1 ntasks=2 cpus-per-task=4 gpus-per-node=2"),
        ("cores", "ntasks=1 cpus-per-task=4"),
    ],
)
def test_from_a_file(name: str, expected: str) -> None:
    """Two nodes with two GPUs each have four, and four cores are one task's."""
    [step] = parse_jobspec(FACTS.format(name=name).replace("[true]", "['true']")).steps
    assert isinstance(step, Submit)
    assert render_allocation(step.work.shape) == words(expected) + ONE_EACH


@pytest.mark.parametrize(
    ("seconds", "limit", "said"),
    [
        (5, "00:01:00", "5 s is rounded up to 00:01:00: Slurm counts minutes"),
        (60, "00:01:00", ""),
        (61, "00:02:00", "61 s is rounded up to 00:02:00: Slurm counts minutes"),
        (0.5, "00:01:00", "0.5 s is rounded up to 00:01:00: Slurm counts minutes"),
        (90 * 60, "01:30:00", ""),
        (2 * 86400 + 1, "2-00:01:00", "172801 s is rounded up to 2-00:01:00: Slurm counts minutes"),
    ],
)
def test_time_limits(seconds: float, limit: str, said: str) -> None:
    """Five seconds are never five minutes: minutes are rounded up, and that is said."""
    assert render_limit(seconds) == limit
    assert describe_rounding(seconds) == said
    assert describe_rounding(None) == ""


def test_queue_and_bank() -> None:
    """The file's words win over what is said beside it; what nobody says is not asked for."""
    assert render_settings(Work(argv=()), {}) == []
    work = Work(argv=(), queue="big", bank="me", duration_s=60)
    assert render_settings(work, {}) == ["--time=00:01:00", "--partition=big", "--account=me"]
    given_beside = {"partition": "small", "account": "us"}
    assert render_settings(work, given_beside)[1:] == ["--partition=big", "--account=me"]
    assert render_settings(Work(argv=()), given_beside) == ["--partition=small", "--account=us"]


def test_names_of_jobs() -> None:
    """They are plain, whatever a file is called."""
    assert job_name("", "g/a") == "g/a"
    assert job_name("a b\n|#", "x") == "a_b___/x"
    assert len(job_name("n" * 500, "x")) == 120


@pytest.mark.parametrize(
    ("more", "words_of_it"),
    [
        ({"queue": "a b"}, "queue: 'a b'"),
        ({"bank": "$(id)"}, "bank: "),
        ({"output": "{{id}}.out"}, "output: only Flux"),
        ({"error": "{{id}}.err"}, "error: only Flux"),
        ({"argv": ("-c",)}, "begins with a dash"),
    ],
)
def test_work_that_cannot_be_asked_for(more: dict[str, Any], words_of_it: str) -> None:
    """The field is named."""
    with pytest.raises(SpecError, match=words_of_it):
        check_work(Work(**{"argv": ("true",), **more}))


GROUP = Shape(nodes=2, slots=4, cores_per_slot=2, gpus_per_slot=1)


@pytest.mark.parametrize(
    ("shape", "words_of_it"),
    [
        (Shape(slots=9), "9 cores are asked for, and the group 'g' has 8"),
        (Shape(nodes=3, slots=3), "3 nodes are asked for, and the group 'g' has 2"),
        (Shape(slots=5, gpus_per_slot=1), "5 GPUs are asked for, and the group 'g' has 4"),
        (Shape(nodes=2, slots=2, exclusive=True), "asks for whole nodes"),
    ],
)
def test_more_than_the_group_has(shape: Shape, words_of_it: str) -> None:
    """It would wait for ever, so it is refused."""
    group = Group(id="g", steps=(), work=Work(argv=(), shape=GROUP))
    step = Submit(id="g/a", work=Work(argv=("true",), shape=shape))
    with pytest.raises(SpecError, match=words_of_it):
        check_inside(step, step.work, group)


def test_what_fits_into_a_group() -> None:
    """All of it, a part, and any number of cores where it has whole nodes."""
    step = Submit(id="g/a", work=Work(argv=("true",), shape=GROUP))
    check_inside(step, step.work, Group(id="g", steps=(), work=Work(argv=(), shape=GROUP)))
    whole = Group(
        id="g", steps=(), work=Work(argv=(), shape=Shape(nodes=1, slots=1, exclusive=True))
    )
    check_inside(step, Work(argv=(), shape=Shape(slots=1, cores_per_slot=64)), whole)
    with pytest.raises(SpecError, match="queue: belongs to the group 'g'"):
        check_inside(step, Work(argv=(), queue="big"), whole)


def test_what_the_cluster_is_compared_with() -> None:
    """Each node must have what its slots need."""
    found = make_component(
        {"nodes": 2, "slots": 8, "cores_per_slot": 3, "gpus_per_slot": 1, "partition": "big"},
        "step a",
    )
    assert (found.hosts, found.cpus_per_node, found.gpus_per_node) == (2, 12, 4)
    assert (found.partition, found.field) == ("big", "step a")
    alone = make_component({"slots": 8, "cores_per_slot": 3}, "step a")
    assert (alone.hosts, alone.cpus_per_node, alone.gpus_per_node) == (1, 3, None)
