"""What Slurm says of an allocation, as a status with reasons a person can act on."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import BackendError
from ...logs import read_tail
from ...status import HostState, HostStatus, Liveness, Status
from ..launch import EXIT_NOT_SHARED
from ..traces import load_exit, load_farewells, was_up
from . import commands
from .detail import (
    JobDetail,
    make_sacct,
    make_scontrol_job,
    make_scontrol_states,
    parse_sacct,
    parse_scontrol_job,
    parse_states,
)
from .nodes import NodeRow
from .places import Place
from .reasons import explain_job
from .states import explain_state, liveness_of
from .text import JobRow

TAIL_LINES = 6
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_HALTED = frozenset({"SUSPENDED", "STOPPED"})
_ORDER = (Liveness.RUNNING, Liveness.PENDING, Liveness.UNKNOWN, Liveness.ENDED)
_EXITED = re.compile(r"srun: error: (\S+): tasks? ([\d,\- ]+): (.+)")
_NOISE = ("srun: cluster configuration lacks support for cpu binding", "srun: Warning: can't run")


def make_status(rows: Sequence[JobRow]) -> Status:
    """What Slurm says of all components together: an allocation lives as long as one of them does."""
    seen = [row.liveness for row in rows]
    liveness = next(live for live in _ORDER if live in seen)
    waiting = Liveness.PENDING if Liveness.PENDING in seen else liveness
    halted = [row for row in rows if row.state in _HALTED]
    row = halted[0] if halted else rows[seen.index(waiting)]
    starts = [row.start for row in rows if row.liveness is Liveness.PENDING and row.start]
    return Status(
        liveness=liveness,
        reason=describe_row(row) if halted or waiting is not Liveness.RUNNING else "",
        expected_start=_moment(max(starts)) if starts else "",
        halted=bool(halted),
        ending=liveness is Liveness.UNKNOWN
        and all(row.state in _ENDING for row in rows if row.liveness is Liveness.UNKNOWN),
        details=_details(rows),
    )


def describe_row(row: JobRow | JobDetail) -> str:
    """A job in one line: its id, state and reason in Slurm's words, then in plain ones."""
    text = f"Slurm job {row.job_id} is {row.state}"
    # Why a job once waited is no reason for its end.
    waits = liveness_of(row.state) is not Liveness.ENDED or row.state == "FAILED"
    if waits and row.reason not in {"", "None"}:
        text += f", reason {row.reason}"
    plain = explain_job(row.state, row.reason)
    return f"{text}: {plain}" if plain else text


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _details(rows: Sequence[JobRow]) -> dict[str, str]:
    found = {"slurm_jobs": ", ".join(str(row.job_id) for row in rows)}
    limits = [row.time_left_s for row in rows if row.time_left_s is not None]
    if limits:
        found["time_left_s"] = f"{min(limits):.0f}"
    return found


# The end


def explain_ending(rows: Sequence[JobRow]) -> str:
    """How jobs are about to end whose processes are being ended; empty where Slurm does not tell yet."""
    for row in rows:
        with contextlib.suppress(BackendError, ValueError):
            for state in parse_states(commands.run(make_scontrol_states(row.job_id))):
                if state not in _ENDING and (plain := explain_state(state)):
                    return (
                        f"Slurm job {row.job_id} is {state}: {plain}; its processes are being ended"
                    )
    return ""


def explain_end(
    rows: Sequence[JobRow], jobs: Sequence[int], folder: Path, logs: Sequence[str]
) -> Status:
    """How it ended: Slurm's words, the exit code, what keepers left, and the last lines of the script's log."""
    numbers = [row.job_id for row in rows]
    details = _show_jobs(numbers or jobs)
    for each in details:
        if each.job_id in numbers and liveness_of(each.state) is not Liveness.ENDED:
            # It was put back into the queue between two looks.
            return Status(liveness=Liveness.UNKNOWN, reason=describe_row(each))
    # A number that lives, and is not among this user's jobs, was given anew to somebody else.
    details = _ended(details) or _ended(_load_accounts(numbers or jobs))
    # One that failed tells more than those that ended with it.
    details.sort(key=lambda detail: detail.state == "COMPLETED")
    lines = [describe_row(details[0] if details else rows[0])] if details or rows else []
    if not lines:
        lines = [f"Slurm has no trace of job {', '.join(map(str, jobs))} any more"]
    code = load_exit(folder)
    if code is None and details and details[0].state in {"COMPLETED", "FAILED"}:
        code = details[0].exit_code
    if code == EXIT_NOT_SHARED:
        lines.append(
            f"its first node does not see {folder}: a batch client needs a shared MILKWEED_HOME"
        )
    lines += load_farewells(folder)
    tail = [line for log in logs for line in _tail(log)]
    if tail and (code or not details):
        lines += ["the end of the job's own log:", *(f"  {line}" for line in tail)]
    return Status(liveness=Liveness.ENDED, reason="\n".join(lines), exit_code=code)


