"""What Slurm says of an allocation, as a status with reasons a person can act on."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...errors import BackendError
from ...logs import read_tail
from ...status import HostState, HostStatus, Liveness, Status
from ..base import TAIL_LINES
from ..launch import EXIT_NOT_SHARED
from ..places import PartData
from ..traces import (
    load_client_words,
    load_exit,
    load_farewells,
    load_written_at,
    was_up,
)
from . import asking, commands
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
from .places import Place, make_places, standing_rows, task_log
from .reasons import explain_job
from .states import explain_state, liveness_of
from .text import JobRow, Mark, parse_mark

TOLD_HOSTS = 4
"""Of how many hosts whose nodes failed an end tells."""
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
    rows: Sequence[JobRow], jobs: Sequence[int], folder: Path, parts: Mapping[int, PartData]
) -> Status:
    """How it ended: Slurm's words, the exit code, what keepers left, and the last lines that tell why.

    `jobs` are all the numbers that are known, where nothing tells which of them were the last.
    """
    standing = standing_rows(rows, parts)
    rows = [row for at, row in standing.items() if at in parts] or list(standing.values())
    jobs = [part["job"] for part in parts.values() if part.get("job") is not None] or jobs
    numbers = [row.job_id for row in rows]
    details = _show_jobs(numbers or jobs)
    for each in details:
        if each.job_id in numbers and liveness_of(each.state) is not Liveness.ENDED:
            # It was put back into the queue between two looks.
            return Status(liveness=Liveness.UNKNOWN, reason=describe_row(each))
    # A number that lives, and is not among this user's jobs, was given anew to somebody else.
    own = partial(_choose_own, known=numbers, marks=asking.load_marks(folder))
    details = _ended(own(details)) or _ended(own(_load_accounts(numbers or jobs)))
    # One that failed tells more than those that ended with it.
    details.sort(key=lambda detail: detail.state == "COMPLETED")
    lines = [describe_row(details[0] if details else rows[0])] if details or rows else []
    if not lines:
        lines = [f"Slurm has no trace of job {', '.join(map(str, jobs))} any more"]
    code = exited = load_exit(folder)
    if code is None and details and details[0].state in {"COMPLETED", "FAILED"}:
        code = details[0].exit_code
    if code == EXIT_NOT_SHARED and exited is None:
        lines.append(
            f"its first node does not see {folder}: a batch client needs a shared MILKWEED_HOME"
        )
    starts = {at: standing[at].start if at in standing else 0.0 for at in parts}
    lines += _load_farewells(folder, parts, starts)
    lines += _load_failed_hosts(make_places(rows, parts), details)
    if code or not details:
        lines += _load_last_words(parts, starts, exited)
    return Status(liveness=Liveness.ENDED, reason="\n".join(lines), exit_code=code)


def _load_failed_hosts(places: Sequence[Place], details: Sequence[JobDetail]) -> list[str]:
    """Whose nodes ended the job, as far as it is known which these are, and what each host wrote last."""
    failed = [place for place in places if place.row and place.row.state == "NODE_FAIL"]
    named = {detail.failed_node for detail in details if detail.failed_node}
    try:  # what was read a moment ago may be older than the failure
        rows = {row.name: row for row in commands.load_nodes()} if failed else {}
    except BackendError:
        rows = {}
    gone = named or {row.name for row in rows.values() if row.gone or row.unheard}
    lost = [place for place in failed if place.noted_node in gone]
    lines = [line for place in lost[:TOLD_HOSTS] for line in _tell_failed(place, rows)]
    more = len(lost) - TOLD_HOSTS
    return [*lines, f"{more} more hosts were on nodes that failed"] if more > 0 else lines


def _tell_failed(place: Place, rows: Mapping[str, NodeRow]) -> list[str]:
    node = place.noted_node
    row = rows.get(node)
    why = f"; {_describe_node(row)}" if row is not None and not row.usable else ", which failed"
    lines = (f"  {line}" for line in _run_lines(place))
    return [f"host {place.host} was on node {node}{why}", *lines]


def _choose_own(
    details: Sequence[JobDetail], known: Sequence[int], marks: Mapping[int, Mark]
) -> list[JobDetail]:
    """Those that are what was asked for: a number alone may have been given anew, when a cluster counts anew.

    What the queue still told of is `known` by its mark.
    """
    return [each for each in details if known or _is_own(each, marks.get(each.leader))]


def _is_own(detail: JobDetail, noted: Mark | None) -> bool:
    """Whether a job has the mark that was noted with its number, or where that was overwritten its name."""
    if noted is None:
        return False
    mark = parse_mark(detail.comment)
    return detail.name == noted.name if mark is None else mark.apply_id == noted.apply_id


def _load_farewells(
    folder: Path, parts: Mapping[int, PartData], starts: Mapping[int, float | None]
) -> list[str]:
    """Why keepers ended; those of an earlier run, or of another generation, tell nothing of this end."""
    said = (load_farewells(folder, part["part"], starts[at]) for at, part in parts.items())
    return sorted({line for lines in said for line in lines})


def _load_last_words(
    parts: Mapping[int, PartData], starts: Mapping[int, float | None], exited: int | None
) -> list[str]:
    """What a batch client said last; what Slurm said of the tasks, unless the end was the client's own."""
    said = load_client_words([part["logs"] for part in parts.values()])
    logs = {at: task_log(part) for at, part in parts.items()}
    own = [log for at, log in logs.items() if load_written_at(Path(log), starts[at]) is not None]
    tail = [line for log in own for line in _tail(log)]
    if tail and exited is None:
        said += ["the end of the job's own log:", *(f"  {line}" for line in tail)]
    return said


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
        return _judge_taken(place, row.job_id, nodes)
    if row is not None and row.state in _ENDING | _HALTED:
        return _host(place, HostState.UNKNOWN, describe_row(row))
    if row is None or not place.node:
        return _host(place, HostState.STARTING, describe_row(row) if row else "it is not in Slurm")
    started = place.row.start if place.row else None
    if was_up(place.part, place.index, started, place.node) and "refused" in seen.lower():
        reason = f"its keeper on node {place.node} is gone"
        return _host(place, HostState.FAILED, reason, _log_lines(place))
    if exited := _exit_line(place):
        return _host(place, HostState.FAILED, exited, _own_lines(place) or _run_lines(place))
    return _judge_node(place, seen, nodes.get(place.node))


