"""What the keepers of a part are told by Slurm's clients, and which of its hosts was seen on which node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import StateError
from ...pki import Authority
from ...spec import JobSpec
from .. import parts
from ..base import Request
from . import commands
from .nodes import NodeRow
from .shape import Part


def make_start(
    request: Request, folder: Path, logs: Path, rows: Sequence[NodeRow]
) -> dict[str, Any]:
    """What is the same for every part of an allocation."""
    common = parts.make_start(request, folder, logs, rows)
    return {**common, "cluster": commands.cluster_name()}


def save_part(
    start: Mapping[str, Any],
    spec: JobSpec,
    part: Part,
    name: str,
    *,
    authority: Authority,
    rows: Sequence[NodeRow],
) -> None:
    """Write one part's file, and certificates for every node it might get."""
    wanted = [row for row in rows if part.shape.partition in {None, row.partition}]
    parts.save_part(start, spec, part.hosts, name, authority=authority, machines=wanted or rows)


def load_parts(folder: Path, generation: int | None) -> dict[int, dict[str, Any]]:
    """The parts of a generation by component, with what was noted of them since."""
    found = parts.load_parts(folder, generation)
    return {at: {**data, **_load_note(folder, data["part"])} for at, data in found.items()}


def _load_note(folder: Path, part: str) -> dict[str, Any]:
    """Which host was seen on which node, in which run of the job."""
    try:
        return json.loads((folder / f"nodes-{part}.json").read_bytes())
    except (OSError, ValueError):
        return {}


def save_note(folder: Path, part: str, note: Mapping[str, Any]) -> None:
    """Remember it: a list of nodes that has lost one does not tell which."""
    with contextlib.suppress(StateError):
        parts.save_told(folder / f"nodes-{part}.json", note)
