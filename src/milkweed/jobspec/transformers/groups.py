"""What all transformers that carry out a group inside one allocation know of its steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import SpecError
from ...options import Data
from ..graph import WORKING, Batch, Group, Need, Step, Submit, Work
from ..steps import Scene
from .requirements import read_machines

_INSIDE = ("write", "stage", "auth", "submit", "batch", "group")


def walk_group(group: Group) -> Iterator[Step]:
    """Every step inside a group, and inside the groups in it."""
    for step in group.steps:
        yield step
        if isinstance(step, Group):
            yield from walk_group(step)


def ids_of(step: Step) -> list[str]:
    """The ids of the jobs of a step: one for each replica."""
    if isinstance(step, Submit) and step.replicas > 1:
        return [f"{step.id}/{number}" for number in range(1, step.replicas + 1)]
    return [step.id]


def labels_of(group: Group) -> Iterator[str]:
    """The ids of all that prints inside a group."""
    for step in walk_group(group):
        if isinstance(step, WORKING):
            yield from ids_of(step)


def is_once(step: Step) -> bool:
    """Whether work is one process, where its group is carried out."""
    return isinstance(step, Batch) or (isinstance(step, Submit) and step.local)


def cwd_of(step: Step, around: Sequence[Group], scene: Scene) -> str | None:
    """Where work runs: what it says, or a group around it; None is the job's own folder."""
    works: list[Work] = [group.work for group in around]
    works += [step.work] if isinstance(step, (*WORKING, Group)) else []
    said = [work.cwd for work in works if work.cwd is not None]
    if said:
        return said[-1]
    return None if scene.has_folder(step) else os.getcwd()


def environment_of(work: Work, around: Sequence[Group]) -> dict[str, str | None]:
    """The variables of work: those of the groups around it, then its own."""
    found: dict[str, str | None] = {}
    for each in (*(group.work for group in around), work):
        found |= each.environment
    return found


def machines_of(work: Work, around: Sequence[Group]) -> tuple[str, ...]:
    """What the machines of work must call themselves; what a group requires holds for all inside."""
    found: list[Data] = []
    for each in (*(group.work for group in around), work):
        requires = each.attributes.get("requires")
        found += requires if isinstance(requires, list) else []
    return read_machines(found)


def make_needs(needs: Sequence[Need]) -> list[list[str]]:
    """What an entry of the controller waits for."""
    return [[need.id, need.kind] for need in dict.fromkeys(needs)]


def make_join(step_id: str, inner: Sequence[str], needs: Sequence[Need]) -> dict[str, Any]:
    """The entry that adds up others."""
    waits = [*needs, *(Need(each, "afterany") for each in inner)]
    return {"id": step_id, "needs": make_needs(waits), "inner": [*inner]}


def check_output(work: Work, cwd: str | None) -> None:
    """Refuse a file that lies in the job's folder: it would be gone with that."""
    for name in ("output", "error"):
        path = getattr(work, name)
        if path is not None and cwd is None and not os.path.isabs(path):
            hint = "give a whole path, or a cwd; without either it lies in the job's own folder"
            raise SpecError(f"{name}: {path!r} would be removed with the job", hint=hint)


def check_around(step: Submit | Batch, scene: Scene) -> None:
    """Refuse work that its groups have no room for, or whose output would be lost."""
    around = scene.around(step)
    for group in around:
        check_inside(step, step.work, group)
    check_output(step.work, cwd_of(step, around, scene))


def check_group(group: Group) -> None:
    """Refuse what could not be done inside one allocation."""
    if group.work.output or group.work.error:
        raise SpecError("output: a group prints nothing", hint="say it of the steps inside")
    for inner in group.steps:
        if inner.kind not in _INSIDE:
            raise SpecError(f"{inner.id!r} cannot be done inside an allocation")


def check_inside(step: Step, work: Work, group: Group) -> None:
    """Refuse a step that asks for more than the group around it has: it would wait for ever."""
    for name in ("queue", "bank"):
        if getattr(work, name) is not None:
            raise SpecError(f"{name}: belongs to the group {group.id!r}, which is the allocation")
    have, want = group.work.shape, work.shape
    limits = [("nodes", want.nodes or 1, have.nodes or have.slots), ("GPUs", want.gpus, have.gpus)]
    if not have.exclusive:
        limits.append(("cores", want.cores, have.cores))
    if want.exclusive and not have.exclusive:
        raise SpecError(f"{step.id!r} asks for whole nodes, and {group.id!r} has parts of nodes")
    for what, asked, there in limits:
        if asked > there:
            raise SpecError(f"{asked} {what} are asked for, and the group {group.id!r} has {there}")
