"""Asking sbatch for a job, and the queue for what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...status import Liveness
from ..noted import ask_noted, look_twice
from ..programs import read_answer
from . import commands
from .places import rows_of
from .text import JobRow, parse_job_id


def ask(folder: Path, argv: Sequence[str], script: str) -> int:
    """Hand a script to sbatch; the job's number. UnreachableError: nobody knows whether it was taken."""

    def submit() -> int:
        said = commands.run(argv, text=script, tied=True)
        return read_answer("sbatch", lambda: parse_job_id(said))

    return ask_noted(folder, submit)


def look(
    folder: Path, apply_id: str, *, alive: bool = False, sleep: Callable[[float], object]
) -> list[JobRow]:
    """The allocation's jobs in the queue, or those that live; none only when none can come any more."""
    return look_twice(folder, lambda: _read(apply_id, alive=alive), sleep)


def _read(apply_id: str, *, alive: bool) -> list[JobRow]:
    rows = rows_of(commands.queue.rows(0.0), apply_id)
    return [row for row in rows if not alive or row.liveness is not Liveness.ENDED]
