"""The compspec language 0.1: named resources, tasks, groups."""

from __future__ import annotations

import pytest

from milkweed.jobspec import load_jobspec, parse_jobspec
from milkweed.jobspec.graph import Auth, Custom, Graph, Group, Need, Shape, Stage, Submit
from unit.jobspecs import EXAMPLES, TASKS, wrong

HEAD = """\
version: 1
resources:
  small: {type: slot, count: 1, with: [{type: core, count: 1}]}
  big: {type: node, count: 2, with: [{type: core, count: 4}, {type: gpu, count: 2}]}
"""


def submit(graph: Graph, name: str) -> Submit:
    """The job of that id."""
    (found,) = (step for step in graph.walk() if step.id == name)
    assert isinstance(found, Submit)
    return found


def group(graph: Graph, name: str) -> Group:
    """The group of that id."""
    (found,) = (step for step in graph.walk() if step.id == name)
    assert isinstance(found, Group)
    return found


def shape_of(resource: str) -> Shape:
    """The shape of a named resource."""
    text = f"version: 1\nresources: {{r: {resource}}}\ntasks: [{{resources: r, command: [x]}}]\n"
    return submit(parse_jobspec(text, "job.yaml"), "task-1").work.shape


def test_tasks_need_what_they_depend_on() -> None:
    """Names become needs."""
    graph = parse_jobspec(TASKS)
    assert submit(graph, "b").needs == (Need("a", "afterok"),)


@pytest.mark.parametrize(
    ("resource", "shape"),
    [
        ("{type: node, count: 4}", Shape(nodes=4, slots=4, exclusive=True)),
        ("{type: node}", Shape(nodes=1, slots=1, exclusive=True)),
        (
            "{type: node, count: 2, with: [{type: core, count: 4}]}",
            Shape(nodes=2, slots=2, cores_per_slot=4),
        ),
        (
            "{type: node, count: 2, with: [{type: cores, count: 4}, {type: gpu, count: 2}]}",
            Shape(nodes=2, slots=2, cores_per_slot=4, gpus_per_slot=2),
        ),
        (
            "{type: node, count: 2, with: [{type: slot, count: 3, with: [{type: core, count: 2}]}]}",
            Shape(nodes=2, slots=6, cores_per_slot=2),
        ),
        (
            "{type: node, replicas: 4, with: [{type: core, count: 4}]}",
            Shape(slots=4, cores_per_slot=4),
        ),
        ("{type: slot, replicas: 4, with: [{type: gpu}]}", Shape(slots=4, gpus_per_slot=1)),
        ("{type: core, count: 4}", Shape(cores_per_slot=4)),
        ("{type: gpu, count: 2}", Shape(gpus_per_slot=2)),
    ],
)
def test_resources_are_shapes(resource: str, shape: Shape) -> None:
    """A node without anything inside is whole; cores and GPUs lie in one slot of it; replicas lie anywhere."""
    assert shape_of(resource) == shape


@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ("{count: 1}", "resources.r.type: is missing"),
        ("{type: rack}", "'rack' is not one of: node, slot, core, gpu"),
        ("{type: node, count: 0}", "0 is too small"),
        ("{type: node, count: '2'}", "take it out of the quotes"),
        ("{type: node, count: {min: 1, max: 2}}", "ranges of counts are not part of version 1"),
        ("{type: node, count: 2+}", "ranges and sets are not part of version 1"),
        ("{type: node, count: 1, replicas: 2, with: [{type: core}]}", "either count or replicas"),
        ("{type: node, replicas: 2}", "need to know what is inside"),
        ("{type: core, replicas: 2}", "a core has a count"),
        ("{type: core, with: [{type: core}]}", "a core has nothing inside"),
        ("{type: node, with: [{type: core}, {type: core}]}", "a second core"),
        ("{type: node, with: [{type: core, attributes: {}}]}", "belongs to the resource itself"),
        ("{type: node, with: []}", "is empty"),
        ("{type: node, memory: 5}", "resources.r.memory: unknown key"),
    ],
)
def test_wrong_resources_are_refused(resource: str, said: str) -> None:
    """Ranges, zeros and what lies where it cannot are told apart."""
    text = f"version: 1\nresources: {{r: {resource}}}\ntasks: [{{resources: r, command: [x]}}]\n"
    assert said in wrong(text)


def test_attributes_come_from_file_resource_and_task() -> None:
    """What is nearer to the task wins, variable by variable."""
    text = """\
version: 1
attributes: {cwd: /a, environment: {A: file, B: file, C: file}, duration: 1h}
resources:
  r: {type: node, attributes: {duration: 30m, environment: {B: resource, C: resource}}}
tasks:
- {name: t, resources: r, command: [x], attributes: {environment: {C: null}, watch: true}}
"""
    found = submit(parse_jobspec(text), "t")
    assert (found.work.cwd, found.work.duration_s) == ("/a", 1800.0)
    assert found.work.environment == {"A": "file", "B": "resource", "C": None}
    assert (found.watch, found.wait) == (True, True)


