"""What a keeper leaves behind: nothing, or the reason for its end."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def save(path: Path, data: Any) -> None:
    """Write a file in one step; the folder around it is closed to others."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(json.dumps(data))
    temporary.replace(path)


def remove_all(run: Path, record_folder: str) -> None:
    """Nobody looks here again: remove the run folder and the job's record, and folders that are empty then."""
    folders = [run, *([Path(record_folder)] if record_folder else [])]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    above = [run.parent]
    if record_folder:
        above += [Path(record_folder).parent, Path(record_folder).parent.parent]
    for folder in above:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only when nothing else is in it


def ended_file(start: Mapping[str, Any]) -> Path:
    """Where a keeper of a scheduler's machine tells why it ended."""
    return Path(start["folder"]) / f"ended-{start['share']}.json"


def leave_remote(run: Path, start: Mapping[str, Any], reason: str, *, keep: bool) -> None:
    """On a scheduler's machine nothing is left; the reason goes to the job's folder, where it is seen."""
    if keep:
        with contextlib.suppress(OSError):
            save(ended_file(start), {"reason": reason, "at": time.time()})
    remove_all(run, "" if keep else start["record_folder"])
