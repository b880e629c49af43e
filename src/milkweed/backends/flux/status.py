"""What Flux says of an allocation, as a status with reasons a person can act on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BackendError
from ...logs import read_tail
from ...status import HostState, HostStatus, Liveness, Status
from ..base import TAIL_LINES
from ..launch import EXIT_NOT_SHARED
from ..noted import is_asked
from ..traces import load_client_words, load_exit, load_farewells, was_up
from . import commands
from .places import FluxPlace
from .text import RESULTS, STATES, JobRow, render_job_id

_ALIVE = (Liveness.RUNNING, Liveness.PENDING, Liveness.UNKNOWN)
_LOST = re.compile(r"\(shell rank (\d+)\)")
"""How Flux names the part of a job that a node has taken with it."""
_GONE = "no service matching"
"""What `flux exec` says when the part of a job that was on a node has ended there."""


def make_status(rows: Sequence[JobRow], now: float) -> Status:
    """What Flux says of all components together: an allocation lives as long as one of them does."""
    alive = {live: [row for row in rows if row.liveness is live] for live in _ALIVE}
    liveness = next(live for live in _ALIVE if alive[live])
    waiting = alive[Liveness.PENDING] or alive[liveness]
    starts = [row.expected for row in alive[Liveness.PENDING] if row.expected]
    known = liveness is Liveness.RUNNING and waiting is alive[Liveness.RUNNING]
    return Status(
        liveness=liveness,
        reason="" if known else describe_row(waiting[0]),
        expected_start=_moment(max(starts)) if starts else "",
        details=_details(rows, now),
    )


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _details(rows: Sequence[JobRow], now: float) -> dict[str, str]:
    found = {"flux_jobs": ", ".join(row.shown_id for row in rows)}
    ends = [row.end for row in rows if row.liveness is Liveness.RUNNING and row.end]
    if ends:
        found["time_left_s"] = f"{max(0.0, min(ends) - now):.0f}"
    return found


def describe_row(row: JobRow) -> str:
    """A job in one line: its id and state in Flux's words, then in plain ones, and what was raised for it."""
    word = row.result or row.state
    plain = RESULTS.get(row.result) or STATES.get(row.state, (None, ""))[1]
    text = f"Flux job {row.shown_id} is {word}"
    text += f": {plain}" if plain else ""
    if row.liveness is Liveness.PENDING:
        return text + _why_waiting(row)
    if row.result == "FAILED" and row.exit_code is not None and not row.trouble:
        text += f" with exit code {row.exit_code}"
    if row.trouble:
        text += f" ({row.trouble}{f': {row.note}' if row.note else ''})"
    return text


def _why_waiting(row: JobRow) -> str:
    if row.urgency == 0:
        return "; it is held: `flux job urgency JOB default` releases it"
    if row.dependencies:
        return f"; it depends on {', '.join(row.dependencies)}"
    return f"; {row.waits_for}" if row.waits_for else ""


# The end


def explain_end(
    rows: Sequence[JobRow], jobs: Sequence[int], folder: Path, uri: str, logs: Sequence[str] = ()
) -> Status:
    """How it ended: Flux's words, the exit code, what keepers left, and the last lines that tell why."""
    # One that failed tells more than those that ended with it.
    order = ("FAILED", "TIMEOUT", "CANCELED", "COMPLETED")
    known = sorted(rows, key=lambda row: order.index(row.result) if row.result in order else 0)
    code = exited = load_exit(folder)
    if not known:
        shown = ", ".join(map(render_job_id, jobs))
        lines = [f"Flux has no trace of job {shown} any more"]
    else:
        lines = [describe_row(known[0])]
        if code is None and known[0].result in {"COMPLETED", "FAILED"}:
            code = known[0].exit_code
    if code == EXIT_NOT_SHARED and exited is None:
        lines.append(
            f"its first node does not see {folder}: a batch client needs a shared MILKWEED_HOME"
        )
    lines += load_farewells(folder)
    lines += load_client_words(logs) if code else []
    tail = load_output(known[0].job_id, uri) if known and code and exited is None else []
    if tail:
        lines += ["the end of the job's own output:", *(f"  {line}" for line in tail)]
    return Status(liveness=Liveness.ENDED, reason="\n".join(lines), exit_code=code)


