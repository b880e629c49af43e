"""What Flux's jobspec and the older compspec language share: resources as a tree, and system attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...options import Data, describe
from ..graph import Shape, Work
from ..reading import Spot

_VERTEX = ("type", "count", "unit", "with", "label", "exclusive")
_INNER = {"node": ("slot",), "slot": ("core", "gpu")}
SCHEMES = ("after", "afterany", "afterok", "afternotok", "begin-time")
SYSTEM = (
    "duration",
    "preemptible-after",
    "environment",
    "cwd",
    "queue",
    "bank",
    "project",
    "dependencies",
    "constraints",
    "job",
    "shell",
    "files",
)
_CONSTRAINTS = ("properties", "hostlist", "ranks", "and", "or", "not")


@dataclass
class _Tree:
    """What was found on the way down."""

    loose: bool
    counts: dict[str, int] = field(default_factory=dict[str, int])
    exclusive: bool = False
    label: str = ""
    units: dict[str, Data] = field(default_factory=dict[str, Data])


def read_resources(spot: Spot, *, loose: bool = False) -> Work:
    """Work without a command on the one tree of resources; `loose`: cores may lie under a node."""
    items = spot.items(minimum=1)
    if len(items) > 1:
        items[1].refuse("a second tree of resources", "version 1 has one tree: node, slot, core")
    found = _Tree(loose)
    if items:
        _read_vertex(items[0], ("node", "slot"), found)
    nodes, slots = found.counts.get("node"), found.counts.get("slot", 1)
    shape = Shape(
        nodes=nodes,
        slots=slots * (nodes or 1),
        cores_per_slot=found.counts.get("core", 1),
        gpus_per_slot=found.counts.get("gpu", 0),
        exclusive=found.exclusive,
    )
    attributes: dict[str, Data] = {"units": found.units} if found.units else {}
    return Work(argv=(), shape=shape, slot=found.label, attributes=attributes)


def _read_vertex(spot: Spot, allowed: tuple[str, ...], found: _Tree) -> None:
    keys = spot.keys(_VERTEX, ("type", "count"))
    kind = keys["type"].text(*allowed) if "type" in keys else ""
    if not kind:
        return
    if kind in found.counts:
        spot.refuse(f"a second {kind}", f"give all of them in one count of {kind}")
    found.counts[kind] = keys["count"].count() if "count" in keys else 1
    if "exclusive" in keys and keys["exclusive"].flag():
        _read_exclusive(kind, keys["exclusive"], found)
    if "unit" in keys and (unit := keys["unit"].text()):
        found.units[kind] = unit
    _read_label(kind, spot, keys, found)
    _read_inner(kind, spot, keys, found)


def _read_exclusive(kind: str, spot: Spot, found: _Tree) -> None:
    """Whole nodes; what is inside a slot is nobody else's in any case."""
    if kind in {"core", "gpu"}:
        spot.refuse(
            f"a {kind} of a slot is nobody else's anyway", "take it out, or say it of the node"
        )
    elif kind == "slot" and "node" in found.counts:
        spot.refuse("whole nodes are said of the node", "put it beside `type: node`")
    else:
        found.exclusive = True


def _read_label(kind: str, spot: Spot, keys: Mapping[str, Spot], found: _Tree) -> None:
    if kind == "slot" and "label" not in keys:
        spot.inside("label", None).refuse("is missing", "name the slot: `label: task`", at_key=True)
    elif "label" in keys:
        label = keys["label"].text()
        found.label = label if kind == "slot" else found.label


def _read_inner(kind: str, spot: Spot, keys: Mapping[str, Spot], found: _Tree) -> None:
    inner = _INNER.get(kind, ())
    if found.loose and kind == "node":
        inner = ("slot", "core", "gpu")
    if not inner:
        if "with" in keys:
            keys["with"].refuse(f"a {kind} has nothing inside", at_key=True)
    elif "with" not in keys:
        hint = f"say what is inside: {' or '.join(inner)}"
        spot.inside("with", None).refuse("is missing", hint, at_key=True)
    else:
        _read_children(kind, keys["with"], inner, found)


def _read_children(kind: str, spot: Spot, inner: tuple[str, ...], found: _Tree) -> None:
    children = spot.items(minimum=1)
    for child in children:
        _read_vertex(child, inner, found)
    if kind == "slot" and children and "core" not in found.counts and "gpu" in found.counts:
        spot.refuse("a slot has GPUs and no core", "add {type: core, count: 1}")


def label_of(work: Work) -> str:
    """How slots are called: as the file did, or as most people do."""
    return work.slot or "task"


def make_resources(work: Work) -> list[Data]:
    """The tree of a shape."""
    shape = work.shape
    units = work.attributes.get("units")
    said: dict[str, Data] = units if isinstance(units, dict) else {}

    def vertex(kind: str, count: int | None, **more: Data) -> dict[str, Data]:
        unit: dict[str, Data] = {"unit": said[kind]} if kind in said else {}
        return {"type": kind, "count": count, **unit, **more}

    inside: list[Data] = [vertex("core", shape.cores_per_slot)]
    if shape.gpus_per_slot:
        inside.append(vertex("gpu", shape.gpus_per_slot))
    slots = shape.slots_per_node or shape.slots
    slot = vertex("slot", slots, label=label_of(work), **{"with": inside})
    below: list[Data] = [slot]
    top = slot if shape.nodes is None else vertex("node", shape.nodes, **{"with": below})
    if shape.exclusive:
        top["exclusive"] = True
    return [top]


