"""The text that `flux` reads and prints, as values; nothing here runs a command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from ...status import Liveness
from ..hostlist import expand_hostlist
from ..marks import Mark, parse_mark, render_mark

MINIMUM_VERSION = (0, 51)
"""The first version whose jobs bring files along."""
LATELY = "-1h"
"""Jobs that have ended longer ago are looked for by their numbers only."""

STATES: Mapping[str, tuple[Liveness, str]] = MappingProxyType(
    {
        # state: what it means for an allocation, plain words
        "NEW": (Liveness.PENDING, "it was taken just now"),
        "DEPEND": (Liveness.PENDING, "it waits for what it depends on"),
        "PRIORITY": (Liveness.PENDING, "it waits for a priority"),
        "SCHED": (Liveness.PENDING, "it waits for nodes"),
        "RUN": (Liveness.RUNNING, "it runs"),
        # Its processes are being ended; how it ended is told when they are gone.
        "CLEANUP": (Liveness.UNKNOWN, "its processes are being ended"),
        "INACTIVE": (Liveness.ENDED, "it has ended"),
    }
)
RESULTS: Mapping[str, str] = MappingProxyType(
    {
        "COMPLETED": "it ended by itself, with exit code 0",
        "FAILED": "it failed",
        "CANCELED": "it was cancelled",
        "TIMEOUT": "its time limit was reached",
    }
)

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_F58 = re.compile(rf"[fƒ]([{_DIGITS}]{{1,12}})")
_VERSION = re.compile(r"^(?:commands|flux-core)?:?\s*v?(\d+)\.(\d+)", re.MULTILINE)
_WORD = ":milkweed:"
_UNREACHABLE = (
    "unable to connect to flux",
    "flux_open:",
    "broker socket",
    "to a uri",
    "connection refused",
    "connection reset",
    "connection timed out",
    "broken pipe",
    "no route to host",
    "host is unreachable",
    "network is unreachable",
    "operation timed out",
    "function not implemented",
    "no service matching",
    "broker is offline",
    "lost connection",
    "shutting down",
    "protocol error",
    "flux_reactor_run",
    "may not interoperate",
    "ssh:",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as `flux jobs --json` tells it."""

    job_id: int
    state: str
    result: str = ""
    name: str = ""
    nodes: tuple[str, ...] = ()
    """In the order of its tasks; a machine with several brokers is there several times."""
    start: float | None = None
    end: float | None = None
    """When it ended, or will be ended at its time limit."""
    exit_code: int | None = None
    trouble: str = ""
    """The type of the exception that was raised for it: cancel, timeout, exec, alloc."""
    note: str = ""
    severity: int = 0
    queue: str = ""
    urgency: int = 16
    dependencies: tuple[str, ...] = ()
    waits_for: str = ""
    """The scheduler's own words for why it waits."""
    expected: float | None = None

    @property
    def liveness(self) -> Liveness:
        """What its state means for an allocation."""
        return liveness_of(self.state)

    @property
    def shown_id(self) -> str:
        """Its number as Flux shows it."""
        return render_job_id(self.job_id)


def liveness_of(state: str) -> Liveness:
    """What a state of Flux means for an allocation; a word that is not known is UNKNOWN."""
    return STATES.get(state, (Liveness.UNKNOWN, ""))[0]


def make_jobs(job_ids: tuple[int, ...] = ()) -> list[str]:
    """The words that list this user's jobs that live or ended lately, or those with given numbers."""
    if job_ids:
        return ["jobs", "--json", *(str(job_id) for job_id in job_ids)]
    return ["jobs", "--json", "--count=0", f"--since={LATELY}"]


def parse_jobs(text: str) -> list[JobRow]:
    """Read what `make_jobs` prints; ValueError names what cannot be read."""
    if not text.strip():
        return []
    try:
        data: Any = json.loads(text)
        # One job that was asked for by its number is printed alone.
        found: Any = data.get("jobs", [data])
        return [_parse_job(item) for item in found]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no list of jobs: {text.strip()[:200]!r}: {error}") from error


def _parse_job(item: Mapping[str, Any]) -> JobRow:
    exception = _mapping(item.get("exception"))
    sched = _mapping(_mapping(item.get("annotations")).get("sched"))
    return JobRow(
        job_id=int(item["id"]),
        state=str(item["state"]),
        result=str(item.get("result", "")),
        name=str(item.get("name", "")),
        nodes=tuple(expand_hostlist(str(item.get("nodelist", "")))),
        start=_moment(item.get("t_run")),
        end=_moment(item.get("t_inactive")) or _moment(item.get("expiration")),
        exit_code=int(item["returncode"]) if "waitstatus" in item else None,
        trouble=str(exception.get("type", "")),
        note=str(exception.get("note", "")),
        severity=int(exception.get("severity", 0)),
        queue=str(item.get("queue", "")),
        urgency=int(item.get("urgency", 16)),
        dependencies=tuple(str(word) for word in item.get("dependencies", ())),
        waits_for=str(sched.get("reason_pending", "")),
        expected=_moment(sched.get("t_estimate")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _moment(value: object) -> float | None:
    return float(value) or None if isinstance(value, int | float) else None


def render_name(mark: Mark) -> str:
    """A job's name in Flux: the name a person gave, and whose it is."""
    _milkweed, _, rest = render_mark(mark).partition(":")
    return f"{mark.name}{_WORD}{rest.removesuffix(f':{mark.name}')}"


def parse_name(name: str) -> Mark | None:
    """Read a job's name; None when it is not milkweed's."""
    given, _, rest = name.partition(_WORD)
    return parse_mark(f"milkweed:{rest}:{given}")


def parse_job_id(text: str) -> int:
    """Read a job's number as Flux prints it: `ƒ267QRnP`, `f267QRnP` or decimal."""
    for word in reversed(text.split()):
        if word.isdecimal() and word.isascii():
            return int(word)
        if match := _F58.fullmatch(word):
            number = 0
            for digit in match[1]:
                number = number * len(_DIGITS) + _DIGITS.index(digit)
            return number
    raise ValueError(f"{text.strip()[:200]!r} has no job id")


def render_job_id(number: int) -> str:
    """Write a job's number as Flux does, in letters that every terminal has."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return f"f{digits}"


def parse_version(text: str) -> tuple[int, int]:
    """Read what `flux version` prints as `(0, 88)`."""
    match = _VERSION.search(text)
    if match is None:
        raise ValueError(f"{text.strip()[:200]!r} has no version of Flux")
    return int(match[1]), int(match[2])


def is_unreachable(stderr: str) -> bool:
    """Whether an error says that the instance did not answer, rather than that it refused."""
    text = stderr.lower()
    return any(phrase in text for phrase in _UNREACHABLE)