def load_output(job_id: int, uri: str, task: int | None = None) -> list[str]:
    """The last lines that a job's tasks, or one of them, wrote to where Flux keeps them; none when it does not."""
    found: list[str] = []
    for event in _load_events(job_id, uri, "-p", "output"):
        context: Any = event.get("context") or {}
        if event.get("name") == "log" and task in {None, context.get("rank")}:
            found.append(str(context.get("message", "")))
        if event.get("name") == "data" and str(task) in {"None", str(context.get("rank"))}:
            found += str(context.get("data", "")).splitlines()
    return found[-TAIL_LINES:]


def _events(text: str) -> list[Mapping[str, Any]]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return []


# One host


def judge_host(place: FluxPlace, seen: str, uri: str) -> HostStatus:
    """What became of a host whose keeper does not answer."""
    row = place.row
    if row is None:
        if is_asked(Path(place.part["record_folder"])):
            return _host(place, HostState.STARTING, "it is not in Flux yet")
        return _host(place, HostState.FAILED, "Flux has no job for it", _log_lines(place))
    if row.liveness is Liveness.ENDED:
        return _host(place, HostState.FAILED, describe_row(row), _log_lines(place))
    if not place.node:
        return _host(place, HostState.STARTING, describe_row(row))
    if was_up(place.part, place.index, row.start, place.node) and "refused" in seen.lower():
        reason = f"its keeper on node {place.node} is gone"
        return _host(place, HostState.FAILED, reason, _log_lines(place))
    if reason := _why_gone(place, row, uri):
        tail = _log_lines(place) or load_output(row.job_id, uri, place.index)
        return _host(place, HostState.FAILED, reason, tail)
    return _host(place, HostState.STARTING, seen)


def _why_gone(place: FluxPlace, row: JobRow, uri: str) -> str:
    """Why the host's task is over, where Flux knows that it is; empty when it is not."""
    for event in _load_events(row.job_id, uri):
        context: Any = event.get("context") or {}
        lost = _LOST.search(str(context.get("note", "")))
        if event.get("name") == "exception" and lost and int(lost[1]) == place.index:
            return f"Flux says: {context['note']}"
    events = _load_events(row.job_id, uri, "-p", "exec")
    for event in events:
        context = event.get("context") or {}
        if event.get("name") == "shell.task-exit" and context.get("rank") == place.index:
            signaled, code = context.get("signaled"), context.get("exitcode")
            how = f"signal {signaled}" if signaled else f"exit code {code}"
            return f"its task on node {place.node} ended: {how}"
    # Flux tells of the first task only that ends; of the others it knows that nobody is there any more.
    started = any(event.get("name") == "shell.start" for event in events)
    return f"its task on node {place.node} has ended" if started and _is_gone(place, uri) else ""


def _load_events(job_id: int, uri: str, *which: str) -> list[Mapping[str, Any]]:
    try:
        words = ["job", "eventlog", *which, "-f", "json", str(job_id)]
        return _events(commands.run(words, uri=uri))
    except BackendError:
        return []


def _is_gone(place: FluxPlace, uri: str) -> bool:
    if place.row is None:
        return False
    words = ["exec", f"--jobid={place.row.job_id}", f"--rank={place.index}", "--noinput", "true"]
    try:
        commands.run(words, uri=uri)
    except BackendError as error:
        return _GONE in error.seen.lower()
    return False


def _host(place: FluxPlace, state: HostState, reason: str, tail: Sequence[str] = ()) -> HostStatus:
    return HostStatus(host=place.host, state=state, reason="\n".join([reason, *tail]))


def _log_lines(place: FluxPlace) -> list[str]:
    return read_tail(place.log, TAIL_LINES).splitlines()