def read_count(spot: Spot, shape: Shape, *, strict: bool) -> Shape:
    """How many tasks run; `strict`: one a slot, or a total that is not more than the slots."""
    keys = spot.keys(("per_slot", "total"))
    if len(keys) != 1:
        spot.refuse("needs either per_slot or total", "write {per_slot: 1}")
        return shape
    if "total" in keys:
        total = keys["total"].count()
        if strict and total > shape.slots:
            hint = f"ask for {total} slots, or for {shape.slots} tasks"
            keys["total"].refuse(f"{total} tasks are more than the {shape.slots} slots", hint)
        return replace(shape, tasks_total=total)
    per_slot = keys["per_slot"].count()
    if strict and per_slot != 1:
        hint = "at version 1 a slot runs one task; ask for more slots"
        keys["per_slot"].refuse(f"{per_slot} is not 1", hint)
    return replace(shape, tasks_per_slot=per_slot)


def make_count(shape: Shape) -> dict[str, Data]:
    """How many tasks run, as it is written."""
    if shape.tasks_total is not None:
        return {"total": shape.tasks_total}
    return {"per_slot": shape.tasks_per_slot}


def read_system(spot: Spot, work: Work) -> tuple[Work, str]:
    """Work with what the system attributes say, and the name of the job; `files` are left to the caller."""
    keys = spot.keys(SYSTEM)
    said: dict[str, Any] = {}
    for name in ("cwd", "queue", "bank", "project"):
        if name in keys:
            said[name] = keys[name].text()
    if "duration" in keys:
        said["duration_s"] = keys["duration"].limit()
    if "environment" in keys:
        said["environment"] = keys["environment"].environment()
    attributes: dict[str, Data] = {**work.attributes, **_read_attributes(keys)}
    if "shell" in keys:
        said |= _read_shell(keys["shell"], attributes)
    name = ""
    if "job" in keys and (inside := keys["job"].keys(("name",))):
        name = inside["name"].text()
    return replace(work, **said, attributes=attributes), name


def _read_attributes(keys: Mapping[str, Spot]) -> dict[str, Data]:
    found: dict[str, Data] = {}
    if "preemptible-after" in keys:
        found["preemptible-after"] = keys["preemptible-after"].seconds()
    if "dependencies" in keys:
        items = keys["dependencies"].items()
        for item in items:
            _check_dependency(item)
        if items:
            found["dependencies"] = keys["dependencies"].plain()
    if "constraints" in keys:
        _check_constraint(keys["constraints"])
        found["constraints"] = keys["constraints"].plain()
    return found


def _check_dependency(spot: Spot) -> None:
    keys = spot.keys(("scheme", "value"), ("scheme", "value"))
    if "scheme" not in keys or "value" not in keys:
        return
    scheme, value = keys["scheme"].text(*SCHEMES), keys["value"]
    if scheme == "begin-time":
        if not isinstance(value.data, int | float) or isinstance(value.data, bool):
            value.refuse(f"{describe(value.data)} is not a time", "write seconds since 1970")
    elif scheme:
        value.text()


def _check_constraint(spot: Spot) -> None:
    keys = spot.keys(_CONSTRAINTS)
    if len(keys) > 1:
        spot.refuse("has more than one operator", 'put them into one: {"and": […, …]}')
    for name, inner in keys.items():
        if name in {"and", "or", "not"}:
            for each in inner.items(minimum=1):
                _check_constraint(each)
        else:
            inner.texts()


def _read_shell(spot: Spot, attributes: dict[str, Data]) -> dict[str, str]:
    """Where output goes; other options of Flux's shell become an attribute."""
    keys = spot.keys(("options",))
    if "options" not in keys:
        return {}
    options = keys["options"].entries()
    found: dict[str, str] = {}
    if "output" in options:
        found = _read_output(options["output"])
        if found:
            del options["output"]
    if options:
        attributes["shell.options"] = {key: inner.plain() for key, inner in options.items()}
    return found


def _read_output(spot: Spot) -> dict[str, str]:
    """The files of stdout and stderr, where nothing else is said of output."""
    streams = {"stdout": "output", "stderr": "error"}
    found: dict[str, str] = {}
    for stream, inner in spot.entries().items():
        data = inner.data
        if stream not in streams or not isinstance(data, dict) or set(data) != {"type", "path"}:
            return {}
        if data["type"] != "file":
            return {}
        found[streams[stream]] = inner.inside("path", data["path"]).text()
    return found


def make_system(work: Work, name: str) -> dict[str, Data]:
    """The system attributes of work; `requires` and `user` are left to the caller."""
    said: dict[str, Data] = {"duration": _number(work.duration_s or 0)}
    for key in ("cwd", "queue", "bank", "project"):
        if (value := getattr(work, key)) is not None:
            said[key] = value
    if work.environment:
        said["environment"] = dict(work.environment)
    for key in ("preemptible-after", "dependencies", "constraints"):
        if key in work.attributes:
            said[key] = work.attributes[key]
    if name:
        said["job"] = {"name": name}
    if options := _make_options(work):
        said["shell"] = {"options": options}
    return said


def _make_options(work: Work) -> dict[str, Data]:
    options = work.attributes.get("shell.options")
    found: dict[str, Data] = dict(options) if isinstance(options, dict) else {}
    files = {"stdout": work.output, "stderr": work.error}
    output: dict[str, Data] = {
        stream: {"type": "file", "path": path} for stream, path in files.items() if path
    }
    if output:
        found["output"] = output
    return found


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value
