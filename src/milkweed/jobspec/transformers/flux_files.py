"""Files of the submitting machine on their way into a job of Flux: in its jobspec, or from an archive."""

from __future__ import annotations

import base64
import functools
import os
import stat
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ..graph import Stage
from .staged import BODY_BYTES, walk_files

_SAFE = str.maketrans({"/": "+", ".": "_"})


def archive_name(run_id: str, step_id: str) -> str:
    """How the archive of a staged file is called in the instance."""
    return f"milkweed-{run_id}-{step_id.translate(_SAFE)}"


def make_entries(step: Stage, run_id: str) -> dict[str, Any] | None:
    """A file or folder as entries of a jobspec; None when it is too large to travel there."""
    return _load_entries(run_id, os.path.expanduser(step.path))


@functools.lru_cache(maxsize=32)
def _load_entries(run_id: str, path: str) -> dict[str, Any] | None:
    del run_id  # one look at it for all jobs of a plan
    found: dict[str, Any] = {}
    total = 0
    root = Path(path)
    for source, name in walk_files(root.resolve(), root.name or root.resolve().name):
        total += 512 + source.lstat().st_size
        if total > BODY_BYTES:
            return None
        found[name] = _make_entry(source, name)
    return found


def _make_entry(path: Path, name: str) -> dict[str, Any]:
    mode = path.lstat().st_mode
    try:
        name.encode()
        target = os.readlink(path) if path.is_symlink() else ""
        target.encode()
    except UnicodeEncodeError as error:
        hint = "rename it, or pack the folder into one file"
        raise SpecError(f"path: the name {name!r} is not UTF-8", hint=hint) from error
    if stat.S_ISLNK(mode):
        return {"mode": mode, "data": target}
    if stat.S_ISDIR(mode):
        return {"mode": mode | 0o700}
    data = base64.b64encode(path.read_bytes()).decode()
    return {"mode": mode, "data": data, "encoding": "base64"}