def _ended(details: Sequence[JobDetail]) -> list[JobDetail]:
    return [each for each in details if liveness_of(each.state) is Liveness.ENDED]


def _show_jobs(jobs: Sequence[int]) -> list[JobDetail]:
    """What Slurm remembers of each."""
    found: list[JobDetail] = []
    for job_id in jobs:
        with contextlib.suppress(BackendError, ValueError):
            found += parse_scontrol_job(commands.run(make_scontrol_job(job_id)))
    return found


def _load_accounts(jobs: Sequence[int]) -> list[JobDetail]:
    """What Slurm has forgotten may still be in its accounting, where there is one."""
    if not jobs:  # without a number sacct tells of all jobs of this user
        return []
    try:
        return parse_sacct(commands.run(make_sacct(jobs)))
    except (BackendError, ValueError):
        return []


def _tail(path: str) -> list[str]:
    lines = read_tail(path, TAIL_LINES * 2).splitlines()
    return [line for line in lines if not line.startswith(_NOISE)][-TAIL_LINES:]


# One host


def judge_host(place: Place, seen: str, nodes: Mapping[str, NodeRow]) -> HostStatus:
    """What became of a host whose keeper does not answer."""
    row = place.row
    if place.released:
        reason = "it was given back, and the change of sizes was not finished: repeat it"
        return _host(place, HostState.FAILED, reason)
    if row is None and (job := place.part.get("job")) is not None:
        reason = f"Slurm has no trace of job {job} any more"
        return _host(place, HostState.FAILED, reason, _log_lines(place))
    if row is not None and row.liveness is Liveness.ENDED:
        return _host(place, HostState.FAILED, describe_row(row), _log_lines(place))
    if row is not None and row.nodes and not place.node and row.liveness is Liveness.RUNNING:
        node = place.noted_node
        its = f"its node {node}" if node else "its node"
        reason = f"{its} is no longer part of Slurm job {row.job_id}"
        return _host(place, HostState.FAILED, reason, _log_lines(place))
    if row is not None and row.state in _ENDING | _HALTED:
        return _host(place, HostState.UNKNOWN, describe_row(row))
    if row is None or not place.node:
        return _host(place, HostState.STARTING, describe_row(row) if row else "it is not in Slurm")
    started = place.row.start if place.row else None
    if was_up(place.part, place.index, started, place.node) and "refused" in seen.lower():
        reason = f"its keeper on node {place.node} is gone"
        return _host(place, HostState.FAILED, reason, _log_lines(place))
    if exited := _exit_line(place):
        return _host(place, HostState.FAILED, exited, _own_lines(place))
    node = nodes.get(place.node)
    if node is not None and not node.usable:
        why = f": {node.reason}" if node.reason and node.reason != "none" else ""
        reason = f"Slurm says that node {node.name} is {node.state}{why}"
        host = _host(place, HostState.FAILED, reason, _log_lines(place))
        return replace(host, unheard=node.unheard)
    return _host(place, HostState.STARTING, seen)


def _host(place: Place, state: HostState, reason: str, tail: Sequence[str] = ()) -> HostStatus:
    return HostStatus(host=place.host, state=state, reason="\n".join([reason, *tail]))


def _exit_line(place: Place) -> str:
    """What srun said of the host's task, in the job's own log."""
    for line in reversed(read_tail(place.task_log, 400).splitlines()):
        match = _EXITED.search(line)
        if match and match[1] == place.node:
            return f"its task on node {place.node} ended: {match[3]}"
    return ""


def _own_lines(place: Place) -> list[str]:
    label = re.compile(rf"\s*{place.index}: ?(.*)")  # srun aligns the numbers of tasks
    lines = (label.fullmatch(line) for line in read_tail(place.task_log, 400).splitlines())
    return [match[1] for match in lines if match][-TAIL_LINES:]


def _log_lines(place: Place) -> list[str]:
    return _tail(place.log)
