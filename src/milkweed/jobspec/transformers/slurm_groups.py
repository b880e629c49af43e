"""A group as one job: its steps as entries for the controller inside, and the tasks that these start."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..graph import WORKING, Batch, Group, Need, Submit
from ..order import sort_steps
from ..steps import Scene
from .groups import cwd_of, environment_of, ids_of, is_once, machines_of, make_join, make_needs
from .slurm_files import Carried
from .slurm_script import NOT_FOR_STEPS, make_label, render_task
from .slurm_shape import render_step
from .task_file import Task

PLAN = "own/plan.json"
CONTROLLER = "own/controller.py"


@dataclass
class _Made:
    """What a group is turned into."""

    scene: Scene
    group: Group
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    groups: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    files: list[Carried] = field(default_factory=list[Carried])


def render_group(group: Group, scene: Scene) -> list[Carried]:
    """The files that a group's job needs: the plan, the tasks it starts, and who carries it out."""
    made = _Made(scene, group)
    _add_level(group, [group], (), made)
    plan = {"items": made.items, "groups": made.groups, "unset": [*NOT_FOR_STEPS]}
    source = Path(__file__).with_name("group_controller.py").read_bytes()
    return [
        Carried(target=CONTROLLER, content=source),
        Carried(target=PLAN, content=json.dumps(plan, indent=1).encode() + b"\n"),
        *made.files,
    ]


def render_controller() -> list[str]:
    """The words that carry out a group, on the first node of its job."""
    return [
        "python3",
        f'"$mw_folder/{CONTROLLER}"',
        f'"$mw_folder/{PLAN}"',
        '"$mw_start"',
        '"$mw_logs"',
    ]


def _add_level(group: Group, around: Sequence[Group], needs: tuple[Need, ...], made: _Made) -> None:
    """All steps of a group; `needs` is what those of a group inside another wait for with it."""
    made.groups[group.id] = _make_group(group, inner=len(around) > 1)
    for step in sort_steps(group.steps):
        all_needs = (*step.needs, *needs)
        if isinstance(step, Group):
            _add_level(step, [*around, step], all_needs, made)
            made.items.append(make_join(step.id, [each.id for each in step.steps], all_needs))
        elif isinstance(step, WORKING):
            _add_work(step, around, all_needs, made)
        else:  # files and secrets are there before the first step
            made.items.append({"id": step.id, "needs": make_needs(all_needs)})


def _make_group(group: Group, *, inner: bool) -> dict[str, Any]:
    shape = group.work.shape
    found: dict[str, Any] = {"cores": None if shape.exclusive else shape.cores, "gpus": shape.gpus}
    # The outermost is the job, whose limit is Slurm's to keep.
    if inner and group.work.duration_s is not None:
        found["limit_s"] = group.work.duration_s
    return found


def _add_work(
    step: Submit | Batch, around: Sequence[Group], needs: Sequence[Need], made: _Made
) -> None:
    ids = ids_of(step)
    task = f"own/task-{len(made.files)}"
    for number, each in enumerate(ids):
        replica = str(number) if len(ids) > 1 else ""
        name = f"{task}.{number}" if replica else task
        content = render_task(_make_task(step, around, replica, made)).encode()
        made.files.append(Carried(target=name, content=content))
        made.items.append(_make_item(step, each, name, around=around, needs=needs, made=made))
    if len(ids) > 1:
        made.items.append(make_join(step.id, ids, needs))


def _make_item(
    step: Submit | Batch,
    item_id: str,
    task: str,
    *,
    around: Sequence[Group],
    needs: Sequence[Need],
    made: _Made,
) -> dict[str, Any]:
    work, shape = step.work, step.work.shape
    once = [
        "/bin/sh",
        "-c",
        "",
        "sh",
        task,
    ]  # the empty word is where the controller puts how tasks start
    found: dict[str, Any] = {
        "id": item_id,
        "needs": make_needs(needs),
        "label": make_label(item_id),
    }
    if is_once(step):
        found["argv"] = once
    else:
        label = shape.tasks > 1 and not work.output
        srun = render_step(shape, label=label, within=made.group.work.shape)
        found["argv"] = ["srun", *srun, *once]
    found["within"] = [group.id for group in around]
    if not (isinstance(step, Submit) and step.local):
        weight = {"alone": True} if shape.exclusive else {"cores": shape.cores}
        found |= {**weight, "gpus": shape.gpus}
    if work.duration_s is not None:
        found["limit_s"] = work.duration_s
    for name in ("output", "error"):
        if said := getattr(work, name):
            found[name] = os.path.join(cwd_of(step, around, made.scene) or "/", said)
    return found


def _make_task(step: Submit | Batch, around: Sequence[Group], replica: str, made: _Made) -> Task:
    return Task(
        run_id=made.scene.run_id,
        step_id=step.id,
        argv=step.work.argv,
        tasks=1 if is_once(step) else step.work.shape.tasks,
        cwd=cwd_of(step, around, made.scene),
        environment=environment_of(step.work, around),
        exports={each.secret: each.export for each in made.scene.secrets(step)},
        replica=replica,
        alone=is_once(step),
        machines=machines_of(step.work, around),
    )
