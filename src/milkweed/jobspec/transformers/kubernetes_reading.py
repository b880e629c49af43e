"""Steps of a graph as what is made of them in a cluster; what a cluster could not keep is refused. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import SpecError
from ...labels import check_label_value
from ...options import Data
from ..graph import Auth, Batch, Group, RunFile, Stage, Step, Submit, Word, Work, Write
from ..plan import Action, make_source, make_word
from ..steps import Scene
from . import local
from .kubernetes_files import File, read_files
from .kubernetes_objects import RUN, Layout, Task, lay_out, make_objects
from .kubernetes_settings import Settings, read_own
from .requirements import read_machines

_SETTABLE = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_IMAGE = "say which container image has your program: -s image=…"


# What is refused


def check_work(step: Submit | Batch, scene: Scene) -> None:
    """Refuse work that could not be done as it is said."""
    if step.parent is not None:
        check_inside(step, scene)
        return
    check_place(step.work, scene)
    check_variables(step.work.environment, _exports(scene.secrets(step)))
    if step.work.output:
        check_output(step.work.output, scene)
    read_files(scene.prepared[step.id])


def check_output(path: str, scene: Scene) -> None:
    """Refuse a file that cannot be written here; a folder that a local step could still make is believed."""
    if "{{" in path:
        raise SpecError("output: only Flux fills in {{…}}", hint="give a plain path")
    if any(isinstance(each, Submit) and each.local for each in scene.graph.steps):
        return
    whole = os.path.join(os.getcwd(), path)
    folder = os.path.dirname(whole)
    if os.path.isdir(whole) or not os.path.isdir(folder):
        what = "is a folder" if os.path.isdir(whole) else "lies in no folder of this machine"
        raise SpecError(
            f"output: {path!r} {what}", hint="the file is written where the run is driven"
        )
    if not os.access(whole if os.path.exists(whole) else folder, os.W_OK):
        raise SpecError(f"output: {path!r} may not be written", hint="name a file of your own")


def check_place(work: Work, scene: Scene) -> Settings:
    """Refuse work without an image, or with requirements that a cluster does not know."""
    local.check_cwd(work)
    own = read_own(scene.settings, work.attributes.get("user"))
    if not own.image:
        raise SpecError("no image is said in which it could run", hint=NO_IMAGE)
    if work.queue is not None:
        check_label_value(work.queue, field="queue")
    read_arch(work)
    return own


def check_variables(environment: Mapping[str, str | None], exports: Sequence[str]) -> None:
    """Refuse names that a container, or the shell that takes them away, cannot have."""
    for name, value in environment.items():
        pattern = _IDENTIFIER if value is None else _SETTABLE
        if not pattern.fullmatch(name):
            way = "be taken away" if value is None else "be set"
            raise SpecError(f"environment: {name!r} cannot {way} in a container")
    for name in exports:
        if not _IDENTIFIER.fullmatch(name):
            raise SpecError(f"export: {name!r} is no name of a variable")


def _exports(secrets: Sequence[Auth]) -> list[str]:
    return [each.export for each in secrets if each.export]


def read_arch(work: Work) -> str | None:
    """The kind of machine that is required, as nodes are labelled: by the last of its names."""
    names = read_machines(work.attributes.get("requires"))
    return names[-1] if names else None


_OF_GROUP = ("output", "error", "queue", "requires", "user")


def check_inside(step: Submit | Batch | Group, scene: Scene) -> None:
    """Refuse what a step inside a group cannot have: it is a process of the pod that is the group."""
    around = scene.around(step)[0]
    for name in _OF_GROUP:
        if name in step.work.said():
            hint = f"say it of the group {around.id!r}, or take the step out of it"
            raise SpecError(f"{name}: a step inside a group cannot have its own", hint=hint)
    local.check_cwd(step.work)
    ours, theirs = step.work.shape, around.work.shape
    _check_one_node(ours.nodes)
    for what in ("cores", "gpus"):
        if getattr(ours, what) > getattr(theirs, what):
            said = f"{getattr(ours, what)} {what} are more than the {getattr(theirs, what)}"
            raise SpecError(f"{said} of its group {around.id!r}")


def _check_one_node(nodes: int | None) -> None:
    if nodes is not None and nodes > 1:
        raise SpecError(
            f"nodes: a group is one pod here, and cannot be on {nodes} nodes",
            hint="take the steps out of the group: each is a Job of its own then",
        )


def check_group(step: Group, scene: Scene) -> None:
    """Refuse a group that is not one pod."""
    if step.parent is not None:
        check_inside(step, scene)
        return
    _check_one_node(step.work.shape.nodes)
    check_place(step.work, scene)
    if step.work.output:
        raise SpecError("output: a group prints nothing", hint="take the step out that prints")
    inside = list(_walk(step))
    check_variables({}, _exports([each for each in inside if isinstance(each, Auth)]))
    _check_files(inside)
    read_files(_prepared(step, scene))


def _check_files(inside: Sequence[Step]) -> None:
    """All files of a group are there from its beginning, so a name has one content."""
    found: dict[str, bytes] = {}
    for each in inside:
        if (
            isinstance(each, Write)
            and found.setdefault(each.filename, each.content) != each.content
        ):
            hint = "give each of them a name of its own"
            raise SpecError(f"the file {each.filename!r} is written twice in this group", hint=hint)


# What is made


def make_details(
    step: Submit | Batch, scene: Scene, *, replica: int | None = None
) -> dict[str, Data]:
    """All that is needed to do one work: its objects, and what to do with their output."""
    work = step.work
    layout = lay_out(work.shape, once=isinstance(step, Batch))
    cwd = work.cwd or (RUN if scene.has_folder(step) else None)
    secrets = {each.secret: each.export for each in scene.secrets(step)}
    argv = [_render_word(word) for word in work.argv]
    files = read_files(scene.prepared[step.id])
    parts = [_make_crowd(step, cwd, secrets)] if layout.crowded else []
    task = _make_task(step, scene, layout, files, secrets)
    task = replace(task, argv=argv, cwd=cwd, parts=parts, replica=replica)
    found: dict[str, Data] = {"argv": [make_word(word) for word in work.argv]}
    found |= {"tasks": layout.tasks, "pods": layout.pods}
    if work.output:
        found["output"] = work.output
    if parts:
        found["labels"] = [f"{step.id}.{rank}" for rank in range(layout.tasks)]
    return {**found, "objects": list[Data](make_objects(task))}


def _make_task(
    step: Submit | Batch | Group,
    scene: Scene,
    layout: Layout,
    files: Sequence[File],
    secrets: Mapping[str, str],
) -> Task:
    """What a work and a group have in common."""
    work = step.work
    return Task(
        run_id=scene.run_id,
        step_id=step.id,
        layout=layout,
        settings=read_own(scene.settings, work.attributes.get("user")),
        environment=work.environment,
        files=files,
        secrets=secrets,
        duration_s=work.duration_s,
        queue=work.queue,
        arch=read_arch(work),
    )


def _render_word(word: Word) -> str:
    return f"{RUN}/{word.name}" if isinstance(word, RunFile) else word


def _make_crowd(
    step: Submit | Batch, cwd: str | None, secrets: Mapping[str, str]
) -> dict[str, Data]:
    """Several tasks in each pod, as what runs inside is told."""
    shape = step.work.shape
    part: dict[str, Data] = {"id": step.id, "kind": "work", "needs": []}
    part |= {"argv": [_render_word(word) for word in step.work.argv], "cwd": cwd}
    part |= {"tasks": shape.tasks, "slots": shape.slots, "cores_per_slot": shape.cores_per_slot}
    part["gpus_per_slot"] = shape.gpus_per_slot
    part["environment"] = dict[str, Data](step.work.environment)
    return {**part, "secrets": dict[str, Data](secrets)}


# Groups


def _walk(group: Group) -> Iterator[Step]:
    for step in group.steps:
        yield step
        if isinstance(step, Group):
            yield from _walk(step)


def _prepared(group: Group, scene: Scene) -> list[Step]:
    inside = [each for each in _walk(group) if isinstance(each, Write | Stage | Auth)]
    return [*scene.prepared[group.id], *inside]


def make_group(step: Group, scene: Scene) -> dict[str, Data]:
    """A group as one pod in which its steps are processes."""
    prepared = _prepared(step, scene)
    secrets = {each.secret: each.export for each in prepared if isinstance(each, Auth)}
    shape = step.work.shape
    layout = Layout(pods=1, tasks=1, cores=shape.cores, gpus=shape.gpus)
    idle = {each.id for each in _walk(step) if isinstance(each, Submit) and each.local}
    actions = list(local.Transformer().render_steps(step.steps, scene))
    parts = [_make_part(action, step.id, idle) for action in actions]
    task = _make_task(step, scene, layout, read_files(prepared), secrets)
    labels = [label for part in parts for label in labels_of(part)]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        hint = "rename one of them: tasks are told by a dot and their number"
        raise SpecError(f"two steps of {step.id!r} would print as {twice[0]!r}", hint=hint)
    inside = [make_source(each) for each in _walk(step) if isinstance(each, Auth)]
    found: dict[str, Data] = {"argv": ["/bin/sh"], "tasks": 1, "pods": 1}
    found |= {"labels": list[Data](labels or [step.id])}
    if inside:
        found["auth"] = list[Data](inside)
    return {**found, "objects": list[Data](make_objects(replace(task, parts=parts)))}


def _make_part(action: Action, group: str, idle: set[str]) -> dict[str, Data]:
    """One step inside, as what runs there is told; it is told all that the local transformer would do."""
    details: Mapping[str, Any] = action.details
    needs: list[Data] = [{"id": need.id, "kind": need.kind} for need in action.needs]
    part: dict[str, Data] = {"id": action.id, "kind": "done", "needs": needs}
    if action.kind == "group":
        return {**part, "kind": "join", "steps": details["steps"]}
    if "argv" not in details:
        return part
    kept = ("tasks", "slots", "cores_per_slot", "gpus_per_slot", "duration_s", "environment")
    part |= {key: details[key] for key in (*kept, "secrets", "replica") if key in details}
    if idle & {action.id, action.id.rpartition("/")[0]}:
        part |= {"cores_per_slot": 0, "gpus_per_slot": 0}
    within = {key: value for key, value in details.get("within", {}).items() if key != group}
    part |= {"within": within} if within else {}
    words = [word if isinstance(word, str) else f"{RUN}/{word['file']}" for word in details["argv"]]
    cwd = {"run": RUN, "here": None}.get(details["cwd"], details["cwd"])
    return {**part, "kind": "work", "argv": list[Data](words), "cwd": cwd}


def labels_of(part: Mapping[str, Any]) -> list[str]:
    """What stands before the lines of a part."""
    if part["kind"] != "work":
        return []
    if part["tasks"] == 1:
        return [part["id"]]
    return [f"{part['id']}.{rank}" for rank in range(part["tasks"])]


def log_files(folder: str, step_id: str, labels: Sequence[str]) -> dict[str, Data]:
    """Where what each label of a step printed is kept."""
    return {label: os.path.join(folder, local.log_name(step_id, label)) for label in labels}
