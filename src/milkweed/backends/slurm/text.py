"""The text that Slurm's commands read and print, as values; nothing here runs a command.

Names that belong together are in modules of their own, and all are found here: states in
`states`, nodes in `nodes`, one job in full in `detail`, time in `times`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...status import Liveness
from ..hostlist import expand_hostlist
from ..marks import Mark, parse_mark, render_mark, render_sign
from .detail import (
    JobDetail,
    make_sacct,
    make_scontrol_job,
    parse_sacct,
    parse_scontrol_job,
)
from .nodes import SINFO_FORMAT, NodeRow, make_sinfo, parse_sinfo
from .reasons import REASONS, explain_job, explain_reason
from .records import make_format, or_empty, parse_job_number, parse_records
from .states import STATES, explain_state, liveness_of
from .times import parse_clock, parse_stamp, parse_time_limit, render_time_limit

__all__ = [
    "MINIMUM_VERSION",
    "REASONS",
    "SINFO_FORMAT",
    "SQUEUE_FORMAT",
    "STATES",
    "JobDetail",
    "JobRow",
    "Mark",
    "NodeRow",
    "explain_job",
    "explain_reason",
    "explain_state",
    "is_unreachable",
    "liveness_of",
    "make_env",
    "make_sacct",
    "make_scontrol_job",
    "make_sinfo",
    "make_squeue",
    "parse_job_id",
    "parse_mark",
    "parse_sacct",
    "parse_scontrol_job",
    "parse_sinfo",
    "parse_squeue",
    "parse_time_limit",
    "parse_version",
    "render_mark",
    "render_sign",
    "render_time_limit",
]

MINIMUM_VERSION = (20, 11)
"""The first version with all options that milkweed uses."""

_FIELDS = ("%i", "%A", "%T", "%N", "%B", "%S", "%e", "%L", "%r", "%k", "%j")
SQUEUE_FORMAT = make_format("job", *_FIELDS)

_VERSION = re.compile(r"\b(\d+)\.(\d+)")
_JOB_ID = re.compile(r"(\d+)(?:;\S+)?", re.ASCII)

_UNREACHABLE = (
    "unable to contact slurm controller",
    "unable to establish controller",
    "unable to establish configuration source",
    "could not establish a configuration source",
    "cannot stat file",
    "slurm backup controller in standby mode",
    "controller is in standby mode",
    "socket timed out on send/recv",
    "zero bytes were transmitted or received",
    "communication connection failure",
    "message send failure",
    "message receive failure",
    "communication shutdown failure",
    "header lengths are longer than data received",
    "unexpected missing socket",
    "connection rejected by handler",
    "connection forced closed",
    "connection timed out",
    "connection refused",
    "connection reset by peer",
    "no route to host",
    "network is unreachable",
    "transport endpoint is not connected",
    "munge encode failed",
    "munged communication error",
    "if munged is up",
    "protocol authentication error",
    "invalid authentication credential",
    "authentication credential expired",
    "slurm controller not responding",
    "unexpected message received",
)
_OURS_TO_SET = ("SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as `squeue` tells it; a heterogeneous job has a row for each component."""

    job_id: int
    leader: int
    """The first component's id; the same as `job_id` for a job of one component."""
    offset: int | None
    """Which component it is; None for a job of one component."""
    state: str
    nodes: tuple[str, ...]
    """While a job is COMPLETING, only the nodes that are not done yet."""
    batch_host: str
    start: float | None
    end: float | None
    time_left_s: float | None
    reason: str
    comment: str
    name: str

    @property
    def liveness(self) -> Liveness:
        """What its state means for an allocation."""
        return liveness_of(self.state)


def make_squeue(user: str) -> list[str]:
    """The command that prints one record for each job of a user, also of those that ended lately."""
    return ["squeue", "-a", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT]


def parse_squeue(text: str) -> list[JobRow]:
    """Read what `make_squeue` prints; ValueError names what cannot be read."""
    return [_parse_job(fields) for fields in parse_records(text, "job", len(_FIELDS))]


def _parse_job(fields: list[str]) -> JobRow:
    number, job_id, state, nodes, batch_host, start, end, left, reason, comment, name = fields
    try:
        leader, offset = parse_job_number(number)
        return JobRow(
            job_id=int(job_id),
            leader=leader,
            offset=offset,
            state=state,
            nodes=tuple(expand_hostlist(or_empty(nodes))),
            batch_host=or_empty(batch_host),
            start=parse_stamp(start),
            end=parse_stamp(end),
            time_left_s=parse_clock(left),
            reason=or_empty(reason),
            comment=or_empty(comment),
            name=name,
        )
    except ValueError as error:
        raise ValueError(f"a job that cannot be read: {'|'.join(fields)!r}: {error}") from error


def parse_version(text: str) -> tuple[int, int]:
    """Read `slurm-wlm 22.05.8`, as `sbatch --version` prints it, as `(22, 5)`."""
    match = _VERSION.search(text)
    if match is None:
        raise ValueError(f"{text.strip()[:200]!r} has no version of Slurm")
    return int(match[1]), int(match[2])


def parse_job_id(text: str) -> int:
    """Read the job's id from what `sbatch --parsable` prints: `123` or `123;cluster`."""
    for line in reversed(text.split()):
        if match := _JOB_ID.fullmatch(line):
            return int(match[1])
    raise ValueError(f"{text.strip()[:200]!r} has no job id")


def is_unreachable(stderr: str) -> bool:
    """Whether a command's error says that the controller did not answer, rather than that it refused."""
    text = stderr.lower()
    return any(phrase in text for phrase in _UNREACHABLE)


def make_env(environ: dict[str, str]) -> dict[str, str]:
    """The variables for Slurm's commands: settings that filter or reshape their output are left out."""
    kept = {key: value for key, value in environ.items() if not key.startswith(_OURS_TO_SET)}
    return {**kept, "SLURM_TIME_FORMAT": "%s"}
