"""Asking sbatch, and what may still come of it when it was not answered.

A controller that was frozen, or busy, reads a request after its sender has given up, and may answer a look at the
queue before that. So a job that was asked for in vain is known not to be there only after a second look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import BackendError, UnreachableError
from ...status import Liveness
from . import commands
from .places import rows_of
from .text import JobRow, parse_job_id

SETTLE_S = 5.0
"""How long a controller that answers again may take over what was sent to it before."""
_NOTE = "asked-for"
"""A file that is there from before sbatch is started until its answer is known."""


def ask(folder: Path, argv: Sequence[str], script: str) -> int:
    """Hand a script to sbatch; the job's number. UnreachableError: nobody knows whether it was taken."""
    note = folder / _NOTE
    before = note.exists()
    note.touch(mode=0o600)
    try:
        job_id = parse_job_id(commands.run(argv, text=script, tied=True))
    except ValueError as error:
        raise UnreachableError("what sbatch printed cannot be read", seen=str(error)) from error
    except UnreachableError:
        raise
    except BackendError:
        _settle(note, before=before)
        raise
    _settle(note, before=before)
    return job_id


def _settle(note: Path, *, before: bool) -> None:
    """This one was answered; an earlier one may not have been."""
    if not before:
        note.unlink(missing_ok=True)


def look(
    folder: Path, apply_id: str, *, alive: bool = False, sleep: Callable[[float], object]
) -> list[JobRow]:
    """The allocation's jobs in the queue, or those that live; none only when none can come any more."""
    rows = _read(apply_id, alive=alive)
    if not rows and (folder / _NOTE).exists():
        sleep(SETTLE_S)
        rows = _read(apply_id, alive=alive)
    return rows


def _read(apply_id: str, *, alive: bool) -> list[JobRow]:
    rows = rows_of(commands.queue.rows(0.0), apply_id)
    return [row for row in rows if not alive or row.liveness is not Liveness.ENDED]
