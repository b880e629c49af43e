"""Ending all that Slurm has of an allocation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...errors import DeadlineError
from ..base import Handle
from ..programs import is_late
from . import asking, commands
from .handles import check_cluster, check_strangers, every_number_of, load_rows
from .status import make_status
from .text import JobRow

CANCEL_TIMEOUT_S = 120.0


def end_jobs(handle: Handle, sleep: Callable[[float], object]) -> None:
    """Cancel every job that carries the mark, and wait until Slurm says that they are gone.

    One that lost its mark and its name may be ours, too: then nobody knows that all has ended.
    """
    if not load_rows(handle, 0.0):
        check_cluster(Path(handle["folder"]))
    deadline_s = time.monotonic() + CANCEL_TIMEOUT_S
    asked: set[int] = set()
    pause_s = 0.05
    while rows := _live_rows(handle, sleep):
        new = {row.leader for row in rows} - asked
        if new:
            commands.run(["scancel", *(str(job_id) for job_id in sorted(new))])
            asked |= new
        if time.monotonic() > deadline_s or is_late():
            raise DeadlineError(
                "Slurm was asked to cancel the job and has not ended it yet",
                seen=make_status(rows).describe(),
                hint="look at it with squeue; ask again later: kill() can be repeated",
            )
        sleep(pause_s)
        pause_s = min(pause_s * 1.3, 1.0)
    check_strangers(every_number_of(handle))


def _live_rows(handle: Handle, sleep: Callable[[float], object]) -> list[JobRow]:
    return asking.look(Path(handle["folder"]), handle["apply_id"], alive=True, sleep=sleep)