def test_groups_hold_tasks() -> None:
    """A task in a group has the group's name before its own, and its resources unless it names others."""
    text = (
        HEAD
        + """\
groups:
- name: g
  resources: big
  attributes: {duration: 2h}
  tasks:
  - {name: a, command: [x]}
  - {name: b, resources: small, command: [y], depends_on: [a], replicas: 3}
tasks:
- {name: after, resources: small, command: [z], depends_on: [g]}
"""
    )
    graph = parse_jobspec(text)
    assert [step.id for step in graph.walk()] == ["after", "g", "g/a", "g/b"]
    assert group(graph, "g").work.duration_s == 7200.0
    assert submit(graph, "g/a").work.shape == group(graph, "g").work.shape
    assert submit(graph, "g/b").work.shape == Shape()
    assert (submit(graph, "g/b").needs, submit(graph, "g/b").replicas) == ((Need("g/a"),), 3)
    assert submit(graph, "after").needs == (Need("g"),)


@pytest.mark.parametrize("turned", [False, True])
def test_a_group_runs_where_a_task_stands_for_it(turned: bool) -> None:
    """A group that a task of another group names is inside that one, whichever is written first."""
    inner = "- {name: inner, resources: small, tasks: [{name: x, command: [x]}]}\n"
    outer = "- {name: outer, resources: big, tasks: [{group: inner}, {command: [y], depends_on: [inner]}]}\n"
    parts = [inner, outer] if turned else [outer, inner]
    graph = parse_jobspec(HEAD + "groups:\n" + "".join(parts))
    assert [step.id for step in graph.walk()] == [
        "outer",
        "outer/inner",
        "outer/inner/x",
        "outer/task-2",
    ]
    assert submit(graph, "outer/task-2").needs == (Need("outer/inner"),)


def test_groups_may_be_written_inside_groups() -> None:
    """Nested groups run at the level they are written at."""
    text = (
        HEAD
        + """\
groups:
- name: a
  resources: big
  tasks: [{name: t, command: [x]}]
  groups:
  - {name: b, resources: small, depends_on: [t], tasks: [{name: u, command: [y]}]}
"""
    )
    graph = parse_jobspec(text)
    assert [step.id for step in graph.walk()] == ["a", "a/t", "a/b", "a/b/u"]
    assert group(graph, "a/b").needs == (Need("a/t"),)


def test_a_placed_group_keeps_both_dependencies() -> None:
    """What the task says and what the group says both count, by either name."""
    text = (
        HEAD
        + """\
groups:
- {name: g, resources: small, depends_on: [a], tasks: [{command: [x]}]}
tasks:
- {name: a, resources: small, command: [x]}
- {name: b, resources: small, command: [x]}
- {name: here, group: g, depends_on: [b]}
- {name: last, resources: small, command: [x], depends_on: [g]}
"""
    )
    graph = parse_jobspec(text)
    assert group(graph, "here").needs == (Need("b"), Need("a"))
    assert submit(graph, "last").needs == (Need("here"),)


def test_what_runs_in_place_holds_up_the_rest() -> None:
    """Tasks below a local one wait for its end, and those above do not."""
    text = (
        HEAD
        + """\
groups:
- name: g
  resources: big
  tasks:
  - {name: before, command: [x]}
  - {name: start, local: true, command: [serve]}
  - {name: work, command: [x]}
  - {name: stop, local: true, command: [halt], depends_on: [work]}
"""
    )
    graph = parse_jobspec(text)
    assert submit(graph, "g/before").needs == ()
    assert submit(graph, "g/start").local
    assert submit(graph, "g/work").needs == (Need("g/start"),)
    assert submit(graph, "g/stop").needs == (Need("g/work"), Need("g/start"))


def test_steps_of_a_task_come_before_its_command() -> None:
    """Staging is part of the task: what it depends on comes first, its command last."""
    text = (
        HEAD
        + """\
tasks:
- {name: a, resources: small, command: [x]}
- name: b
  resources: small
  depends_on: [a]
  steps: [{name: stage, path: /data}, {name: auth, secret: s, variable: T}, {name: warm, level: 2}]
  command: [y]
- {name: c, steps: [{name: stage, path: /more}], depends_on: [b]}
"""
    )
    graph = parse_jobspec(text)
    first, second, third = (step for step in graph.steps if step.id.startswith("b.step"))
    assert isinstance(first, Stage)
    assert (first.path, first.needs) == ("/data", (Need("a"),))
    assert isinstance(second, Auth)
    assert second.needs == (Need("a"), Need("b.step-1"))
    assert isinstance(third, Custom)
    assert (third.step, third.options) == ("warm", {"level": 2})
    assert submit(graph, "b").needs == (
        Need("a"),
        Need("b.step-1"),
        Need("b.step-2"),
        Need("b.step-3"),
    )
    last = graph.steps[-1]
    assert isinstance(last, Stage)
    assert (last.id, last.needs) == ("c", (Need("b"),))


