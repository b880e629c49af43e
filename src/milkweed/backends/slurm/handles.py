"""What an allocation is found again by, and what of it is in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ... import registry
from ...errors import UnreachableError
from ..base import Handle
from ..places import PartData
from . import asking, commands
from .start import load_parts
from .status import describe_row
from .text import JobRow


def make_handle(
    apply_id: str,
    *,
    jobs: Sequence[int],
    generation: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> Handle:
    """All that is needed to find an allocation again; its folder may be gone.

    `sizes` are those of the meshes, as they were asked for and answered; one that was found has none.
    """
    return {
        "apply_id": apply_id,
        "generation": generation,
        "jobs": sorted(jobs),
        "folder": str(registry.folder_of(apply_id)),
        **({"sizes": dict(sizes)} if sizes else {}),
    }


def check_cluster(folder: Path) -> None:
    """What is not in this cluster's queue may be in another's: the job's own files tell which."""
    for part in load_parts(folder, None).values():
        commands.check_cluster(part.get("cluster", ""))


def load_rows(
    handle: Handle, max_age_s: float | None, generation: int | None = None
) -> list[JobRow]:
    """The allocation's jobs in the queue, of one generation or of all."""
    return asking.load_rows(Path(handle["folder"]), handle["apply_id"], max_age_s, generation)


def numbers_of(handle: Handle) -> list[int]:
    """The numbers of the jobs of this generation, as far as it is known which those are."""
    marks = asking.load_marks(Path(handle["folder"]))
    own = handle["generation"]
    known = [job for job in handle["jobs"] if job not in marks or marks[job].generation == own]
    # A program that died before it could record a follow-up has left its mark.
    return known or sorted(job for job, mark in marks.items() if mark.generation == own)


def every_number_of(handle: Handle) -> list[int]:
    """The numbers of all jobs that were ever asked for, of every generation."""
    return sorted({*handle["jobs"], *asking.load_marks(Path(handle["folder"]))})


def check_strangers(jobs: Sequence[int]) -> None:
    """A job that lives without our mark may be one that is looked for: then nothing is known of it."""
    for row in asking.load_strangers(jobs):
        raise UnreachableError(
            f"it is not known whose Slurm job {row.job_id} is",
            seen=f"{describe_row(row)}; its comment was milkweed's mark, and is {row.comment!r} now",
            hint=f"if it is this job, end it with `scancel {row.job_id}`",
        )


def is_kept(parts: Mapping[int, PartData]) -> bool:
    """Whether its hosts outlive the client that asked for them."""
    return any(part["keep"] for part in parts.values())
