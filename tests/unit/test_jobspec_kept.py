"""Nothing that a file says is lost without a word: units, labels, templates, and what groups write."""

from __future__ import annotations

import pytest

from milkweed.errors import JobspecError
from milkweed.jobspec import load_transformer, parse_jobspec, render_jobspec
from milkweed.jobspec.graph import Auth, Graph, Group, Need, RunFile, Submit, Work, Write
from unit.jobspecs import FLUX, STEPS, graph, job

UNITS = FLUX.replace("type: core, count: 3", "type: core, count: 3, unit: threads")
LABEL = FLUX.replace("task,", "mine,").replace("slot: task", "slot: mine")
TEMPLATE = FLUX.replace("[hostname]", '[echo, "{{id}}"]')


def lacking(found: Graph, dialect: str) -> str:
    with pytest.raises(JobspecError, match="cannot express") as caught:
        render_jobspec(found, dialect)
    return str(caught.value)


def refused(found: Graph, name: str = "local") -> str:
    with pytest.raises(JobspecError) as caught:
        load_transformer(name).render(found)
    return str(caught.value)


def test_units_are_kept_where_there_are_units() -> None:
    """Flux's and the older language have them; the newer one says that it has not."""
    found = parse_jobspec(UNITS)
    assert "unit: threads" in render_jobspec(found, "flux-v1")
    for dialect in ("flux-v1", "compspec-0.0.1"):
        assert _work(parse_jobspec(render_jobspec(found, dialect))) == _work(found)
    assert "'units' of 'job'" in lacking(found, "compspec-0.1")


def test_units_are_honoured_or_refused() -> None:
    """A number of something else than cores is no number of cores."""
    assert "does not honour 'units'" in refused(parse_jobspec(UNITS))


def test_each_unit_stays_with_its_kind() -> None:
    """Nodes, slots, cores and GPUs may each have one."""
    text = """\
version: 1
resources:
- type: node
  count: 1
  unit: a
  with:
  - type: slot
    count: 1
    unit: b
    label: task
    with: [{type: core, count: 1, unit: c}, {type: gpu, count: 1, unit: d}]
tasks: [{command: [x], slot: task, count: {per_slot: 1}}]
attributes: {system: {duration: 0}}
"""
    found = parse_jobspec(text)
    assert _work(found).attributes["units"] == {"node": "a", "slot": "b", "core": "c", "gpu": "d"}
    assert parse_jobspec(render_jobspec(found, "flux-v1")) == found


def _work(found: Graph) -> Work:
    return next(step.work for step in found.walk() if isinstance(step, Submit))


@pytest.mark.parametrize(
    ("text", "dialect", "label"),
    [
        (LABEL, "flux-v1", "mine"),
        (LABEL, "compspec-0.0.1", "mine"),
        (STEPS, "compspec-0.0.1", "hello"),
    ],
)
def test_labels_are_kept_where_there_are_labels(text: str, dialect: str, label: str) -> None:
    """Slots are called as the file called them, and the task names them so."""
    again = render_jobspec(parse_jobspec(text), dialect)
    assert f"label: {label}" in again
    assert f"slot: {label}" in again
    assert _work(parse_jobspec(again)).slot == label


def test_a_label_changes_nothing() -> None:
    """Two works that differ in it are the same work."""
    assert Work(argv=("x",), slot="a") == Work(argv=("x",), slot="b")
    assert Work(argv=("x",), slot="a").said() == frozenset()


def test_what_flux_fills_in_is_kept_for_flux() -> None:
    """A word with {{…}} in Flux's language is one that Flux fills in: there and back it stays."""
    found = parse_jobspec(TEMPLATE)
    assert _work(found).argv == ("echo", "{{id}}")
    assert parse_jobspec(render_jobspec(found, "flux-v1")) == found


@pytest.mark.parametrize("dialect", ["compspec-0.0.1", "compspec-0.1"])
def test_what_flux_fills_in_is_not_said_elsewhere(dialect: str) -> None:
    """Elsewhere it would be the word itself."""
    assert "templates" in lacking(parse_jobspec(TEMPLATE), dialect)


def test_what_only_flux_fills_in_is_not_run_elsewhere() -> None:
    """A program would get the braces."""
    assert "does not honour 'templates'" in refused(parse_jobspec(TEMPLATE))


@pytest.mark.parametrize("word", ["{{id}}", "a{{tmpdir}}/x", "{{", "{{{{"])
def test_a_word_that_flux_would_fill_in_is_refused(word: str) -> None:
    """What is literal in another language cannot be said to Flux."""
    assert "which Flux would fill in" in lacking(graph(job("a", argv=("echo", word))), "flux-v1")


def test_a_file_of_the_run_is_no_template() -> None:
    """It is how files are named to Flux, and is read back as a file."""
    write = Write(id="write-x", filename="x", content=b"1")
    found = graph(write, job("job", "write-x", argv=("cat", RunFile("x"))))
    assert parse_jobspec(render_jobspec(found, "flux-v1")) == found
    spoof = graph(write, job("job", "write-x", argv=("cat", "{{tmpdir}}/x")))
    assert "which Flux would fill in" in lacking(spoof, "flux-v1")


def group(*steps: object, **more: object) -> Group:
    return Group(id="g", steps=steps, work=Work(argv=()), **more)  # type: ignore[arg-type]


def test_what_a_group_writes_stays_inside() -> None:
    """A step after the group that names the file is refused, and told why."""
    inside = group(
        Write(id="g/w", filename="x", content=b"1"),
        job("g/j", "g/w", argv=("cat", RunFile("x"))),
    )
    with pytest.raises(
        JobspecError, match="that of the group 'g' stays inside the group"
    ) as caught:
        graph(inside, job("after", "g", argv=("cat", RunFile("x"))))
    assert "write it before the group, or once more after it" in caught.value.hint


def test_what_was_written_before_a_group_is_seen_inside_and_after() -> None:
    """Files go down into groups, and on to whatever needs the group."""
    found = graph(
        Write(id="w", filename="x", content=b"1"),
        group(job("g/j", argv=("cat", RunFile("x"))), needs=(Need("w"),)),
        job("after", "g", argv=("cat", RunFile("x"))),
    )
    actions = {each.id: each for each in load_transformer("local").render(found).actions}
    assert actions["g/j"].details["files"] == actions["after"].details["files"] == ["x"]


def test_a_secret_of_a_group_stays_inside() -> None:
    """The same holds for what auth steps get."""
    found = graph(
        group(Auth(id="g/k", secret="k", variable="V"), job("g/j", "g/k")), job("after", "g")
    )
    actions = {each.id: each for each in load_transformer("local").render(found).actions}
    assert "secrets" in actions["g/j"].details
    assert "secrets" not in actions["after"].details


def test_one_name_has_one_content_on_this_machine() -> None:
    """A run has one folder here: work would see the file of somebody else."""
    two = graph(
        Write(id="w", filename="x", content=b"1"),
        Write(id="v", filename="x", content=b"2", needs=(Need("w"),)),
    )
    assert "'v' writes another 'x'" in refused(two)
    same = graph(
        Write(id="w", filename="x", content=b"1"),
        Write(id="v", filename="x", content=b"1", executable=True, needs=(Need("w"),)),
    )
    assert len(load_transformer("local").render(same).actions) == 2
