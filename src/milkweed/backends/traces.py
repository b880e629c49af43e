"""What keepers and batch clients have left in the job's folder."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..logs import read_tail
from ..worker.wire import up_file
from .base import TAIL_LINES

CLIENT_LOG = "client.log"
"""What a batch client prints, and what the script says of it."""

CLOCKS_S = 5.0
"""How much the clocks of a scheduler and of a file server may differ."""


def load_exit(folder: Path) -> int | None:
    """The exit code of a batch client, as the script wrote it down."""
    try:
        return int((folder / "exit").read_text())
    except (OSError, ValueError):
        return None


def load_client_words(logs: Sequence[str]) -> list[str]:
    """The end of what a batch client printed, in the first of these folders that has some."""
    for folder in dict.fromkeys(logs):
        if tail := read_tail(f"{folder}/{CLIENT_LOG}", TAIL_LINES).splitlines():
            return ["the end of the client's log:", *(f"  {line}" for line in tail)]
    return []


def load_farewells(folder: Path, part: str = "*", start: float | None = 0.0) -> list[str]:
    """Why keepers ended, where they did so by themselves: those of a part, in the run that began at `start`."""
    said: set[str] = set()
    for path in folder.glob(f"ended-{part}.*.json"):
        if load_written_at(path, start) is None:
            continue
        try:
            said.add(str(json.loads(path.read_bytes())["reason"]))
        except (OSError, ValueError, KeyError):
            continue
    return sorted(reason for reason in said if "SIGTERM" not in reason)


def note_up(part: Mapping[str, Any], index: int) -> None:
    """Note that a host's keeper is there now: one that does not see the folder cannot do so itself."""
    with contextlib.suppress(OSError):
        (Path(part["record_folder"]) / up_file(f"{part['part']}.{index}")).touch(mode=0o600)


def was_up(part: Mapping[str, Any], index: int, start: float | None, node: str) -> bool:
    """Whether a host's keeper has been there in this run of the job, before it was asked just now.

    A job that was put back into the queue may start anew within what clocks differ, most likely elsewhere: keepers
    that see the folder say where they are.
    """
    found = _load_up(part, index, start)
    return found is not None and found[1] in {"", node} and found[0] <= time.time() - CLOCKS_S


def where_up(part: Mapping[str, Any], index: int, start: float | None) -> str:
    """The node where a host's keeper came up in this run of the job; empty when none has said so."""
    found = _load_up(part, index, start)
    return "" if found is None else found[1]


def _load_up(part: Mapping[str, Any], index: int, start: float | None) -> tuple[float, str] | None:
    """When and where a keeper was there, unless it was in an earlier run of the job."""
    up = Path(part["record_folder"]) / up_file(f"{part['part']}.{index}")
    try:
        since, where = load_written_at(up, start), up.read_text("utf-8")
    except (OSError, ValueError):
        return None
    return None if since is None else (since, where)


def load_written_at(path: Path, start: float | None) -> float | None:
    """When a file was written in the run of a job that began at `start`; None for an older one, or none."""
    try:
        since = path.stat().st_mtime
    except OSError:
        return None
    return None if start is None or since < start - CLOCKS_S else since
