"""From what is wanted and seen to what is done: a decision made by pure functions."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..kube.resources import SERVICES, STATEFUL_SETS, Resource
from .compare import find_differences
from .objects import (
    HASH,
    PASSED_ON,
    hash_template,
    is_of_earlier_mesh,
    is_of_mesh,
    make_service,
    make_stateful_set,
    parse_passed_on,
)
from .reading import Object, is_leaving, mapping, name_of, pick, text

_SHOWN = 3
"""How many differences an event names."""
_FIXED = {
    "Service": ("clusterIP",),
    "StatefulSet": ("serviceName", "selector", "podManagementPolicy"),
}
"""What the cluster lets nobody change."""
_CHANGED = {
    "Service": ("selector", "ports", "publishNotReadyAddresses"),
    "StatefulSet": ("replicas", "updateStrategy"),
}


@dataclass(frozen=True, slots=True)
class World:
    """A mesh, and what the cluster has of it now."""

    mesh: Object
    stateful_set: Object | None = None
    service: Object | None = None
    pods: Sequence[Object] = ()
    warnings: Sequence[Object] = ()
    """Events of the cluster about its StatefulSet and its pods, the newest last."""

    @property
    def own_stateful_set(self) -> Object | None:
        """The StatefulSet, unless it is somebody else's."""
        found = self.stateful_set
        return found if found is not None and is_of_mesh(found, self.mesh) else None


@dataclass(frozen=True, slots=True)
class Action:
    """One write, and how it is told."""

    resource: Resource
    body: Object
    reason: str
    """`Created`, `Adopted`, `Scaled`, `TemplateChanged` or `Repaired`."""
    message: str
    wanted: str
    """A word for what is wanted; the same again means that somebody undid it."""
    seen: str = ""
    """A word for what is there; the same again means that the write changed nothing."""

    @property
    def creates(self) -> bool:
        """Whether there is no such object yet."""
        return self.reason == "Created"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing can be done at the moment."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, or why nothing is."""

    actions: Sequence[Action] = ()
    trouble: Trouble | None = None


def decide(world: World) -> Decision:
    """What must be written so that the cluster is as the mesh says; nothing when it is."""
    if is_leaving(world.mesh):
        return Decision()
    pairs = [
        (SERVICES, make_service(world.mesh), world.service),
        (STATEFUL_SETS, make_stateful_set(world.mesh, world.stateful_set), world.stateful_set),
    ]
    for _resource, wanted, seen in pairs:
        if seen is not None and (trouble := _find_trouble(world.mesh, wanted, seen)):
            return Decision(trouble=trouble)
    actions = (_compare(resource, wanted, seen) for resource, wanted, seen in pairs)
    return Decision(actions=[action for action in actions if action is not None])


# What must not be touched


def _find_trouble(mesh: Object, wanted: Object, seen: Object) -> Trouble | None:
    what = f"{wanted['kind']} {name_of(seen)}"
    if is_of_earlier_mesh(seen, mesh) or (is_of_mesh(seen, mesh) and is_leaving(seen)):
        return Trouble("Waiting", f"{what} of before is still being removed")
    if not is_of_mesh(seen, mesh):
        return Trouble(
            "Conflict",
            f"{what} is there already and does not belong to this mesh; "
            "it is left alone. Delete it, or give the mesh another name",
        )
    if fixed := _find_fixed(wanted, seen):
        return Trouble(
            "Conflict",
            f"{what} has another {fixed}, which cannot be changed. Delete it, and it is made anew",
        )
    return None


def _find_fixed(wanted: Object, seen: Object) -> str:
    for field in _FIXED[wanted["kind"]]:
        ours, theirs = pick(wanted, "spec", field), pick(seen, "spec", field)
        if next(find_differences(theirs, ours, f"spec.{field}"), None):
            return f"spec.{field}"
    return ""


# What must be written


def _compare(resource: Resource, wanted: Object, seen: Object | None) -> Action | None:
    mark = hash_template(wanted)
    if seen is None:
        message = f"made {wanted['kind']} {name_of(wanted)}"
        return Action(resource, wanted, "Created", message, mark)
    differences = list(islice(_differences(seen, wanted), _SHOWN))
    if not differences:
        return None
    reason, message = _explain(seen, wanted, differences)
    known = {key: pick(seen, "metadata", key) for key in ("labels", "annotations")}
    found = hash_template([known, pick(seen, "spec")])
    return Action(resource, merge(seen, wanted), reason, message, mark, found)


def _differences(seen: Object, wanted: Object) -> Iterator[str]:
    kind = wanted["kind"]
    for part in ("labels", "annotations"):
        path = ("metadata", part)
        yield from find_differences(pick(seen, *path), mapping(wanted, *path), ".".join(path))
        yield from (f"metadata.{part}.{key}" for key in sorted(_dropped(seen, wanted, part)))
    for field in _CHANGED[kind]:
        yield from find_differences(
            pick(seen, "spec", field), wanted["spec"][field], f"spec.{field}"
        )
    if kind == "Service" and mapping(seen, "spec", "selector") != wanted["spec"]["selector"]:
        yield "spec.selector"
    template = pick(wanted, "spec", "template")
    yield from find_differences(pick(seen, "spec", "template"), template or {}, "spec.template")


def _dropped(seen: Object, wanted: Object, part: str) -> set[str]:
    """What came from the mesh and is no longer there."""
    ours = set(mapping(wanted, "metadata", part))
    return (parse_passed_on(seen)[part] & set(mapping(seen, "metadata", part))) - ours


def _hash_of(found: Object) -> str:
    return text(found, "metadata", "annotations", HASH)


def _explain(seen: Object, wanted: Object, differences: Sequence[str]) -> tuple[str, str]:
    what = f"{wanted['kind']} {name_of(wanted)}"
    if _hash_of(wanted) and not text(seen, "metadata", "annotations", PASSED_ON):
        return "Adopted", f"{what} was made by another operator and is kept from now on"
    if _hash_of(seen) != _hash_of(wanted):
        return "TemplateChanged", f"{what} gets another pod template"
    if "spec.replicas" in differences:
        before, after = pick(seen, "spec", "replicas"), pick(wanted, "spec", "replicas")
        return "Scaled", f"{what} goes from {before} to {after} hosts"
    return "Repaired", f"{what} is put right: {', '.join(differences)}"


def merge(seen: Object, wanted: Object) -> dict[str, Any]:
    """The object as it should be; what others have added to it stays.

    A template that is as it was asked for is not touched, since every change of it restarts hosts.
    """
    made = copy.deepcopy(dict(seen))
    metadata = made["metadata"]
    for part in ("labels", "annotations"):
        dropped = _dropped(seen, wanted, part)
        kept = {k: v for k, v in mapping(seen, "metadata", part).items() if k not in dropped}
        metadata[part] = kept | mapping(wanted, "metadata", part)
    for field in _CHANGED[wanted["kind"]]:
        made["spec"][field] = copy.deepcopy(wanted["spec"][field])
    if _needs_template(seen, wanted):
        made["spec"]["template"] = copy.deepcopy(wanted["spec"]["template"])
    return made


def _needs_template(seen: Object, wanted: Object) -> bool:
    template = pick(wanted, "spec", "template")
    if template is None:
        return False
    if _hash_of(seen) != _hash_of(wanted):
        return True
    return next(find_differences(pick(seen, "spec", "template"), template), None) is not None
