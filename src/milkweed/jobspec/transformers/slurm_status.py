"""How a job of Slurm is, as the status of a step: the queue, one job in full, then what the job wrote down."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...backends.slurm import commands
from ...backends.slurm.detail import (
    JobDetail,
    make_sacct,
    make_scontrol_job,
    parse_sacct,
    parse_scontrol_job,
)
from ...backends.slurm.status import describe_row
from ...backends.slurm.text import JobRow
from ...errors import BackendError, UnreachableError
from ...status import Liveness
from ..progress import CANCELLED, DONE, State, StepStatus, ended, join_statuses

TIMED_OUT = 124
OUT_OF_MEMORY = 137
_NEVER = "DependencyNeverSatisfied"


def rows_of(mark: str, max_age_s: float | None = None) -> list[JobRow]:
    """The jobs that carry a mark; none only when a look from now on shows none."""
    for age_s in (max_age_s, 0.0):
        rows = [row for row in commands.queue.rows(age_s) if row.comment == mark]
        if rows:
            return rows
    return []


def poll_job(job_id: int, mark: str, logs: Path, labels: Sequence[str]) -> StepStatus:
    """How a job is, or all jobs of an array; UNKNOWN when the controller did not answer."""
    try:
        rows = rows_of(mark)
        if any(row.liveness is not Liveness.ENDED for row in rows):
            return judge_rows(rows)
        details = load_details(job_id)
    except UnreachableError as error:
        return StepStatus(State.UNKNOWN, None, error.seen or error.what)
    if details and not _is_lost(details, logs, labels):
        return join_statuses([judge_detail(detail) for detail in details])
    return judge_files(job_id, logs, labels)


def _is_lost(details: Sequence[JobDetail], logs: Path, labels: Sequence[str]) -> bool:
    """Whether Slurm missed the end of a job, as when its controller was away, and the job itself did not."""
    missed = any(detail.state == "NODE_FAIL" for detail in details)
    return missed and all(_read_code(logs, label) is not None for label in labels)


def judge_rows(rows: Sequence[JobRow]) -> StepStatus:
    """How jobs are of which at least one is not over."""
    seen = [row.liveness for row in rows]
    if all(live is Liveness.PENDING for live in seen):
        return StepStatus(State.PENDING, None, describe_row(rows[0]))
    return StepStatus(State.RUNNING)


def load_details(job_id: int) -> list[JobDetail]:
    """A job and its array's in full; none when Slurm, and its accounting if there is one, have forgotten it."""
    for argv, parse in (
        (make_scontrol_job(job_id), parse_scontrol_job),
        (make_sacct([job_id]), parse_sacct),
    ):
        try:
            if found := parse(commands.run(argv)):
                return found
        except UnreachableError:
            raise
        except (BackendError, ValueError):
            continue
    return []


def judge_detail(detail: JobDetail) -> StepStatus:
    """How a job ended."""
    word = detail.state.split(" ")[0].rstrip("+")
    if word == "COMPLETED":
        return DONE
    if word == "CANCELLED":
        if detail.reason.replace(" ", "") == _NEVER:
            return StepStatus(State.SKIPPED, None, "what it needs did not come true")
        return StepStatus(State.CANCELLED, CANCELLED, describe_row(detail))
    if word == "FAILED":
        return ended(detail.exit_code or (128 + detail.signal if detail.signal else 1))
    codes = {"TIMEOUT": TIMED_OUT, "DEADLINE": TIMED_OUT, "OUT_OF_MEMORY": OUT_OF_MEMORY}
    return ended(codes.get(word, 1), describe_row(detail))


def judge_files(job_id: int, logs: Path, labels: Sequence[str]) -> StepStatus:
    """What jobs that Slurm has forgotten wrote down themselves."""
    codes = [_read_code(logs, label) for label in labels]
    known = [code for code in codes if code is not None]
    if any(known):
        return ended(next(code for code in known if code))
    if len(known) == len(codes):
        return DONE
    reason = f"Slurm has no trace of job {job_id} any more, and nobody saw how it ended"
    return StepStatus(State.LOST, None, reason)


def _read_code(logs: Path, label: str) -> int | None:
    return next(_read_numbers(logs, label, "exit"), None)


def _read_numbers(logs: Path, label: str, kind: str) -> Iterator[int]:
    """What jobs of a step wrote into files of one kind; the name of another step may begin like its name."""
    name = re.compile(rf"\.{re.escape(label)}\.\d+\.{kind}")
    for path in logs.glob(f".{label}.*.{kind}"):
        with contextlib.suppress(OSError, ValueError):
            if name.fullmatch(path.name):
                yield int(path.read_text())


def find_began(logs: Path, labels: Sequence[str]) -> int | None:
    """The number of a job that wrote down that it began."""
    return next((job for label in labels for job in _read_numbers(logs, label, "began")), None)
