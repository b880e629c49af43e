"""The named resources of the compspec language 0.1: nodes, slots, cores and GPUs, never confused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...options import Data
from ..graph import Shape
from ..reading import Spot

KEYS = ("type", "count", "replicas", "with", "requires", "attributes", "schedule")
_SAME = {"cores": "core", "gpus": "gpu", "nodes": "node", "slots": "slot"}
_INSIDE = {"node": ("slot", "core", "gpu"), "slot": ("core", "gpu"), "core": (), "gpu": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A named resource: a shape, and what was said beside it."""

    shape: Shape
    requires: tuple[Data, ...] = ()
    attributes: Spot | None = None
    schedule: bool = True


@dataclass
class _Counts:
    """What was found on the way down."""

    said: dict[str, int] = field(default_factory=dict[str, int])
    anywhere: bool = False
    """True when slots may lie on any nodes."""
    requires: list[Data] = field(default_factory=list[Data])


def read_named(spot: Spot) -> dict[str, Resource]:
    """All named resources."""
    found: dict[str, Resource] = {}
    for name, inner in spot.entries().items():
        inner.inside(name, name).name()
        found[name] = _read_resource(inner)
    return found


def _read_resource(spot: Spot) -> Resource:
    counts = _Counts()
    keys = _read_vertex(spot, ("node", "slot", "core", "gpu"), counts)
    return Resource(
        shape=_make_shape(spot, counts),
        requires=tuple(counts.requires),
        attributes=keys.get("attributes"),
        schedule="schedule" not in keys or keys["schedule"].flag(),
    )


def _read_vertex(spot: Spot, allowed: tuple[str, ...], counts: _Counts) -> Mapping[str, Spot]:
    keys = spot.keys(KEYS, ("type",))
    if "type" not in keys:
        return keys
    kind = _read_kind(keys["type"], allowed)
    if not kind:
        return keys
    if kind in counts.said:
        spot.refuse(f"a second {kind}", f"give all of them in one count of {kind}")
    _read_count(kind, spot, keys, counts)
    if "requires" in keys:
        counts.requires += read_requirements(keys["requires"])
    if "with" in keys:
        children = keys["with"].items(minimum=1)
        if not _INSIDE[kind]:
            keys["with"].refuse(f"a {kind} has nothing inside", at_key=True)
        for child in children if _INSIDE[kind] else ():
            inner = _read_vertex(child, _INSIDE[kind], counts)
            for key in ("attributes", "schedule"):
                if key in inner:
                    inner[key].refuse("belongs to the resource itself, not inside it", at_key=True)
    return keys


def _read_kind(spot: Spot, allowed: tuple[str, ...]) -> str:
    if isinstance(spot.data, str) and spot.data in _SAME:
        spot = Spot(_SAME[spot.data], spot.path, spot.problems)
    return spot.text(*allowed)


def _read_count(kind: str, spot: Spot, keys: Mapping[str, Spot], counts: _Counts) -> None:
    if "replicas" not in keys:
        counts.said[kind] = keys["count"].count() if "count" in keys else 1
        return
    replicas = keys["replicas"].count()
    if "count" in keys:
        keys["replicas"].refuse("a resource has either count or replicas", at_key=True)
    elif kind not in {"node", "slot"}:
        keys["replicas"].refuse(f"a {kind} has a count", "write count", at_key=True)
    elif kind == "node" and "with" not in keys:
        hint = "say which cores: with: [{type: core, count: 4}]"
        spot.refuse("replicas of a node are slots anywhere, and need to know what is inside", hint)
    counts.anywhere |= kind == "node"
    counts.said["slot"] = replicas


def _make_shape(spot: Spot, counts: _Counts) -> Shape:
    said = counts.said
    nodes = None if counts.anywhere else said.get("node")
    slots = said.get("slot", 1)
    with spot.problems.at(spot.path):
        return Shape(
            nodes=nodes,
            slots=slots * (nodes or 1),
            cores_per_slot=said.get("core", 1),
            gpus_per_slot=said.get("gpu", 0),
            exclusive=set(said) == {"node"},
        )
    return Shape()


def read_requirements(spot: Spot) -> list[Data]:
    """What a place must have: a list of mappings of texts."""
    found: list[Data] = []
    for item in spot.items():
        texts: dict[str, Data] = {key: inner.text() for key, inner in item.entries().items()}
        found.append(texts)
    return found


def make_resource(shape: Shape, requires: Data, lacking: list[str]) -> dict[str, Data]:
    """A shape as a named resource."""
    found = _make_vertex(shape, lacking)
    if shape.tasks_total is not None or shape.tasks_per_slot != 1:
        lacking.append(f"{shape.tasks} tasks in {shape.slots} slots: a slot runs one task")
    if requires:
        found["requires"] = requires
    return found


def _make_vertex(shape: Shape, lacking: list[str]) -> dict[str, Any]:
    inside: list[Data] = [{"type": "core", "count": shape.cores_per_slot}]
    if shape.gpus_per_slot:
        inside.append({"type": "gpu", "count": shape.gpus_per_slot})
    if shape.exclusive:
        whole = shape.nodes == shape.slots and shape.cores_per_slot == 1 and not shape.gpus
        if not whole:
            lacking.append("exclusive nodes together with what is used of them")
        return {"type": "node", "count": shape.nodes or 1}
    if shape.nodes is None:
        return {"type": "slot", "count": shape.slots, "with": inside}
    if shape.slots_per_node == 1:
        return {"type": "node", "count": shape.nodes, "with": inside}
    slot: Data = {"type": "slot", "count": shape.slots_per_node, "with": inside}
    return {"type": "node", "count": shape.nodes, "with": [slot]}
