"""Asking sbatch for a job, and the queue for what came of it.

A job is found by its mark. The mark is a comment, which a site or a person may overwrite, so it is also noted in
the job's folder which number the job has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import StateError
from ...state import save_private
from ...status import Liveness
from ..noted import ask_noted, look_twice
from ..programs import read_answer
from . import commands
from .places import rows_of
from .text import JobRow, Mark, parse_job_id, parse_mark, render_mark


def ask(
    folder: Path,
    argv: Sequence[str],
    script: str,
    mark: Mark | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Hand a script to sbatch; the job's number. UnreachableError: nobody knows whether it was taken.

    `mark` is the one of its first component; without one, its number is not noted. `environ` is what sbatch sees.
    """

    def submit() -> int:
        said = commands.run(argv, text=script, tied=True, environ=environ)
        return read_answer("sbatch", lambda: parse_job_id(said))

    job_id = ask_noted(folder, submit)
    if mark is not None:
        with contextlib.suppress(StateError):  # it carries its mark
            text = render_mark(mark).encode()
            save_private(folder / f"mark-{job_id}", text, what="the job's number")
    return job_id


def load_marks(folder: Path) -> dict[int, Mark]:
    """The jobs that were asked for, by number, each with the mark of its first component."""
    found: dict[int, Mark] = {}
    for path in folder.glob("mark-*"):
        with contextlib.suppress(OSError, ValueError):
            if mark := parse_mark(path.read_text("utf-8")):
                found[int(path.name.removeprefix("mark-"))] = mark
    return found


def load_marked_at(folder: Path, job: int) -> float:
    """When a job was asked for, in seconds since the epoch; long ago, where that is not known."""
    try:
        return (folder / f"mark-{job}").stat().st_mtime
    except OSError:
        return 0.0


def load_rows(
    folder: Path, apply_id: str, max_age_s: float | None, generation: int | None = None
) -> list[JobRow]:
    """The allocation's jobs in the queue, of one generation or of all."""
    rows = commands.queue.rows(max_age_s)
    if not all(parse_mark(row.comment) for row in rows):
        marks = load_marks(folder)
        rows = [_mark_again(row, marks) for row in rows]
    return rows_of(rows, apply_id, generation)


def _mark_again(row: JobRow, marks: Mapping[int, Mark]) -> JobRow:
    """A job whose mark was overwritten, with its mark; numbers may be given anew, so its name must be the same."""
    mark = marks.get(row.leader)
    if mark is None or row.name != mark.name or parse_mark(row.comment):
        return row
    component = mark.component + (row.offset or 0)
    return replace(row, comment=render_mark(replace(mark, component=component)))


def load_strangers(jobs: Sequence[int]) -> list[JobRow]:
    """Living jobs that have the numbers of ours, and no mark: they may be ours."""
    return [
        row
        for row in commands.queue.rows(0.5)
        if row.leader in jobs
        and row.liveness is not Liveness.ENDED
        and parse_mark(row.comment) is None
    ]


def look(
    folder: Path, apply_id: str, *, alive: bool = False, sleep: Callable[[float], object]
) -> list[JobRow]:
    """The allocation's jobs in the queue, or those that live; none only when none can come any more."""
    return look_twice(folder, lambda: _read(folder, apply_id, alive=alive), sleep)


def _read(folder: Path, apply_id: str, *, alive: bool) -> list[JobRow]:
    rows = load_rows(folder, apply_id, 0.0)
    return [row for row in rows if not alive or row.liveness is not Liveness.ENDED]
