"""Follow-up allocations: asked for before a time limit is reached, under the same id, one generation later."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...status import Liveness, Status
from ..leads import lead_time_s
from ..places import PartData
from .asking import load_marked_at, load_marks
from .places import Place, label_hosts, standing_rows
from .text import JobRow, parse_mark

FIRST_PAUSE_S = 60.0
"""How long another follow-up is not asked for after the first that failed; after each, twice as long."""


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


def next_generation(rows: Sequence[JobRow], generation: int) -> int:
    """The one that follows: the oldest that lives, since a record may have missed some; else the very next."""
    marks = (parse_mark(row.comment) for row in followers(rows, generation))
    return min((mark.generation for mark in marks if mark), default=generation + 1)


def serves(status: Status, sizes: Mapping[str, int] | None) -> bool:
    """Whether a follow-up has just the hosts that are to be replaced, and all of them are ready."""
    there = {host.host for host in status.hosts}
    return status.ready and (sizes is None or there == set(label_hosts(sizes)))


def ended_places(places: Sequence[Place]) -> list[Place]:
    """The hosts that were not given back, and whose job is over."""
    return [place for place in places if not place.released and _has_ended(place)]


def _has_ended(place: Place) -> bool:
    if place.row is None:
        return place.part.get("job") is not None
    return place.row.liveness is Liveness.ENDED


def is_broken(status: Status, places: Sequence[Place]) -> bool:
    """Whether a follow-up has lost hosts for good, so that it will never have all of them.

    It has, too, where fewer nodes are left than hosts, and nobody can tell any more which of them are lost.
    """
    kept = [place for place in places if not place.released]
    if ended_places(kept) or not all(place.certain for place in kept):
        return True
    labels = {place.host for place in kept}
    return any(host.host in labels for host in status.lost_hosts)


def next_try(folder: Path, rows: Sequence[JobRow], generation: int) -> float:
    """When a follow-up may be asked for, those before having failed; long ago, where there was none."""
    first = (generation + 1, 0)
    marks = load_marks(folder)
    asked = [job for job, mark in marks.items() if (mark.generation, mark.component) == first]
    marked = [(row, mark) for row in rows if (mark := parse_mark(row.comment))]
    later = [(row, mark) for row, mark in marked if mark.generation == generation + 1]
    count = len({*asked, *(row.leader for row, mark in later if not mark.component)})
    ended = [row for row, _mark in later if row.liveness is Liveness.ENDED]
    if not count:
        return 0.0
    ends = [row.end or 0.0 for row in ended]
    last = max([*(load_marked_at(folder, job) for job in asked), *ends], default=0.0)
    return min(last, time.time()) + FIRST_PAUSE_S * 2 ** (count - 1)


def spare_jobs(rows: Sequence[JobRow], parts: Mapping[int, PartData], generation: int) -> list[int]:
    """Living jobs that nobody uses: of earlier generations, and with the mark of another that is used."""
    marked = [(row, mark.generation) for row in rows if (mark := parse_mark(row.comment))]
    own = [row for row, its in marked if its == generation]
    used = {row.leader for row in standing_rows(own, parts).values()}
    alive = [(row, its) for row, its in marked if row.liveness is not Liveness.ENDED]
    spare = [
        row
        for row, its in alive
        if its < generation or (its == generation and row.leader not in used)
    ]
    return sorted({row.leader for row in spare})
