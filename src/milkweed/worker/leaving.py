"""What a keeper leaves behind: nothing, or the reason for its end."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import wire


def save(path: Path, data: Any) -> None:
    """Write a file in one step; the folder around it is closed to others."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(json.dumps(data))
    temporary.replace(path)


def remove_all(run: Path, record_folder: str) -> None:
    """Nobody looks here again: remove the run folder and the job's record, and folders that are empty then."""
    folders = [run, *([Path(record_folder)] if record_folder else [])]
    for folder in (*folders, *folders):  # again, for what another host has put there meanwhile
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


def note_met(start: Mapping[str, Any]) -> None:
    """Tell in the job's folder that a client was there, as far as the folder is seen."""
    part = start["share"].rpartition(".")[0]
    with contextlib.suppress(OSError):
        (Path(start["folder"]) / wire.met_file(part)).touch(mode=0o600)


def leave_remote(
    run: Path, start: Mapping[str, Any], reason: str, *, keep: bool, used: bool = True
) -> None:
    """On a scheduler's machine nothing is left; the reason goes to the job's folder, where it is seen.

    The folder is of all generations: the last that its owner has used takes it along.
    """
    followed = _is_followed(start)
    if keep or (followed and start["record_folder"]):
        with contextlib.suppress(OSError):
            save(ended_file(start), {"reason": reason, "at": time.time(), "left": not keep})
    alone = used or _generation(start) == 0 or _is_left(start)
    remove_all(run, start["record_folder"] if alone and not keep and not followed else "")


def _generation(start: Mapping[str, Any]) -> int:
    return int(start["share"].partition(".")[0])


def _is_followed(start: Mapping[str, Any]) -> bool:
    """Whether a later generation was asked for, which needs the folder."""
    own, found = _generation(start), Path(start["folder"]).glob(wire.part_file("*"))
    return any(int(path.stem.partition("-")[2].partition(".")[0]) > own for path in found)


def _is_left(start: Mapping[str, Any]) -> bool:
    """Whether the generation before was left by its owner, so that nobody comes to this one either."""
    before = Path(start["folder"]).glob(f"ended-{_generation(start) - 1}.*.json")
    return any(_says_left(path) for path in before)


def _says_left(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes()).get("left"))
    except (OSError, ValueError):
        return False
