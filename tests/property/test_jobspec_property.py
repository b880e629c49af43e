"""Random graphs: what is written in a dialect means the same when it is read, and nothing is lost on the way."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.errors import JobspecError
from milkweed.jobspec import DIALECTS, TransformerBase, parse_jobspec, render_jobspec
from milkweed.jobspec.graph import (
    Auth,
    Batch,
    Custom,
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
from milkweed.jobspec.order import sort_steps
from milkweed.jobspec.plan import parse_plan
from milkweed.jobspec.scripts import script_argv
from milkweed.jobspec.transformers import flux
from milkweed.jobspec.transformers.local import Transformer
from milkweed.jobspec.yaml_text import render_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
HOSTILE = st.sampled_from(
    [
        "; touch owned",
        "$(id)",
        "`id`",
        "$HOME",
        "'",
        '"',
        "\\",
        "&&",
        ">x",
        "*",
        "~",
        "-",
        "--",
        "#x",
        "{{id}}",
        "{{tmpdir}}/x",
        "{a,b}",
        "!!",
        "null",
        "1",
        "a b",
    ]
) | st.sampled_from(["", " ", "|", "\n", "\t", "\u2028"])
WORDS = st.lists(TEXT | HOSTILE, max_size=4).map(tuple)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,6}", fullmatch=True)
PROGRAM = st.sampled_from(["true", "/bin/echo", "a program", "$(x)"])
VARIABLES = st.dictionaries(
    st.from_regex(r"[A-Z_]{1,4}", fullmatch=True), st.none() | TEXT, max_size=3
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
SECONDS = st.none() | st.integers(1, 10**6).map(float) | st.sampled_from([0.5, 1.25, 90.001])
COUNT = st.integers(1, 5)


@st.composite
def shapes(draw: Any, *, whole: bool = True) -> Shape:
    nodes = draw(st.none() | COUNT)
    if whole and nodes and draw(st.booleans()):
        return Shape(nodes=nodes, slots=nodes, exclusive=True)
    return Shape(
        nodes=nodes,
        slots=draw(COUNT) * (nodes or 1),
        cores_per_slot=draw(COUNT),
        gpus_per_slot=draw(st.integers(0, 3)),
    )


@st.composite
def works(draw: Any) -> Work:
    return Work(
        argv=(draw(PROGRAM), *draw(WORDS)),
        shape=draw(shapes()),
        duration_s=draw(SECONDS),
        environment=draw(VARIABLES),
        cwd=draw(st.none() | st.just("/some folder")),
    )


def needs_of(draw: Any, before: list[Step]) -> tuple[Need, ...]:
    if not before:
        return ()
    found = draw(st.lists(st.sampled_from([step.id for step in before]), max_size=3, unique=True))
    return tuple(Need(each) for each in found)


@st.composite
def levels(draw: Any, prefix: str = "", depth: int = 0) -> tuple[Step, ...]:
    """Steps of one level of the language of tasks."""
    steps: list[Step] = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)):
        step_id, needs = prefix + name, needs_of(draw, steps)
        kind = draw(st.sampled_from(["job", "job", "stage", "group" if depth < 2 else "job"]))
        if kind == "stage":
            steps.append(Stage(id=step_id, needs=needs, path=draw(TEXT.filter(bool))))
        elif kind == "group":
            inner = draw(levels(f"{step_id}/", depth + 1))
            work = Work(argv=(), shape=draw(shapes()), duration_s=draw(SECONDS))
            steps.append(Group(id=step_id, needs=needs, steps=inner, work=work))
        else:
            watch = draw(st.booleans())
            job = Submit(
                id=step_id,
                needs=needs,
                work=draw(works()),
                wait=watch,
                watch=watch,
                replicas=draw(COUNT),
            )
            steps.append(job)
    return tuple(steps)


@st.composite
def chains(draw: Any) -> tuple[Step, ...]:
    """Steps of the language of steps, each after the one before it."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    texts = {name: draw(TEXT).encode() for name in names}
    work = draw(works())
    steps: list[Step] = []

    def add(step: Step) -> None:
        if steps:
            before = steps[-1]
            free = isinstance(before, Submit | Batch) and not before.wait
            step = replace(step, needs=(Need(before.id, "submitted" if free else "afterok"),))
        steps.append(step)

    for name in names:
        add(
            Write(
                id=f"write-{name}",
                filename=name,
                content=texts[name],
                executable=draw(st.booleans()),
            )
        )
        if draw(st.booleans()):
            add(Stage(id=f"stage-{name}", filename=name))
        argv = script_argv(name, texts[name])
        own = replace(work, argv=argv)
        if draw(st.booleans()):
            add(Submit(id=f"submit-{name}", work=own, wait=draw(st.booleans())))
        else:
            add(Batch(id=f"batch-{name}", work=own, filename=name, wait=draw(st.booleans())))
    if draw(st.booleans()):
        add(Auth(id="auth-k", secret="k", variable="V", export=draw(st.sampled_from(["", "E"]))))
    if draw(st.booleans()):
        options = draw(st.dictionaries(TEXT.filter(lambda key: key != "step"), PLAIN, max_size=3))
        add(Custom(id="notify-1", step="notify", options=options))
    return tuple(steps)


