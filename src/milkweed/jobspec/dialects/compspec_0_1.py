"""The compspec language 0.1: named resources, tasks and groups that depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...options import Data
from ...spec import suggest
from ..graph import Custom, Graph, Group, Need, Shape, Stage, Step, Submit, Work
from ..order import check_steps
from ..reading import Spot
from ..source import Source
from .compspec_0_0_1 import read_auth
from .compspec_resources import Resource, read_named, read_requirements

TOP = ("version", "name", "requires", "resources", "groups", "tasks", "attributes")
TASK = (
    "name",
    "resources",
    "group",
    "local",
    "requires",
    "depends_on",
    "replicas",
    "command",
    "steps",
    "attributes",
)
GROUP = ("name", "resources", "depends_on", "tasks", "groups", "attributes")
ATTRIBUTES = ("duration", "cwd", "environment", "watch")
_RUNS = ("command", "replicas", "local", "resources", "requires", "attributes", "steps")


@dataclass
class _Level:
    """Where steps stand beside each other."""

    prefix: str
    """The id of the group and a slash; nothing at the top."""
    shape: Shape | None
    """What a task inside gets when it names no resources."""
    groups: Mapping[str, Spot]
    """The groups that may be named here, those of outer levels included."""
    inside: tuple[int, ...] = ()
    """The groups around this level, by identity."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """By which name a step here is known, and its id."""


@dataclass
class _File:
    """What the whole file says."""

    source: Source
    resources: dict[str, Resource]
    requires: dict[str, list[Data]]
    attributes: Spot | None
    named: frozenset[str]
    """The groups that some task names; they have their place there."""
    groups: list[Spot] = field(default_factory=list[Spot])
    """All groups that were found."""
    placed: set[int] = field(default_factory=set[int])
    """Those that have their place; by identity, since names may repeat on other levels."""
    origins: dict[str, Spot] = field(default_factory=dict[str, Spot])
    more_needs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What a group that a task stands for depends on by itself."""


def parse(source: Source) -> Graph | None:
    """Read tasks and groups; who depends on whom is checked when all names are known."""
    keys = source.top.keys(TOP, ("version",))
    if "version" in keys:
        keys["version"].check_version()
    whole = _File(
        source,
        read_named(keys["resources"]) if "resources" in keys else {},
        _read_requires(keys["requires"]) if "requires" in keys else {},
        keys.get("attributes"),
        frozenset(_named_in(source.top.data, inside=False)),
    )
    level = _Level("", None, _find_groups(keys.get("groups"), {}, whole))
    steps = _read_level(keys.get("tasks"), keys.get("groups"), level, whole)
    name = keys["name"].text() if "name" in keys else ""
    _check_placed(whole)
    source.complain(check_steps(steps), whole.origins)
    if source.problems or not steps:
        return None
    return Graph(steps=steps, name=name, dialect="compspec-0.1", source=source.filename)


def _read_requires(spot: Spot) -> dict[str, list[Data]]:
    return {name: read_requirements(inner) for name, inner in spot.entries().items()}


def _find_groups(spot: Spot | None, outer: Mapping[str, Spot], whole: _File) -> dict[str, Spot]:
    found = dict(outer)
    for at, item in enumerate(spot.items() if spot else ()):
        if isinstance(item.data, dict):
            found[str(item.data.get("name", f"group-{at + 1}"))] = item
            whole.groups.append(item)
    return found


def _named_in(data: Data, *, inside: bool) -> set[str]:
    found: set[str] = set()
    if isinstance(data, dict):
        if inside and isinstance(data.get("group"), str):
            found.add(str(data["group"]))
        for key in ("tasks", "groups"):
            found |= _named_in(data.get(key), inside=key == "tasks")
    elif isinstance(data, list):
        for item in data:
            found |= _named_in(item, inside=inside)
    return found


def _check_placed(whole: _File) -> None:
    """No group is lost: one that is only named inside itself would never run."""
    for spot in whole.groups:
        if id(spot.data) not in whole.placed and not whole.source.problems:
            hint = "take one of the references out, or give each group a name of its own"
            spot.refuse("this group has no place: it is named only inside itself", hint)


