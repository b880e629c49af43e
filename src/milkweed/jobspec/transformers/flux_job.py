"""Work as jobs of Flux: canonical jobspecs, version 1, that bring all they need along."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import SpecError
from ...options import Data
from ..dialects.flux_v1 import make_document
from ..graph import Auth, Batch, Graph, Group, RunFile, Stage, Step, Submit, Word, Work, Write
from ..plan import make_mark
from ..runs import runs_folder
from ..steps import Scene
from .flux_files import archive_name, make_entries
from .groups import cwd_of, environment_of, ids_of, is_once, machines_of
from .task_file import Place, Task, render_task_file

OWN = ".mw"
"""The folder of a job's own files, beside those of the run."""
TASK = f"{OWN}/task"
EXIT_NOT_DELIVERED = 78
"""A job's own exit code when what it needs is not where it is: EX_CONFIG of sysexits.h."""
JOBSPEC_BYTES = 8 * 2**20
"""What Flux surely takes: what checks jobspecs there ends over those that are much larger."""
_ARGUMENTS = ("{{tmpdir}}", "{{node.id}}", "{{nnodes}}")
_FIRST = (
    'mw_files=$(cd -- "$1" && pwd) || exit 1',
    "case $2 in '' | *[!0-9]*) mw_node=0 ;; *) mw_node=$2 ;; esac",
    "mw_nodes=$3",
    "shift 3",
)
NOTE = (
    "Flux also gets the variables of whoever submits, and the numbers of the jobs that it waits for"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a job starts, and how."""

    words: Sequence[Word]
    files: Mapping[str, bytes]
    """Files of the job's own, by their paths in its folder."""
    options: Mapping[str, Data]
    """What Flux's shell is told."""


def make_files(inside: Sequence[Step], scene: Scene) -> dict[str, Write]:
    """What write steps wrote for any of these steps."""
    return {name: write for step in inside for name, write in scene.files(step).items()}


def find_staged(inside: Sequence[Step], scene: Scene) -> list[Stage]:
    """Files of the submitting machine that were staged for any of these steps."""
    found = {
        each.id: each
        for step in inside
        for each in scene.prepared[step.id]
        if isinstance(each, Stage) and each.path
    }
    return list(found.values())


def make_command(step: Submit | Batch, around: Sequence[Group], scene: Scene) -> Command:
    """What a job of a step starts: a file that holds its words, once for each task or once in all."""
    once = isinstance(step, Batch)
    # Words that Flux fills in go through its hands; all others it must not touch.
    given = step.work.argv if "templates" in step.work.attributes else ()
    task = render_step_task(step, around, scene, argv=() if given else step.work.argv)
    broker = ("flux", "broker") if once else ()
    words = (*broker, "/bin/sh", RunFile(TASK), *_ARGUMENTS, *given)
    options = BROKER if once else _affinity(step.work)
    return Command(words=words, files={TASK: task.encode()}, options=options)


def render_step_task(
    step: Submit | Batch, around: Sequence[Group], scene: Scene, *, argv: Sequence[Word]
) -> str:
    """The file that becomes the command of a step."""
    secrets = {each.secret: each.export for each in scene.secrets(step)}
    once = is_once(step)
    task = Task(
        run_id=scene.run_id,
        step_id=step.id,
        argv=argv,
        tasks=1 if once else step.work.shape.tasks,
        cwd=cwd_of(step, around, scene),
        environment=environment_of(step.work, around),
        exports=secrets,
        machines=machines_of(step.work, around),
    )
    place = Place(
        first=(*_FIRST, *(_find_secrets(scene, list(secrets)) if secrets else ())),
        secrets="$mw_secrets",
        rank="0" if once else "$FLUX_TASK_RANK",
        node="$mw_node",
        nodes="$mw_nodes",
    )
    return render_task_file(task, place)


def folder_of(scene: Scene) -> str:
    """The run's folder, as the machine that submits sees it."""
    return str(runs_folder() / scene.run_id)


def _find_secrets(scene: Scene, names: Sequence[str]) -> list[str]:
    """The lines that find the secrets in the run's folder: they are in no jobspec."""
    folder = f"{folder_of(scene)}/secrets"
    text = f"milkweed: this node does not see the secrets in {folder}"
    refusal = f"{{ printf '%s\\n' {shlex.quote(text)} >&2; exit {EXIT_NOT_DELIVERED}; }}"
    looks = " && ".join(f'[ -r "$mw_secrets/"{shlex.quote(name)} ]' for name in names)
    return [f"mw_secrets={shlex.quote(folder)}", f"{looks} || {refusal}"]


BROKER: Mapping[str, Data] = {
    "per-resource": {"type": "node"},
    "mpi": "none",
    "exit-timeout": "none",
}
"""How a job is an instance of Flux: one broker for each of its nodes."""


def _affinity(work: Work) -> dict[str, Data]:
    """Tasks end by themselves, whatever becomes of others; each has the cores and GPUs of its slot."""
    found: dict[str, Data] = {"exit-timeout": "none"}
    if work.shape.tasks == work.shape.slots and work.shape.slots > 1 and not work.shape.exclusive:
        found["cpu-affinity"] = "per-task"
        if work.shape.gpus_per_slot:
            found["gpu-affinity"] = "per-task"
    return found


def make_jobspec(
    step: Step,
    work: Work,
    command: Command,
    scene: Scene,
    *,
    inside: Sequence[Step] = (),
    within: bool = False,
) -> dict[str, Data]:
    """The jobspec of a job; `within`: it is submitted in the instance of a group."""
    own = replace(
        work, argv=tuple(command.words), environment={}, **_settings(work, scene, within=within)
    )
    own = replace(own, shape=_fit(own))
    cwd = cwd_of(step, scene.around(step), scene)
    own = replace(own, **_place_output(own, cwd))
    writes = [
        Write(id=f"own-{number}", filename=name, content=content)
        for number, (name, content) in enumerate(command.files.items())
    ]
    writes += make_files([step, *inside], scene).values()
    graph = Graph(steps=(), name=job_name(scene.graph, step.id))
    found: Any = make_document(graph, Submit(id="job", work=own), writes)
    system = found["attributes"]["system"]
    _add_options(system, command.options, own)
    _add_staged(system, find_staged([step, *inside], scene), scene)
    user = {**found["attributes"].get("user", {}), "milkweed": make_mark(scene.run_id, step.id)}
    found["attributes"]["user"] = user
    return found


def _settings(work: Work, scene: Scene, *, within: bool) -> dict[str, Any]:
    """What the person says beside the file holds where the file says nothing."""
    if within:
        return {}
    names = ("queue", "bank")
    return {name: getattr(work, name) or scene.settings.get(name) for name in names}


def _fit(work: Work) -> Any:
    """A slot runs one task at version 1; several of them are said by their number."""
    shape = work.shape
    if shape.tasks_per_slot == 1:
        return shape
    return replace(shape, tasks_per_slot=1, tasks_total=shape.tasks)


def _place_output(work: Work, cwd: str | None) -> dict[str, Any]:
    said = {name: getattr(work, name) for name in ("output", "error")}
    return {name: os.path.join(cwd or "/", path) for name, path in said.items() if path}


def _add_options(system: dict[str, Any], options: Mapping[str, Data], work: Work) -> None:
    """The person's own words hold over ours."""
    shell = system.setdefault("shell", {}).setdefault("options", {})
    for name, value in options.items():
        shell.setdefault(name, value)
    if work.output or work.error:
        shell["output"]["mode"] = "append"
        if not work.error:
            shell["output"]["stderr"] = dict(shell["output"]["stdout"])


def _add_staged(system: dict[str, Any], staged: Sequence[Stage], scene: Scene) -> None:
    """Small files travel in the jobspec; Flux brings large ones from an archive."""
    names: list[str] = []
    for each in staged:
        entries = make_entries(each, scene.run_id)
        if entries is None:
            names.append(archive_name(scene.run_id, each.id))
        else:
            system.setdefault("files", {}).update(entries)
    if names:
        system["shell"]["options"]["stage-in"] = {"names": ",".join(names)}


def job_name(graph: Graph, step_id: str) -> str:
    """How the job is called in Flux's lists; a file in Flux's own language says it itself."""
    if graph.dialect == "flux-v1" and graph.name:
        return graph.name
    return f"{graph.name}/{step_id}" if graph.name else step_id


def make_details(step: Step, jobspec: Mapping[str, Data], scene: Scene) -> dict[str, Data]:
    """A job as plain data: what Flux gets, and what the rest of milkweed needs to know."""
    _check_size(jobspec, step.id)
    auths = [each for each in scene.graph.walk() if isinstance(each, Auth)]
    hidden = dict.fromkeys(name for each in auths for name in (each.variable, each.export) if name)
    ids: list[Data] = [*ids_of(step)]
    found: dict[str, Data] = {"note": NOTE, "jobspec": dict(jobspec), "jobs": ids, "prints": ids}
    if hidden:
        found["hidden"] = [*hidden]
    if any(scene.secrets(each) for each in scene.graph.walk()):
        found["folder"] = folder_of(scene)
    return found


def _check_size(jobspec: Mapping[str, Data], step_id: str) -> None:
    size = len(json.dumps(jobspec))
    if size > JOBSPEC_BYTES:
        raise SpecError(
            f"step {step_id!r}: the jobspec has {size:,} bytes, and Flux takes {JOBSPEC_BYTES:,}",
            hint="put large files where the nodes see them, or stage them by their path",
        )
