"""What keepers and batch clients have left in the job's folder."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..worker.wire import up_file

CLOCKS_S = 5.0
"""How much the clocks of a scheduler and of a file server may differ."""


def load_exit(folder: Path) -> int | None:
    """The exit code of a batch client, as the script wrote it down."""
    try:
        return int((folder / "exit").read_text())
    except (OSError, ValueError):
        return None


def load_farewells(folder: Path) -> list[str]:
    """Why keepers ended, where they did so by themselves."""
    said: set[str] = set()
    for path in folder.glob("ended-*.json"):
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
    if start is None:
        return False
    up = Path(part["record_folder"]) / up_file(f"{part['part']}.{index}")
    try:
        since, where = up.stat().st_mtime, up.read_text("utf-8")
    except (OSError, ValueError):
        return False
    if where and where != node:
        return False
    return start - CLOCKS_S <= since <= time.time() - CLOCKS_S
