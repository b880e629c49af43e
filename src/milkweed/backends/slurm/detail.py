"""One job in full, as `scontrol show job` tells it while Slurm remembers it, and `sacct` afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..hostlist import expand_hostlist
from .records import or_empty, parse_job_number, split_records
from .times import parse_clock, parse_stamp

_HEAD = re.compile(
    r"JobId=(?P<job>\d+)\s.*?JobName=(?P<name>.*?)\s+(?:HetJobIdSet=\S+\s+)?"
    r"UserId=[^=]*?\(\d+\)\s+GroupId=",
    re.DOTALL | re.ASCII,
)
_HET = re.compile(r"\sHetJobId=(\d+)\s+HetJobOffset=(\d+)\s", re.ASCII)
_REASON = re.compile(r"\sReason=(.*?)\s+(?:FailedNode=\S*\s+)?Dependency=", re.DOTALL)
_COMMENT = re.compile(r"\sComment=(.*)", re.DOTALL)
_NEXT_KEY = re.compile(r"\s+[A-Z][A-Za-z_]*=")

_SACCT_FIELDS = (
    "JobID",
    "JobIDRaw",
    "State",
    "ExitCode",
    "NodeList",
    "Start",
    "End",
    "Timelimit",
    "Partition",
    "Reason",
    "Comment",
    "JobName",
)
_SACCT_START = r"\d+(?:[+_][^|\n]*)?\|\d+\|[A-Z][^|\n]*\|\d+:\d+\|(?:[^|\n]*\|){6}"
"""All that comes before people's words, which may have lines that begin like a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """One job, or one component of a heterogeneous one, with how it ended."""

    job_id: int
    leader: int
    """The first component's id; the same as `job_id` for a job of one component."""
    offset: int | None
    state: str
    reason: str
    exit_code: int
    """Of 128 and more `sacct` tells 128 less: 11 for 139."""
    signal: int
    """The signal that ended the script; 0 when none did."""
    restarts: int
    """How often it was put back into the queue; `sacct` does not tell, and 0 stands for that too."""
    nodes: tuple[str, ...]
    batch_host: str
    comment: str
    name: str
    start: float | None
    end: float | None
    """When it ended, or will at the latest; for a job that waits, an estimate."""
    time_limit_s: float | None
    partition: str
    stdout: str
    """Where the script's output goes; `sacct` does not tell."""
    failed_node: str = ""
    """The node for which it ended, or was put back into the queue; only newer versions tell."""


def make_scontrol_job(job_id: int) -> list[str]:
    """The command that prints one job with all its components, one record each."""
    return ["scontrol", "show", "job", "-o", str(job_id)]


def parse_scontrol_job(text: str) -> list[JobDetail]:
    """Read what `scontrol show job` prints, with `-o` or without; ValueError names what cannot be read."""
    if text.strip() == "No jobs in the system":
        return []
    return [_parse_shown(record) for record in split_records(text, r"JobId=\d+ ", "job")]


def _parse_shown(record: str) -> JobDetail:
    """Read one job.

    The order of keys is Slurm's, and people's words stand in known places: the name before `UserId`,
    the command, folders and comment from `Command` on. In between all values are Slurm's own.
    """
    head = _HEAD.match(record)
    if head is None:
        raise _unreadable(record, "no name")
    facts, _, free = record[head.end() :].partition(" Command=")
    het = _HET.search(record[: head.end("name")])
    reason = _REASON.search(facts)
    try:
        code, signal = _parse_exit(_value(facts, "ExitCode"))
        return JobDetail(
            job_id=int(head["job"]),
            leader=int(het[1]) if het else int(head["job"]),
            offset=int(het[2]) if het else None,
            state=_value(facts, "JobState"),
            reason=or_empty(reason[1].replace("_", " ")) if reason else "",
            exit_code=code,
            signal=signal,
            restarts=int(_value(facts, "Restarts", "0")),
            nodes=tuple(expand_hostlist(or_empty(_value(facts, "NodeList", "")))),
            batch_host=or_empty(_value(facts, "BatchHost", "")),
            comment=_parse_comment(free),
            name=head["name"],
            start=parse_stamp(_value(facts, "StartTime")),
            end=parse_stamp(_value(facts, "EndTime")),
            time_limit_s=parse_clock(_value(facts, "TimeLimit")),
            partition=_value(facts, "Partition"),
            stdout=_parse_stdout(free),
            failed_node=or_empty(_value(facts, "FailedNode", "")),
        )
    except ValueError as error:
        raise _unreadable(record, str(error)) from error


