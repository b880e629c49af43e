"""Telling which rank failed first, and how."""

from __future__ import annotations

import datetime as dt
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RanksFailedError
from .attempt import Outcome

Message = Mapping[str, Any]
MAX_LINES = 15


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def describe_rank(failure: Message) -> str:
    """Which rank it is, and where."""
    return f"rank {failure['rank']} (local rank {failure['local']} on host {failure['host']})"


def describe_end(failure: Message) -> str:
    """Which rank ended, and how."""
    return f"{describe_rank(failure)} {describe_exit(failure['code'])}"


def read_error(text: str) -> str:
    """The message of an exception that a program has recorded, as torch's `record` writes it."""
    try:
        found: Any = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return text.strip()
    if found.__class__ is not dict:
        return str(found)
    more: Any = found.get("extraInfo")
    trace: Any = more.get("py_callstack", "") if more.__class__ is dict else ""
    return f"{found.get('message', '')}\n{trace}".strip()


def copy_error(failure: Message, path: str) -> None:
    """Give what a rank recorded to whoever started this program, with its exit code, as torchrun does."""
    try:
        told: Any = json.loads(failure["error"])
        if isinstance(told["message"], dict):
            told["message"]["errorCode"] = failure["code"]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(told, file)
    except (OSError, ValueError, KeyError, TypeError):
        return


def make_report(outcome: Outcome, *, restarts: int) -> RanksFailedError:
    """The error for a run that failed for good."""
    first = outcome.failures[0]
    error = RanksFailedError(
        f"{describe_end(first)}{_describe_restarts(restarts)}",
        seen="\n".join(_describe_seen(first, outcome)),
        hint=_hint(first["code"]),
    )
    error.rank, error.local_rank, error.host = first["rank"], first["local"], first["host"]
    error.exit_code = first["code"]
    error.failures = outcome.failures
    return error


def _describe_restarts(restarts: int) -> str:
    if not restarts:
        return ""
    return f", after {restarts} restart{'s' if restarts > 1 else ''}"


def _describe_seen(first: Message, outcome: Outcome) -> list[str]:
    at = dt.datetime.fromtimestamp(first["at"], tz=dt.UTC).astimezone()
    lines = [f"at {at:%H:%M:%S}, process {first['pid']}"]
    told = read_error(first["error"]).splitlines() or list(first["tail"])
    lines += [f"| {line}" for line in told[-MAX_LINES:]] or ["it printed nothing"]
    return [*lines, *_describe_others(outcome.failures[1:])]


def _describe_others(others: Sequence[Message]) -> list[str]:
    failed = [failure for failure in others if not failure["halted"]]
    lines = [f"then {describe_end(failure)}" for failure in failed[:5]]
    if len(failed) > len(lines):
        lines.append(f"and {len(failed) - len(lines)} more ranks failed")
    if ended := len(others) - len(failed):
        lines.append(f"{ended} other rank{'s were' if ended > 1 else ' was'} ended for it")
    return lines


def _hint(code: int) -> str:
    if code == -signal.SIGKILL:
        return (
            "SIGKILL often comes from the kernel when memory runs out: `dmesg` on that host tells"
        )
    return ""
