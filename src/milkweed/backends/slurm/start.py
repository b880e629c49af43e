"""What the keepers of a part are told, and the certificates they show: files in the job's own folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...bell import bell, route_to
from ...errors import SpecError, StateError
from ...pki import Authority, parse_names, save_credentials
from ...spec import JobSpec
from ...state import save_private
from ...worker import wire
from ..base import Request
from ..credentials import KEY_FOLDER
from . import commands
from .nodes import NodeRow
from .script import DEFAULT_PYTHON
from .shape import Part

NAMES_PER_CERTIFICATE = 200
"""A certificate is sent at every connection, so a large cluster needs several."""


_turns = itertools.count(0, 7)
"""Where the hosts of an allocation begin to look for ports: each that this process asks for somewhere else."""


def make_start(
    request: Request, folder: Path, logs: Path, rows: Sequence[NodeRow]
) -> dict[str, Any]:
    """What is the same for every part of an allocation."""
    spec = request.spec
    return {
        "apply_id": request.apply_id,
        "cluster": commands.cluster_name(),
        "keep": request.keep or bool(request.client_script),
        "idle_timeout_s": spec.lifetime.idle_timeout_s,
        "time_limit_s": None,
        "queued": True,
        "cwd": os.getcwd(),
        "logs": str(logs),
        "record_folder": str(folder),
        "port": spec.options.get("monarch_port", 22222),
        "turn": next(_turns),
        "python": spec.options.get("python_exe", DEFAULT_PYTHON),
        "addresses": {row.name: row.address or row.hostname or row.name for row in rows},
        "bells": _bells(rows),
        "batch": None,
    }


def _bells(rows: Sequence[NodeRow]) -> list[list[str | int]]:
    """Where new hosts can wake this client."""
    with contextlib.suppress(OSError):
        for row in rows[:1]:
            if (port := bell.open()) and (address := route_to(row.address or row.name)):
                return [[address, port]]
    return []


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
    folder = Path(start["record_folder"])
    wanted = [row for row in rows if part.shape.partition in {None, row.partition}]
    envs = {mesh.name: spec.mesh_env(mesh) for mesh in spec.meshes}
    data = {
        **start,
        "part": name,
        "first": name.endswith(".0"),
        "hosts": [{"mesh": mesh, "rank": rank, "env": envs[mesh]} for mesh, rank in part.hosts],
        "released": [],
        "certificates": _issue(authority, folder / KEY_FOLDER, name, wanted or rows),
    }
    save_part_data(folder, data)


def save_part_data(folder: Path, data: Mapping[str, Any]) -> None:
    """Write a part's file anew."""
    notes = {"nodes", "nodes_start"}
    _save(folder / wire.part_file(data["part"]), {k: v for k, v in data.items() if k not in notes})


def _save(path: Path, data: Mapping[str, Any]) -> None:
    save_private(path, json.dumps(data).encode(), what="what the hosts are told")


def _issue(
    authority: Authority, keys: Path, part: str, rows: Sequence[NodeRow]
) -> list[dict[str, Any]]:
    nodes = {row.name: row for row in rows}
    names = sorted(nodes)
    found: list[dict[str, Any]] = []
    for at in range(0, len(names), NAMES_PER_CERTIFICATE):
        group = names[at : at + NAMES_PER_CERTIFICATE]
        leaf = authority.issue([name for node in group for name in _names(nodes[node])])
        folder = keys / f"host-{part}-{at // NAMES_PER_CERTIFICATE}"
        save_credentials(folder, leaf, authority.cert_pem)
        found.append({"folder": str(folder), "nodes": group})
    return found


def _names(row: NodeRow) -> list[str]:
    """What a certificate can carry of a node's names; one without any is let in by other means."""
    found: list[str] = []
    for name in dict.fromkeys(filter(None, (row.address, row.hostname, row.name))):
        with contextlib.suppress(SpecError):
            parse_names([name])
            found.append(name)
    return found


def load_parts(folder: Path, generation: int | None) -> dict[int, dict[str, Any]]:
    """The parts of a generation by component, as they were written; with None, of any generation."""
    found: dict[int, dict[str, Any]] = {}
    for path in folder.glob(wire.part_file(f"{'*' if generation is None else generation}.*")):
        component = path.name.removesuffix(".json").rpartition(".")[2]
        data: dict[str, Any] = json.loads(path.read_bytes())
        found[int(component)] = {**data, **_load_note(folder, data["part"])}
    return found


def _load_note(folder: Path, part: str) -> dict[str, Any]:
    """Which host was seen on which node, in which run of the job."""
    try:
        return json.loads((folder / f"nodes-{part}.json").read_bytes())
    except (OSError, ValueError):
        return {}


def save_note(folder: Path, part: str, note: Mapping[str, Any]) -> None:
    """Remember it: a list of nodes that has lost one does not tell which."""
    with contextlib.suppress(StateError):
        _save(folder / f"nodes-{part}.json", note)