def _read_level(
    tasks: Spot | None, groups: Spot | None, level: _Level, whole: _File
) -> tuple[Step, ...]:
    """The steps of one level: its tasks in their order, then the groups that no task names."""
    steps: list[Step] = []
    waiting: list[tuple[int, Spot]] = []
    barriers: list[str] = []
    for at, item in enumerate(tasks.items() if tasks else ()):
        keys = item.keys(TASK)
        first = len(steps)
        steps += _read_entry(keys, item, at, level, whole)
        steps[first:] = [_after_local(step, barriers) for step in steps[first:]]
        if len(steps) > first:
            waiting.append((first, item))
            last = steps[-1]
            if isinstance(last, Submit) and last.local:
                barriers.append(last.id)
    for at, item in enumerate(groups.items() if groups else ()):
        if not _is_named(item, whole):
            steps.append(_read_group(item, f"group-{at + 1}", item, level, whole))
            waiting.append((len(steps) - 1, item))
    return _with_needs(steps, waiting, level, whole)


def _after_local(step: Step, barriers: Sequence[str]) -> Step:
    """What runs in place holds up whatever stands below it."""
    return replace(step, needs=(*step.needs, *(Need(each) for each in barriers)))


def _is_named(item: Spot, whole: _File) -> bool:
    return isinstance(item.data, dict) and item.data.get("name") in whole.named


def _with_needs(
    steps: Sequence[Step], waiting: Sequence[tuple[int, Spot]], level: _Level, whole: _File
) -> tuple[Step, ...]:
    """The steps with what `depends_on` says, now that every name is known."""
    starts = [first for first, _ in waiting] + [len(steps)]
    found: list[Step] = []
    for (first, item), end in zip(waiting, starts[1:], strict=True):
        names = [*_depends_on(item), *whole.more_needs.get(steps[first].id, ())]
        needs = tuple(Need(level.names.get(name, level.prefix + name)) for name in names)
        found += [_join_needs(step, needs) for step in steps[first:end]]
    return tuple(found)


def _join_needs(step: Step, needs: tuple[Need, ...]) -> Step:
    """Names first, then what follows from the order."""
    own = tuple(need for need in step.needs if need not in needs)
    return replace(step, needs=(*dict.fromkeys(needs), *own))


def _depends_on(item: Spot) -> list[str]:
    data = item.data
    if not isinstance(data, dict) or "depends_on" not in data:
        return []
    return item.inside("depends_on", data["depends_on"]).texts()


def _read_entry(
    keys: Mapping[str, Spot], item: Spot, at: int, level: _Level, whole: _File
) -> list[Step]:
    if "group" in keys:
        return _read_placed(keys, item, level, whole)
    name = keys["name"].name() if "name" in keys else f"task-{at + 1}"
    level.names.setdefault(name, level.prefix + name)
    if "command" not in keys and "steps" not in keys:
        item.refuse("has neither a command nor steps nor a group", "add `command: [program]`")
    return _read_task(keys, item, name, level, whole)


def _read_placed(keys: Mapping[str, Spot], item: Spot, level: _Level, whole: _File) -> list[Step]:
    """A task that stands for a group."""
    for key in _RUNS:
        if key in keys:
            keys[key].refuse("belongs to the group itself", at_key=True)
    name = keys["group"].text()
    group = level.groups.get(name)
    if group is None:
        keys["group"].refuse(f"no group is named {name!r}", suggest(name, level.groups))
        return []
    if id(group.data) in level.inside:
        keys["group"].refuse(f"the group {name!r} contains itself", "take it out")
        return []
    if id(group.data) in whole.placed:
        keys["group"].refuse(f"the group {name!r} has its place already", "name it once")
        return []
    own = keys["name"].name() if "name" in keys else name
    step = _read_group(group, own, item, level, whole)
    level.names.setdefault(name, step.id)
    whole.more_needs[step.id] = _depends_on(group)
    return [step]


def _read_group(spot: Spot, name: str, item: Spot, level: _Level, whole: _File) -> Group:
    """A group, at the place where `item` stands."""
    whole.placed.add(id(spot.data))
    keys = spot.keys(GROUP)
    said = keys["name"].name() if "name" in keys else name
    own = name if item is not spot else said
    level.names.setdefault(own, level.prefix + own)
    work, watch = _read_work(keys, spot, level, whole)
    if watch:
        keys.get("attributes", spot).refuse("a group is not watched", "put `watch` to its tasks")
    inner = _Level(
        f"{level.prefix}{own}/",
        work.shape,
        _find_groups(keys.get("groups"), level.groups, whole),
        (*level.inside, id(spot.data)),
    )
    steps = _read_level(keys.get("tasks"), keys.get("groups"), inner, whole)
    if not steps:
        spot.refuse("a group without tasks", "add `tasks:`")
    step_id = level.prefix + own
    whole.origins[step_id] = item
    return Group(id=step_id, work=work, steps=steps, at=whole.source.position(item.path))


