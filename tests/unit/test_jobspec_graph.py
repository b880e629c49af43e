"""Graphs of steps: what is in them is checked once, before anything else looks at them."""

from __future__ import annotations

import pytest

from milkweed.errors import JobspecError, SpecError
from milkweed.jobspec.graph import (
    Auth,
    Batch,
    Custom,
    Graph,
    Group,
    Need,
    Position,
    RunFile,
    Shape,
    Stage,
    Submit,
    Work,
    Write,
    kind_of,
    place_of,
)
from milkweed.jobspec.order import (
    check_steps,
    flaws_of_filename,
    flaws_of_name,
    prepared_before,
    sort_steps,
)
from unit.jobspecs import graph, job


def refused(*steps: Submit | Write | Stage | Group | Batch) -> str:
    with pytest.raises(JobspecError) as caught:
        graph(*steps)
    return str(caught.value)


def test_cores_gpus_and_tasks_are_counted_apart() -> None:
    """Cores and GPUs are those of all slots, and tasks run in slots however many cores those have."""
    shape = Shape(nodes=2, slots=4, cores_per_slot=8, gpus_per_slot=1)
    assert (shape.cores, shape.gpus, shape.tasks, shape.slots_per_node) == (32, 4, 4, 2)


@pytest.mark.parametrize(
    ("shape", "tasks"),
    [
        (Shape(slots=3), 3),
        (Shape(slots=3, tasks_per_slot=2), 6),
        (Shape(slots=3, tasks_total=2), 2),
    ],
)
def test_tasks_are_per_slot_or_in_all(shape: Shape, tasks: int) -> None:
    """A total wins over what runs in a slot."""
    assert shape.tasks == tasks


@pytest.mark.parametrize(
    "numbers",
    [
        {"nodes": 0},
        {"slots": 0},
        {"cores_per_slot": 0},
        {"gpus_per_slot": -1},
        {"tasks_total": 0},
        {"nodes": 2, "slots": 3},
    ],
)
def test_shapes_without_meaning_are_refused(numbers: dict[str, int]) -> None:
    """Zero of something, or slots that cannot be spread, is no shape."""
    with pytest.raises(SpecError, match=r"^shape\."):
        Shape(**numbers)


def test_slots_without_nodes_lie_anywhere() -> None:
    """Where no nodes are said, nobody knows how many slots each has."""
    assert Shape(slots=3).slots_per_node is None


def test_work_tells_what_was_said() -> None:
    """Whatever a transformer must honour or refuse is listed, and nothing that was not said."""
    assert Work(argv=("x",)).said() == set()
    work = Work(
        argv=("x",),
        shape=Shape(gpus_per_slot=1, exclusive=True),
        cwd="/",
        environment={"A": None},
        attributes={"user": {}},
    )
    assert work.said() == {"gpus", "exclusive", "cwd", "environment", "user"}


def test_positions_do_not_count() -> None:
    """Two graphs that say the same are equal, wherever in their files that stands."""
    assert Submit(id="a", work=Work(argv=("x",)), at=Position(1, 2)) == job("a", argv=("x",))


def test_unknown_needs_are_refused() -> None:
    """A need that no step beside it meets is an error with a suggestion."""
    assert "no step beside it is named 'prepar'" in (
        text := refused(job("prepare"), job("b", "prepar"))
    )
    assert "did you mean 'prepare'?" in text


def test_a_step_alone_cannot_need_another() -> None:
    """With no other step, there is nothing to suggest."""
    assert "there is no other step beside it" in refused(job("a", "b"))


def test_needs_do_not_cross_groups() -> None:
    """A step inside a group needs steps of that group; the group needs those around it."""
    inner = Group(id="g", steps=(job("g/x", "a"),), work=Work(argv=()))
    assert "no step beside it is named 'a'" in refused(job("a"), inner)


def test_circles_are_refused() -> None:
    """Steps that wait for each other are named in their order, however long the circle is."""
    text = refused(job("a", "c"), job("b", "a"), job("c", "b"), job("d", "a"))
    assert "these steps wait for each other: a → c → b → a" in text


def test_a_step_cannot_need_itself() -> None:
    """The smallest circle has words of its own."""
    assert "'a' depends on itself" in refused(job("a", "a"))


