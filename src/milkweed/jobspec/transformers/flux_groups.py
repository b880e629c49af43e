"""A group as one job of Flux, an instance of its own: entries for the controller, jobspecs for the instance."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...options import Data
from ..graph import WORKING, Batch, Group, RunFile, Stage, Step, Submit
from ..order import sort_steps
from ..steps import Scene
from .flux_files import archive_name, make_entries
from .flux_job import (
    BROKER,
    OWN,
    TASK,
    Command,
    find_staged,
    make_command,
    make_jobspec,
    render_step_task,
)
from .groups import cwd_of, ids_of, make_join, make_needs, walk_group

PLAN = f"{OWN}/plan.json"
CONTROLLER = f"{OWN}/controller.py"
INSIDE = f"{OWN}/inside.py"


@dataclass
class _Made:
    """What a group is turned into."""

    scene: Scene
    around: list[Group]
    """The group itself last."""
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def add_file(self, stem: str, ending: str, content: bytes) -> str:
        """Carry one more file; its name."""
        name = f"{OWN}/{stem}-{len(self.files)}{ending}"
        self.files[name] = content
        return name


def make_group(group: Group, scene: Scene, *, within: bool) -> dict[str, Data]:
    """The jobspec of a group; `within`: of one inside another."""
    made = _Made(scene, [*scene.around(group), group])
    for step in sort_steps(group.steps):
        _add_step(step, made)
    inside = list(walk_group(group))
    source = Path(__file__).parent
    files = {
        TASK: _render_task(find_staged(inside, scene), scene).encode(),
        CONTROLLER: (source / "group_controller.py").read_bytes(),
        INSIDE: (source / "flux_inside.py").read_bytes(),
        PLAN: json.dumps({"items": made.items, "groups": {}}, indent=1).encode() + b"\n",
        **made.files,
    }
    words = ("flux", "broker", "/bin/sh", RunFile(TASK), "{{tmpdir}}", "{{nnodes}}")
    command = Command(words=words, files=files, options=BROKER)
    return make_jobspec(group, group.work, command, scene, inside=inside, within=within)


def _render_task(staged: Sequence[Stage], scene: Scene) -> str:
    """What the first broker of a group starts: large files go on to the instance's own jobs."""
    lines = ['cd -- "$1" || exit 1']
    need = "milkweed: a group needs python3 on its first node"
    lines.append(f"command -v python3 >/dev/null || {{ echo {shlex.quote(need)} >&2; exit 1; }}")
    for each in staged:
        if make_entries(each, scene.run_id) is None:
            name = shlex.quote(f"--name={archive_name(scene.run_id, each.id)}")
            path = shlex.quote(Path(os.path.expanduser(each.path)).name)
            lines.append(f"flux archive create {name} -- {path} || exit 1")
    return "\n".join([*lines, f'exec python3 {CONTROLLER} {PLAN} "$2" ""']) + "\n"


def _add_step(step: Step, made: _Made) -> None:
    if isinstance(step, Group):
        jobspec = make_group(step, made.scene, within=True)
        _add_job(step, step.id, jobspec, made, shown="-")
    elif isinstance(step, Submit) and step.local:
        _add_process(step, made)
    elif isinstance(step, WORKING):
        _add_jobs(step, made)
    else:  # files and secrets are there before the first step
        made.items.append({"id": step.id, "needs": make_needs(step.needs)})


def _add_jobs(step: Submit | Batch, made: _Made) -> None:
    command = make_command(step, made.around, made.scene)
    jobspec = make_jobspec(step, step.work, command, made.scene, within=True)
    ids = ids_of(step)
    for number, each in enumerate(ids):
        own: Any = json.loads(json.dumps(jobspec))
        if len(ids) > 1:
            own["attributes"]["system"]["environment"] = {"JOBSPEC_REPLICA": str(number)}
        _add_job(step, each, own, made, shown=each)
    if len(ids) > 1:
        made.items.append(make_join(step.id, ids, step.needs))


def _add_job(
    step: Step, item_id: str, jobspec: dict[str, Data], made: _Made, *, shown: str
) -> None:
    name = made.add_file("job", ".json", json.dumps(jobspec).encode() + b"\n")
    argv = ["python3", INSIDE, shown, name]
    made.items.append({"id": item_id, "needs": make_needs(step.needs), "argv": argv})


def _add_process(step: Submit, made: _Made) -> None:
    """One process beside the controller."""
    content = render_step_task(step, made.around, made.scene, argv=step.work.argv)
    task = made.add_file("task", "", content.encode())
    # The empty word is where the controller puts how many nodes there are.
    words = ["/bin/sh", task, ".", "0", ""]
    found: dict[str, Any] = {"id": step.id, "needs": make_needs(step.needs)}
    cwd = cwd_of(step, made.around, made.scene) or "/"
    for name in ("output", "error"):
        if said := getattr(step.work, name):
            found[name] = os.path.join(cwd, said)
    how = "--run-output" if step.work.error else "--run"
    found["argv"] = words if step.work.output else ["python3", INSIDE, how, step.id, *words]
    if step.work.duration_s is not None:
        found["limit_s"] = step.work.duration_s
    made.items.append(found)