@given(levels())
def test_tasks_mean_the_same_after_a_trip(steps: tuple[Step, ...]) -> None:
    """Tasks, groups in groups, replicas, words of all kinds: written and read, the graph is equal."""
    graph = Graph(steps=steps)
    assert parse_jobspec(render_jobspec(graph, "compspec-0.1")) == graph


@given(chains(), NAMES)
def test_steps_mean_the_same_after_a_trip(steps: tuple[Step, ...], name: str) -> None:
    """Scripts with any text, jobs and batches, secrets and steps of one's own."""
    graph = Graph(steps=steps, name=name)
    again = parse_jobspec(render_jobspec(graph, "compspec-0.0.1"))
    # A chain without any work has no work to carry the name.
    assert again.steps == graph.steps
    assert again.name == graph.name


@given(works(), st.dictionaries(NAMES, st.binary(max_size=20), max_size=3), NAMES)
def test_flux_jobspecs_mean_the_same_after_a_trip(
    work: Work, files: dict[str, bytes], name: str
) -> None:
    """Any command, any bytes in files, and words that are files."""
    writes = tuple(Write(id=f"write-{each}", filename=each, content=files[each]) for each in files)
    words = (*work.argv, *(RunFile(each) for each in files))
    is_filled_in = any("{{" in word for word in work.argv)
    job = Submit(
        id="job",
        work=replace(work, argv=words),
        needs=tuple(Need(step.id) for step in writes),
    )
    graph = Graph(steps=(*writes, job), name=name)
    if is_filled_in:
        with pytest.raises(JobspecError, match="which Flux would fill in"):
            render_jobspec(graph, "flux-v1")
        return
    text = render_jobspec(graph, "flux-v1")
    assert parse_jobspec(text) == graph
    assert parse_jobspec(json.dumps(json.loads(json.dumps(_data(text))))) == graph


def _data(text: str) -> Any:
    from milkweed.jobfile.parse import parse_tree
    from milkweed.jobfile.tree import make_data

    tree, flaws = parse_tree(text)
    assert tree is not None
    assert flaws == []
    return make_data(tree)


@given(levels() | chains(), st.sampled_from(sorted(DIALECTS)))
def test_what_cannot_be_said_is_told(steps: tuple[Step, ...], dialect: str) -> None:
    """Either a dialect says all of a graph, or it names what it cannot say; never something in between."""
    graph = Graph(steps=steps)
    text = ""
    with contextlib.suppress(JobspecError):
        text = render_jobspec(graph, dialect)
    if text:
        again = parse_jobspec(text)
        assert [step.work for step in _jobs(again)] == [step.work for step in _jobs(graph)]
    else:
        with pytest.raises(JobspecError, match="cannot express"):
            render_jobspec(graph, dialect)


def _jobs(graph: Graph) -> list[Submit]:
    return [step for step in graph.walk() if isinstance(step, Submit)]


@given(st.dictionaries(TEXT, PLAIN, min_size=1, max_size=5))
def test_any_data_is_written_as_yaml(data: dict[str, Any]) -> None:
    """What is written is read back as it was, whatever the texts hold."""
    assert _data(render_yaml(data)) == data


@given(levels() | chains(), st.sampled_from([Transformer, flux.Transformer]))
def test_plans_survive_the_disk_and_keep_their_order(
    steps: tuple[Step, ...], cls: type[TransformerBase]
) -> None:
    """The plan of any graph that is not refused is read back equal, and each action follows what it needs."""
    try:
        plan = cls().render(Graph(steps=steps))
    except JobspecError:
        return
    assert parse_plan(json.loads(json.dumps(plan.to_json()))) == plan
    seen: set[str] = set()
    for action in plan.actions:
        assert {need.id for need in action.needs} <= seen
        seen.add(action.id)


@given(works())
def test_flux_is_asked_for_what_was_said(work: Work) -> None:
    """Nodes, slots, cores, GPUs, tasks and seconds of any work are those of its jobspec."""
    plan = flux.Transformer().render(Graph(steps=(Submit(id="a", work=work),)))
    jobspec: Any = plan.actions[0].details["jobspec"]
    again = parse_jobspec(
        json.dumps({**jobspec, "attributes": _without_own(jobspec["attributes"])})
    )
    (*_, step) = again.steps
    assert isinstance(step, Submit)
    assert step.work.shape == work.shape
    assert (step.work.duration_s or None) == (work.duration_s or None)
    assert step.work.cwd == work.cwd


def _without_own(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes without files whose names only Flux takes."""
    return {"system": {key: value for key, value in attributes["system"].items() if key != "files"}}


@given(levels())
def test_sorting_loses_nothing(steps: tuple[Step, ...]) -> None:
    """Every step is there once, after all that it needs."""
    found = sort_steps(steps[::-1])
    assert sorted(step.id for step in found) == sorted(step.id for step in steps)
    for at, step in enumerate(found):
        assert {need.id for need in step.needs} <= {each.id for each in found[:at]}