def test_requirements_are_kept() -> None:
    """What resources and tasks require is one list, for transformers to look up or refuse."""
    text = """\
version: 1
requires: {spack: [{name: spack, field: type, value: openssl}]}
resources: {r: {type: node, schedule: false, requires: [{name: system, field: cpu.target, value: amd64}]}}
tasks: [{name: t, resources: r, requires: spack, command: [x]}]
"""
    attributes = submit(parse_jobspec(text), "t").work.attributes
    assert [item["name"] for item in attributes["requires"]] == ["system", "spack"]  # type: ignore[index, union-attr]
    assert attributes["schedule"] is False


def test_a_text_is_cut_into_words() -> None:
    """A command may be one text, with quotes."""
    text = HEAD + "tasks: [{resources: small, command: 'echo \"a b\" c#d \\n'}]\n"
    assert submit(parse_jobspec(text), "task-1").work.argv == ("echo", "a b", "c#d", "n")


@pytest.mark.parametrize(
    "command", ["a && b", "a; b", "a | b", "a > b", "(a)", "a &", "a;b", "a|b", "echo $(x)"]
)
def test_no_shell_reads_a_text(command: str) -> None:
    """What only a shell understands is refused rather than passed on as words."""
    assert "no shell reads this text" in wrong(
        HEAD + f"tasks: [{{resources: small, command: '{command}'}}]\n"
    )


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("[{command: [x]}]", "tasks[0].resources: is missing"),
        ("[{resources: smalll, command: [x]}]", "did you mean 'small'?"),
        ("[{resources: small|big, command: [x]}]", "'small|big' leaves a choice"),
        ("[{resources: small}]", "has neither a command nor steps nor a group"),
        ("[{resources: small, command: []}]", "is empty"),
        ("[{resources: small, command: ['', a]}]", "begin with the name of a program"),
        ("[{resources: small, command: [x, 5]}]", "5 is not text"),
        ("[{resources: small, command: [x], color: red}]", "tasks[0].color: unknown key"),
        ("[{resources: small, command: [x], replicas: 0}]", "0 is too small"),
        ("[{resources: small, command: [x], depends_on: a}]", "'a' is not a list"),
        ("[{resources: small, command: [x], requires: y}]", "no requirements are named 'y'"),
        (
            "[{resources: small, command: [x], attributes: {duration: 1 hour}}]",
            "'1 hour' is not a duration",
        ),
        ("[{resources: small, command: [x], attributes: {environment: {1A: x}}}]", "1A"),
        (
            "[{resources: small, command: [x], attributes: {environment: {A: 5}}}]",
            "put it in quotes",
        ),
        ("[{name: a b, resources: small, command: [x]}]", "'a b' is no name"),
        ("[{group: g}]", "no group is named 'g'"),
        ("[{steps: [{path: /x}]}]", "name: is missing"),
        ("[{steps: [{name: stage}]}]", "path: is missing"),
        ("[{local: true, steps: [{name: stage, path: /x}]}]", "a task without a command"),
        ("{}", "a mapping is not a list"),
    ],
)
def test_wrong_tasks_are_refused(tasks: str, said: str) -> None:
    """Each mistake is named, where it is."""
    assert said in wrong(HEAD + f"tasks: {tasks}\n")


@pytest.mark.parametrize(
    ("groups", "tasks", "said"),
    [
        ("[{name: g, resources: small}]", "[]", "a group without tasks"),
        ("[{name: g, tasks: [{command: [x]}]}]", "[]", "groups[0].resources: is missing"),
        (
            "[{name: g, resources: small, tasks: [{command: [x]}]}]",
            "[{group: g}, {group: g}]",
            "the group 'g' has its place already",
        ),
        (
            "[{name: g, resources: small, tasks: [{group: g}]}]",
            "[{group: g}]",
            "the group 'g' contains itself",
        ),
        ("[{name: g, resources: small, tasks: [{group: g}]}]", "[]", "named only inside itself"),
        (
            "[{name: g, resources: small, tasks: [{command: [x]}]}]",
            "[{group: g, command: [y]}]",
            "belongs to the group itself",
        ),
        (
            "[{name: g, resources: small, attributes: {watch: true}, tasks: [{command: [x]}]}]",
            "[]",
            "a group is not watched",
        ),
        (
            "[{name: g, resources: small, depends_on: [t], tasks: [{command: [x]}]}]",
            "[{name: t, resources: small, command: [x], depends_on: [g]}]",
            "these steps wait for each other: t → g → t",
        ),
    ],
)
def test_wrong_groups_are_refused(groups: str, tasks: str, said: str) -> None:
    """No group is lost, run twice or inside itself."""
    assert said in wrong(HEAD + f"groups: {groups}\ntasks: {tasks}\n")


def test_two_groups_that_contain_each_other_are_not_lost() -> None:
    """Neither has a place, so neither would ever run."""
    one = "{name: a, resources: small, tasks: [{group: b}]}"
    two = "{name: b, resources: small, tasks: [{group: a}]}"
    assert "named only inside itself" in wrong(HEAD + f"groups: [{one}, {two}]\n")


def test_the_example_is_one() -> None:
    """The example file is read, with its group between two tasks."""
    graph = load_jobspec(EXAMPLES / "tasks.yaml")
    assert graph.name == "training"
    assert group(graph, "train").needs == (Need("prepare"),)
    assert submit(graph, "report").needs == (Need("train"),)