def _value(facts: str, key: str, default: str | None = None) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", facts)
    if match is None:
        if default is None:
            raise ValueError(f"no {key}")
        return default
    return match[1]


def _parse_exit(text: str) -> tuple[int, int]:
    """`3:0` is exit code 3, `0:9` is signal 9."""
    code, _, signal = text.partition(":")
    return int(code), int(signal or 0)


def _parse_comment(free: str) -> str:
    match = _COMMENT.search(free)
    if match is None:
        return ""
    before_output, found, _ = match[1].rpartition(" StdErr=")
    text = before_output if found else _until_next_key(match[1])
    return or_empty(text.partition(" Extra=")[0].strip())


def _parse_stdout(free: str) -> str:
    _, found, rest = free.rpartition(" StdOut=")
    return or_empty(_until_next_key(rest).strip()) if found else ""


def _until_next_key(text: str) -> str:
    match = _NEXT_KEY.search(text)
    return text[: match.start()] if match else text


def make_scontrol_states(job_id: int) -> list[str]:
    """The command with which Slurm from 23.11 on tells what COMPLETING hides: all words for a job's state."""
    return ["scontrol", "show", "job", str(job_id), "--json"]


def parse_states(text: str) -> list[str]:
    """The words for the state of a job, of all its components; ValueError when they cannot be read."""
    try:
        said = [job["job_state"] for job in json.loads(text)["jobs"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"states that cannot be read: {error}") from error
    return [word for words in said for word in ([words] if isinstance(words, str) else words)]


def make_sacct(job_ids: Iterable[int]) -> list[str]:
    """The command that asks the accounting for jobs, without their steps."""
    ids = ",".join(map(str, job_ids))
    return ["sacct", "-n", "-P", "-X", "-j", ids, "-o", ",".join(_SACCT_FIELDS)]


def parse_sacct(text: str) -> list[JobDetail]:
    """Read what `make_sacct` prints; ValueError names what cannot be read."""
    return [_parse_account(record) for record in split_records(text, _SACCT_START, "job")]


def _parse_account(record: str) -> JobDetail:
    fields = record.rstrip("\n").split("|", len(_SACCT_FIELDS) - 1)
    if len(fields) != len(_SACCT_FIELDS):
        raise _unreadable(record, f"{len(fields)} fields instead of {len(_SACCT_FIELDS)}")
    said: dict[str, str] = dict(zip(_SACCT_FIELDS, fields, strict=True))
    try:
        return _make_account(said)
    except ValueError as error:
        raise _unreadable(record, str(error)) from error


def _make_account(said: dict[str, str]) -> JobDetail:
    leader, offset = parse_job_number(said["JobID"])
    code, signal = _parse_exit(said["ExitCode"])
    nodes = expand_hostlist(or_empty(said["NodeList"]))
    return JobDetail(
        job_id=int(said["JobIDRaw"]),
        leader=leader,
        offset=offset,
        state=said["State"],
        # The accounting keeps why a job waited last, which is no reason for what came of it once it had nodes.
        reason="" if nodes else or_empty(said["Reason"]),
        exit_code=code,
        signal=signal,
        restarts=0,
        nodes=tuple(nodes),
        batch_host="",
        comment=or_empty(said["Comment"]),
        name=said["JobName"],
        start=parse_stamp(said["Start"]),
        end=parse_stamp(said["End"]),
        time_limit_s=parse_clock(said["Timelimit"]),
        partition=said["Partition"],
        stdout="",
    )


def _unreadable(record: str, why: str) -> ValueError:
    clean = record.strip()
    shown = clean if len(clean) <= 200 else f"{clean[:199]}…"
    return ValueError(f"a job that cannot be read: {shown!r}: {why}")