def _read_task(
    keys: Mapping[str, Spot], item: Spot, name: str, level: _Level, whole: _File
) -> list[Step]:
    """The steps of a task, then its command."""
    step_id, at = level.prefix + name, whole.source.position(item.path)
    whole.origins[step_id] = item
    steps = (
        _read_steps(keys["steps"], step_id, alone="command" not in keys) if "steps" in keys else []
    )
    steps = [replace(step, at=at) for step in steps]
    whole.origins.update((step.id, item) for step in steps)
    if "command" not in keys:
        for key in ("replicas", "local"):
            if key in keys:
                keys[key].refuse("a task without a command", "add `command:`", at_key=True)
        return list(steps)
    work, watch = _read_work(keys, item, level, whole)
    submit = Submit(
        id=step_id,
        work=replace(work, argv=keys["command"].command()),
        needs=tuple(Need(step.id) for step in steps),
        wait=watch,
        watch=watch,
        local="local" in keys and keys["local"].flag(),
        replicas=keys["replicas"].count() if "replicas" in keys else 1,
        at=at,
    )
    return [*steps, submit]


def _read_steps(spot: Spot, task_id: str, *, alone: bool) -> list[Step]:
    """The steps of a task, one after the other; alone, the last of them is the task."""
    items = spot.items(minimum=1)
    found: list[Step] = []
    for at, item in enumerate(items):
        is_last = alone and at == len(items) - 1
        step_id = task_id if is_last else f"{task_id}.step-{at + 1}"
        needs = (Need(found[-1].id),) if found else ()
        found.append(replace(_read_step(item), id=step_id, needs=needs))
    return found


def _read_step(spot: Spot) -> Step:
    data = spot.data
    kind = (
        spot.inside("name", data["name"]).name()
        if isinstance(data, dict) and "name" in data
        else ""
    )
    if kind == "stage":
        keys = spot.keys(("name", "path"), ("path",))
        return Stage(id="", path=keys["path"].text() if "path" in keys else "")
    if kind == "auth":
        return read_auth(spot, "name")
    if not kind:
        spot.keys(("name", "path"), ("name",))
    options = {key: inner.plain() for key, inner in spot.entries().items() if key != "name"}
    return Custom(id="", step=kind or "unknown", options=options)


def _read_work(
    keys: Mapping[str, Spot], item: Spot, level: _Level, whole: _File
) -> tuple[Work, bool]:
    resource = _read_reference(keys, item, level, whole)
    requires: list[Data] = [*resource.requires, *_read_requirement(keys.get("requires"), whole)]
    said: dict[str, Any] = {}
    outer = (whole.attributes, resource.attributes) if not level.prefix else (resource.attributes,)
    for spot in (*outer, keys.get("attributes")):
        if spot is not None:
            _read_attributes(spot, said)
    attributes: dict[str, Data] = {"requires": requires} if requires else {}
    if not resource.schedule:
        attributes["schedule"] = False
    watch: bool = said.pop("watch", False)
    return Work(argv=(), shape=resource.shape, attributes=attributes, **said), watch


def _read_reference(keys: Mapping[str, Spot], item: Spot, level: _Level, whole: _File) -> Resource:
    if "resources" not in keys:
        is_local = isinstance(item.data, dict) and item.data.get("local") is True
        if level.shape is None and not is_local:
            hint = "name one of the resources: `resources: NAME`"
            item.inside("resources", None).refuse("is missing", hint, at_key=True)
        return Resource(shape=Shape() if is_local or level.shape is None else level.shape)
    spot = keys["resources"]
    name = spot.text()
    if any(char in name for char in "|&,"):
        spot.refuse(f"{name!r} leaves a choice", "name one of the resources")
    elif name and name not in whole.resources:
        spot.refuse(f"no resources are named {name!r}", suggest(name, whole.resources))
    return whole.resources.get(name, Resource(shape=Shape()))


def _read_requirement(spot: Spot | None, whole: _File) -> list[Data]:
    name = spot.text() if spot else ""
    if spot and name and name not in whole.requires:
        spot.refuse(f"no requirements are named {name!r}", suggest(name, whole.requires))
    return whole.requires.get(name, [])


def _read_attributes(spot: Spot, said: dict[str, Any]) -> None:
    keys = spot.keys(ATTRIBUTES)
    if "duration" in keys:
        said["duration_s"] = keys["duration"].duration()
    if "cwd" in keys:
        said["cwd"] = keys["cwd"].text()
    if "watch" in keys:
        said["watch"] = keys["watch"].flag()
    if "environment" in keys:
        said["environment"] = {**said.get("environment", {}), **keys["environment"].environment()}


def make(graph: Graph, lacking: list[str]) -> dict[str, Data]:
    """Write tasks, groups and the resources that they name."""
    from .compspec_0_1_render import make_document

    return make_document(graph, lacking)
