"""Follow-up allocations: asked for before a time limit is reached, under the same id, one generation later."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...status import Liveness
from ..leads import lead_time_s
from .text import JobRow, parse_mark


def is_due(rows: Sequence[JobRow], renew: str | None) -> bool:
    """Whether the first time limit of the running components is near."""
    if not renew:
        return False
    for row in rows:
        left_s = time_left_s(row)
        if row.liveness is Liveness.RUNNING and left_s is not None:
            limit_s = (row.end or 0.0) - (row.start or 0.0)
            if left_s <= lead_time_s(renew, max(limit_s, left_s)):
                return True
    return False


def time_left_s(row: JobRow) -> float | None:
    """What is left of a job's time; of one that is past its limit, squeue tells only when that was."""
    if row.time_left_s is not None or row.end is None:
        return row.time_left_s
    return 0.0 if row.end <= time.time() else None


def last_end(rows: Sequence[JobRow], generation: int) -> float:
    """When the last time limit of what runs of a generation is reached; now, where nothing does."""
    running = [row for row in rows if row.liveness is Liveness.RUNNING]
    marks = [(row, parse_mark(row.comment)) for row in running]
    own = [row for row, mark in marks if mark and mark.generation == generation]
    return time.time() + max((time_left_s(row) or 0.0 for row in own), default=0.0)


def followers(rows: Sequence[JobRow], generation: int) -> list[JobRow]:
    """The living jobs of later generations."""
    found: list[JobRow] = []
    for row in rows:
        mark = parse_mark(row.comment)
        if mark and mark.generation > generation and row.liveness is not Liveness.ENDED:
            found.append(row)
    return found
