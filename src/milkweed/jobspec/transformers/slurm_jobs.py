"""A job of Slurm as plain data: the command line, the script, and what else must be known of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import SpecError
from ...options import Data
from ..graph import Auth, Stage, Step, Work
from ..plan import make_mark
from ..runs import Run, runs_folder
from ..steps import Scene
from .slurm_files import SCRIPT_BYTES, Carried, pack, pack_for
from .slurm_script import Body, make_label, render_script
from .slurm_shape import describe_rounding, job_name, render_allocation, render_settings

_FIXED = (
    *("--chdir=/", "--input=/dev/null", "--output=/dev/null", "--export=ALL"),
    *("--no-requeue", "--kill-on-invalid-dep=yes"),
)
"""The script says itself where it is and where output goes. It runs once, and never waits for what cannot come."""


def make_files(inside: Sequence[Step], scene: Scene) -> list[Carried]:
    """What write steps wrote for any of these steps."""
    writes = {name: write for step in inside for name, write in scene.files(step).items()}
    return [
        Carried(target=f"files/{name}", content=write.content, executable=write.executable)
        for name, write in writes.items()
    ]


def parcel_name(step: Stage) -> str:
    """How the archive of a staged file is called in the run's folder."""
    return f"{make_label(step.id)}.tar.gz"


def pack_staged(step: Stage, run_id: str) -> bytes | None:
    """A staged file of this machine, if it may travel in the script."""
    return pack_for(run_id, os.path.expanduser(step.path))


def make_job(
    inside: Sequence[Step],
    step_id: str,
    work: Work,
    scene: Scene,
    *,
    files: Sequence[Carried],
    lines: Sequence[str],
    replicas: int = 1,
) -> dict[str, Data]:
    """A job as plain data: what sbatch is told and reads, and what the rest of milkweed needs to know."""
    staged = {
        each.id: each
        for step in inside
        for each in scene.prepared[step.id]
        if isinstance(each, Stage) and each.path
    }
    packed = {each: pack_staged(each, scene.run_id) for each in staged.values()}
    parcels = [parcel_name(each) for each, content in packed.items() if content is None]
    secrets = {each.secret: each.export for step in inside for each in scene.secrets(step)}
    folder = str(runs_folder() / scene.run_id)
    body = Body(
        run_id=scene.run_id,
        step_id=step_id,
        record=folder,
        work=lines,
        files=files,
        staged=[content for content in packed.values() if content is not None],
        parcels=parcels,
        secrets=[*secrets],
    )
    script = render_script(body)
    _check_size(script, step_id)
    found: dict[str, Data] = {"command": _make_command(step_id, work, scene, replicas)}
    if said := describe_rounding(work.duration_s):
        found["note"] = said
    found |= {"script": script, "folder": folder, "asks": _make_asks(work, scene)}
    if secrets:
        found["secrets"] = dict[str, Data](secrets)
    return {**found, "parcels": [*parcels]} if parcels else found


def _check_size(script: str, step_id: str) -> None:
    size = len(script.encode())
    if size > SCRIPT_BYTES:
        raise SpecError(
            f"step {step_id!r}: the script has {size:,} bytes, and Slurm takes {SCRIPT_BYTES:,}",
            hint="put large files where the cluster sees them, or stage them by their path",
        )


def _make_command(step_id: str, work: Work, scene: Scene, replicas: int) -> list[Data]:
    """The command line; variables that hold secrets are hidden from it, and so from the scheduler."""
    auths = [step for step in scene.graph.walk() if isinstance(step, Auth)]
    hidden = dict.fromkeys(name for each in auths for name in (each.variable, each.export) if name)
    return [
        *(["env", *(word for name in hidden for word in ("-u", name))] if hidden else []),
        *("sbatch", "--parsable"),
        f"--job-name={job_name(scene.graph.name, step_id)}",
        f"--comment={make_mark(scene.run_id, step_id)}",
        *_FIXED,
        *render_allocation(work.shape),
        *render_settings(work, scene.settings),
        *([f"--array=0-{replicas - 1}"] if replicas > 1 else []),
    ]


def _make_asks(work: Work, scene: Scene) -> dict[str, Data]:
    """The shape, for a look at what the cluster has."""
    shape = work.shape
    found: dict[str, Data] = {"slots": shape.slots, "cores_per_slot": shape.cores_per_slot}
    said: dict[str, Data] = {
        "nodes": shape.nodes,
        "gpus_per_slot": shape.gpus_per_slot or None,
        "partition": work.queue or scene.settings.get("partition"),
        "time_limit_s": work.duration_s,
    }
    return found | {name: value for name, value in said.items() if value is not None}


def save_parcel(run: Run, path: str, name: str) -> None:
    """Pack a file or folder of this machine into the run's folder, for the jobs that want it."""
    folder = run.folder / "parcels"
    folder.mkdir(mode=0o700, exist_ok=True)
    beside = folder / f".{name}.new"
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        pack(Path(path).expanduser(), file)
    os.replace(beside, folder / name)
