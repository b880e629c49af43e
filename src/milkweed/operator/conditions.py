"""How a mesh is, as its status tells it: a number, one word and one sentence."""

from __future__ import annotations

import re
from typing import Any

from .ending import count_farewells
from .pods import find_ailment, find_worst
from .reading import Object, items, mapping, number, pick, text
from .reconcile import Trouble, World

ALL_READY = "AllReady"
WAITING = "Waiting"
UPDATING = "Updating"
READY = "Ready"
_MESSAGE = 2000
"""The longest message, in characters: the API server's words may be many, and the definition has a limit."""


def make_status(
    world: World, trouble: Trouble | None, *, pending: bool, now: str
) -> dict[str, Any]:
    """The status of a mesh; `pending` says that something was just written for it."""
    mesh, found = world.mesh, world.own_stateful_set
    trouble = trouble or _judge(world, pending=pending)
    generation = number(mesh, "metadata", "generation")
    status = "True" if trouble is None else "False"
    condition = {
        "type": READY,
        "status": status,
        "reason": ALL_READY if trouble is None else _spell(trouble.reason),
        "message": _describe(world) if trouble is None else trouble.message[:_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": _transition_time(mesh, status, now),
    }
    others = [one for one in items(mesh, "status", "conditions") if text(one, "type") != READY]
    return {
        "observedGeneration": generation,
        "replicas": number(found, "status", "replicas"),
        "readyReplicas": number(found, "status", "readyReplicas"),
        "conditions": [*others, condition],
    }


def is_told(mesh: Object, status: Object) -> bool:
    """Whether the mesh says so already.

    A definition of somebody else may leave out the generation at the top; the condition has it, too.
    """
    seen = mapping(mesh, "status")
    keys = ("replicas", "readyReplicas", "conditions")
    return all(seen.get(key) == status[key] for key in keys)


def read_condition(mesh: Object) -> Any:
    """The condition Ready of a mesh; None when nobody has told it yet."""
    conditions = items(mesh, "status", "conditions")
    return next((one for one in conditions if text(one, "type") == READY), None)


def _transition_time(mesh: Object, status: str, now: str) -> str:
    before = read_condition(mesh)
    return text(before, "lastTransitionTime") if text(before, "status") == status else now


def _spell(reason: str) -> str:
    """A reason as Kubernetes spells them: letters and digits."""
    return re.sub(r"[^A-Za-z0-9_]", "", reason).lstrip("0123456789_") or "Error"


# Is it ready?


def _judge(world: World, *, pending: bool) -> Trouble | None:
    """What keeps the mesh from being ready; None when it is."""
    found = world.own_stateful_set
    if found is None or pending:
        return Trouble(WAITING, f"{_count(world)}; the StatefulSet is being written")
    if told := _find_worst(world):
        return told
    if not _is_current(found):
        return Trouble(WAITING, f"{_count(world)}; the cluster has not yet looked at the change")
    wanted = number(world.mesh, "spec", "replicas")
    if updating := _is_updating(found, wanted):
        return Trouble(UPDATING, f"{_count(world)}; {updating}")
    same = number(found, "status", "replicas") == number(found, "status", "readyReplicas") == wanted
    return None if same else Trouble(WAITING, _count(world))


def _count(world: World) -> str:
    ready = number(world.own_stateful_set, "status", "readyReplicas")
    return f"{ready} of {number(world.mesh, 'spec', 'replicas')} hosts are ready"


def _describe(world: World) -> str:
    """A mesh that is ready; where hosts of it were over and the mesh is not, that is told."""
    over = count_farewells(world.pods)
    return _count(world) + (f"; the lease of {over} was over before" if over else "")


def _is_current(found: Object) -> bool:
    seen = number(found, "status", "observedGeneration")
    return seen >= number(found, "metadata", "generation")


def _is_updating(found: Object, wanted: int) -> str:
    before, after = (
        pick(found, "status", "currentRevision"),
        pick(found, "status", "updateRevision"),
    )
    updated = number(found, "status", "updatedReplicas")
    if not after or before == after or updated >= wanted:
        return ""
    return f"{updated} of them have the new pod template"


def _find_worst(world: World) -> Trouble | None:
    ailments = [found for pod in world.pods if (found := find_ailment(pod, world.warnings))]
    if found := find_worst(ailments):
        worst, count = found
        said = f": {worst.message}" if worst.message else ""
        return Trouble(
            worst.reason, f"{_count(world)}; {worst.reason} at {_where(worst.pod, count)}{said}"
        )
    return _find_missing(world)


def _where(pod: str, count: int) -> str:
    return pod if count == 1 else f"{count} hosts, first {pod}"


def _find_missing(world: World) -> Trouble | None:
    """Pods that the cluster does not even make: of them only events tell."""
    if len(world.pods) >= number(world.mesh, "spec", "replicas"):
        return None
    about = [one for one in world.warnings if text(one, "involvedObject", "kind") == "StatefulSet"]
    if not about:
        return None
    return Trouble(text(about[-1], "reason"), f"{_count(world)}; {text(about[-1], 'message')}")
