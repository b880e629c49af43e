"""How a job of Flux is, as the status of a step."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.flux import commands
from ...backends.flux.text import STATES, JobRow
from ...errors import UnreachableError
from ..progress import CANCELLED, DONE, State, StepStatus, ended, join_statuses
from .processes import TIMED_OUT

_RUNNING = ("RUN", "CLEANUP")


def poll_jobs(job_ids: Sequence[int], uri: str) -> StepStatus:
    """How jobs that stand for one step are; UNKNOWN when the instance did not answer."""
    try:
        rows = {row.job_id: row for row in commands.queue(uri).rows()}
        found: list[StepStatus] = []
        for job_id in job_ids:
            row = rows.get(job_id) or load_row(job_id, uri)
            found.append(judge_row(row) if row else make_lost(job_id))
    except UnreachableError as error:
        return StepStatus(State.UNKNOWN, None, error.seen or error.what)
    return join_statuses(found)


def load_row(job_id: int, uri: str) -> JobRow | None:
    """A job that is not in the list of those that live or ended lately."""
    return next(iter(commands.load_jobs([job_id], uri=uri)), None)


def make_lost(job_id: int) -> StepStatus:
    """What is said of a job that Flux has forgotten."""
    reason = f"Flux has no trace of job {job_id} any more, and nobody saw how it ended"
    return StepStatus(State.LOST, None, reason)


def judge_row(row: JobRow) -> StepStatus:
    """How one job is."""
    if row.state in _RUNNING:
        return StepStatus(State.RUNNING)
    if row.state != "INACTIVE":
        return StepStatus(State.PENDING, None, _describe_waiting(row))
    if row.result == "COMPLETED":
        return DONE
    said = f"{row.trouble}: {row.note}".strip(": ") if row.trouble else ""
    if row.trouble == "dependency":
        return StepStatus(State.SKIPPED, None, "what it needs did not come true")
    if row.result == "CANCELED":
        return StepStatus(State.CANCELLED, CANCELLED, said)
    if row.result == "TIMEOUT":
        return ended(TIMED_OUT, said)
    return ended(row.exit_code or 1, said)


def _describe_waiting(row: JobRow) -> str:
    words = STATES.get(row.state, (None, row.state))[1]
    more = row.waits_for or ", ".join(row.dependencies)
    return f"{words} ({more})" if more else words