def _judge_taken(place: Place, job: int, nodes: Mapping[str, NodeRow]) -> HostStatus:
    """A host whose node Slurm has taken out of the job, which goes on."""
    if not place.certain:
        reason = f"nodes of Slurm job {job} were lost, and it is not known whose they were"
        return _host(place, HostState.UNKNOWN, reason)
    its = f"its node {place.noted_node}" if place.noted_node else "its node"
    reason = f"{its} is no longer part of Slurm job {job}"
    if (node := nodes.get(place.noted_node)) is not None and not node.usable:
        reason += f"; {_describe_node(node)}"
    return _host(place, HostState.FAILED, reason, _log_lines(place))


def _judge_node(place: Place, seen: str, node: NodeRow | None) -> HostStatus:
    """A host whose node Slurm may have given up, or is about to take out of service when its jobs have ended."""
    if node is None or node.usable:
        return _host(place, HostState.STARTING, seen)
    reason = _describe_node(node)
    if not (node.gone or node.unheard):
        return _host(place, HostState.STARTING, f"{seen}; {reason}")
    host = _host(place, HostState.FAILED, reason, _log_lines(place))
    return replace(host, unheard=node.unheard)


def _describe_node(node: NodeRow) -> str:
    why = f": {node.reason}" if node.reason and node.reason != "none" else ""
    return f"Slurm says that node {node.name} is {node.state}{why}"


def _host(place: Place, state: HostState, reason: str, tail: Sequence[str] = ()) -> HostStatus:
    return HostStatus(host=place.host, state=state, reason="\n".join([reason, *tail]))


def _exit_line(place: Place) -> str:
    """What srun said of the host's task, in the job's own log."""
    found = _find_exit(place)
    return f"its task on node {place.node} ended: {found[3]}" if found else ""


def _find_exit(place: Place) -> re.Match[str] | None:
    found = map(_EXITED.search, reversed(_task_lines(place)))
    return next((match for match in found if match and match[1] == place.node), None)


def _own_lines(place: Place) -> list[str]:
    """What a task that ended had written; its number is srun's own, and need not be that of its host."""
    if (found := _find_exit(place)) is None:
        return []
    label = re.compile(rf"\s*{found[2]}: ?(.*)")  # srun aligns the numbers of tasks
    lines = (label.fullmatch(line) for line in _task_lines(place))
    return [match[1] for match in lines if match][-TAIL_LINES:]


def _task_lines(place: Place) -> list[str]:
    """The end of the job's own log.

    Slurm calls a job RUNNING before its script runs, which writes the log anew: until then it is the one before's.
    """
    start = place.row.start if place.row else None
    if load_written_at(Path(place.task_log), start) is None:
        return []
    return read_tail(place.task_log, 400).splitlines()


def _run_lines(place: Place) -> list[str]:
    """The end of a host's log, unless only an earlier run of the job has written to it."""
    start = place.row.start if place.row else None
    return [] if load_written_at(Path(place.log), start) is None else _log_lines(place)


def _log_lines(place: Place) -> list[str]:
    return _tail(place.log)
