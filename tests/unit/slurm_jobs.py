"""Jobs on a Slurm that does what it is told, for tests of the backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from milkweed.backends.slurm.backend import SlurmBackend, make_handle
from milkweed.job import lifecycle
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import Record, StateFile
from unit.slurm_fake import APPLY_ID

OTHER_ID = "99999999-2222-4333-8444-555555555555"


def make_spec(hosts: int = 2, **options: Any) -> JobSpec:
    """A declaration with a variable that nobody else may read."""
    meshes = (MeshSpec(name="w", hosts=hosts, env={"TOKEN": "s3cret"}),)
    return JobSpec(name="demo", backend="slurm", meshes=meshes, options=options)


SPEC = make_spec()


def create(spec: JobSpec = SPEC, path: str = "job.json", **more: Any) -> Record:
    """Ask for an allocation, as a job does, and record it at a path."""
    wish = lifecycle.Wish(spec=spec, backend=SlurmBackend(), apply_id=APPLY_ID, **more)
    return lifecycle.create(wish, StateFile(path))[0]


def handle_of(*jobs: int) -> dict[str, Any]:
    """What finds the allocation again."""
    return dict(make_handle(APPLY_ID, jobs=jobs or (7,)))


def left_behind(home: Path) -> list[Path]:
    """Every file that milkweed has."""
    return [path for path in home.rglob("*") if path.is_file()] if home.exists() else []