def test_all_that_is_wrong_is_told_at_once() -> None:
    """One error has every complaint, each with its place."""
    first = Submit(id="a", work=Work(argv=("x",)), needs=(Need("q"),), at=Position(3, 1))
    second = Submit(id="a", work=Work(argv=("x",)), at=Position(7, 1))
    with pytest.raises(JobspecError) as caught:
        Graph(steps=(first, second), source="f.yaml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "f.yaml:7:1: step 'a': the name 'a' is taken in line 3"
    assert lines[1] == "f.yaml:3:1: step 'a': no step beside it is named 'q'"


def test_a_need_of_no_known_kind_is_refused() -> None:
    """Kinds of needs are a short list."""
    bad: object = "later"
    assert "'later' is not one of" in refused(job("a"), job("b", Need("a", bad)))  # type: ignore[arg-type]


def test_replicas_are_at_least_one() -> None:
    """No replicas is no job."""
    assert "0 replicas" in refused(job("a", replicas=0))


def test_the_id_of_a_step_says_its_group() -> None:
    """What is in a group has the group's id before its own name."""
    inner = Group(id="g", steps=(job("x"),), work=Work(argv=()))
    assert "the id 'x' is not that of a step of 'g'" in refused(inner)
    assert (job("g/x").name, job("g/x").parent, job("x").parent) == ("x", "g", None)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "../a", "ä", "a\n", "x" * 64])
def test_names_that_no_scheduler_carries(name: str) -> None:
    """Ids become names of files and jobs."""
    assert flaws_of_name(name)


@pytest.mark.parametrize("name", ["", ".x", "a/b", "..", "a b", "-x", "a;b", "x" * 64])
def test_file_names_stay_in_their_folder(name: str) -> None:
    """A file of the run has a plain name."""
    assert flaws_of_filename(name)
    assert not flaws_of_filename("_install-2.sh")


def test_files_are_written_before_they_are_used() -> None:
    """A word, a stage step or a batch step that names a file needs whoever writes it."""
    write = Write(id="w", filename="x.sh", content=b"")
    uses = job("a", argv=("bash", RunFile("x.sh")))
    assert "no step before it writes the file 'x.sh'" in refused(write, uses)
    assert "'x.sh'" in refused(Stage(id="s", filename="x.sh"))
    assert "'x.sh'" in refused(Batch(id="b", filename="x.sh", work=Work(argv=("bash",))))
    after = Submit(id="a", work=uses.work, needs=(Need("m"),))
    assert graph(write, job("m", "w"), after)


def test_what_was_prepared_is_known_to_all_that_come_after() -> None:
    """Files and secrets are seen by later steps, also inside groups, and not by earlier ones."""
    write = Write(id="w", filename="x", content=b"")
    auth = Auth(id="k", secret="t", variable="T", needs=(Need("w"),))
    inner = Group(id="g", steps=(job("g/x"),), work=Work(argv=()), needs=(Need("k"),))
    found = prepared_before(graph(job("early"), write, auth, inner))
    assert found["early"] == ()
    assert [step.id for step in found["g/x"]] == ["w", "k"]


def test_steps_are_sorted_by_what_they_need() -> None:
    """Each comes after what it needs, and else as it was written."""
    found = sort_steps([job("c", "b"), job("a"), job("b", "a"), job("d")])
    assert [step.id for step in found] == ["a", "d", "b", "c"]


def test_long_chains_are_no_trouble() -> None:
    """A chain of thousands is checked without recursion."""
    steps = [job("s0"), *(job(f"s{at}", f"s{at - 1}") for at in range(1, 5000))]
    assert check_steps(steps[::-1]) == []


def test_walking_meets_groups_before_their_steps() -> None:
    """Every step is met once."""
    inner = Group(id="g", steps=(job("g/x"), job("g/y")), work=Work(argv=()))
    assert [step.id for step in graph(job("a"), inner, job("b")).walk()] == [
        "a",
        "g",
        "g/x",
        "g/y",
        "b",
    ]


def test_a_step_of_ones_own_has_its_own_kind() -> None:
    """Transformers look custom steps up by the name in the file."""
    assert kind_of(Custom(id="c", step="notify")) == "notify"
    assert kind_of(job("a")) == "submit"


def test_places_begin_errors() -> None:
    """With a file there is a line, without one there is at least a word."""
    assert place_of("f.yaml", Submit(id="a", work=Work(argv=()), at=Position(2, 3))) == "f.yaml:2:3"
    assert place_of("", job("a")) == "this graph"
