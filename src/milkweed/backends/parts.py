"""What the keepers of a part are told, and the certificates they show: files in the job's own folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .. import registry
from ..bell import bell, route_to
from ..errors import SpecError
from ..pki import Authority, parse_names, save_credentials
from ..spec import JobSpec
from ..state import save_private
from ..worker import wire
from .base import Request
from .credentials import KEY_FOLDER
from .launch import DEFAULT_PYTHON

NAMES_PER_CERTIFICATE = 200
"""A certificate is sent at every connection, so a large cluster needs several."""
_turns = itertools.count(0, 7)
"""Where the hosts of an allocation begin to look for ports: each that this process asks for somewhere else."""


class Machine(Protocol):
    """A machine that a host may come to, as its scheduler names it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def address(self) -> str: ...  # noqa: D102
    @property
    def hostname(self) -> str: ...  # noqa: D102


def make_start(
    request: Request, folder: Path, logs: Path, machines: Sequence[Machine]
) -> dict[str, Any]:
    """What is the same for every part of an allocation."""
    spec = request.spec
    return {
        "apply_id": request.apply_id,
        "keep": request.keep or bool(request.client_script),
        "idle_timeout_s": spec.lifetime.idle_timeout_s,
        "time_limit_s": None,
        "queued": request.waits,
        "cwd": os.getcwd(),
        "logs": str(logs),
        "record_folder": str(folder),
        "port": spec.options.get("monarch_port", 22222),
        "turn": next(_turns),
        "python": spec.options.get("python_exe", DEFAULT_PYTHON),
        "addresses": {row.name: row.address or row.hostname or row.name for row in machines},
        "bells": _bells(machines),
        "follows_until": request.follows_until,
        "batch": None,
        "with_client": bool(request.client_script),
    }


def _bells(machines: Sequence[Machine]) -> list[list[str | int]]:
    """Where new hosts can wake this client."""
    with contextlib.suppress(OSError):
        for row in machines[:1]:
            if (port := bell.open()) and (address := route_to(row.address or row.name)):
                return [[address, port]]
    return []


def save_part(
    start: Mapping[str, Any],
    spec: JobSpec,
    hosts: Sequence[tuple[str, int]],
    name: str,
    *,
    authority: Authority,
    machines: Sequence[Machine],
) -> None:
    """Write one part's file, and certificates for every machine it might get."""
    folder = Path(start["record_folder"])
    envs = {mesh.name: spec.mesh_env(mesh) for mesh in spec.meshes}
    data = {
        **start,
        "part": name,
        "first": name.endswith(".0"),
        "hosts": [{"mesh": mesh, "rank": rank} for mesh, rank in hosts],
        "envs": {mesh: envs[mesh] for mesh, _rank in hosts},
        "released": [],
        "certificates": _issue(authority, folder / KEY_FOLDER, name, machines),
    }
    save_part_data(folder, data)


def save_part_data(folder: Path, data: Mapping[str, Any]) -> None:
    """Write a part's file anew."""
    notes = {"nodes", "nodes_start", "job"}
    save_told(
        folder / wire.part_file(data["part"]), {k: v for k, v in data.items() if k not in notes}
    )


def keep_parts(folder: Path) -> None:
    """Have hosts that start from now on outlive their client, of whatever generation."""
    for path in folder.glob(wire.part_file("*")):
        with contextlib.suppress(FileNotFoundError):  # it was ended meanwhile
            data = json.loads(path.read_bytes())
            if not data["keep"]:
                save_told(path, {**data, "keep": True})


def save_told(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file that hosts are told something by."""
    save_private(path, json.dumps(data).encode(), what="what the hosts are told")


def _issue(
    authority: Authority, keys: Path, part: str, rows: Sequence[Machine]
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


def _names(row: Machine) -> list[str]:
    """What a certificate can carry of a machine's names; one without any is let in by other means."""
    found: list[str] = []
    for name in dict.fromkeys(filter(None, (row.address, row.hostname, row.name))):
        with contextlib.suppress(SpecError):
            parse_names([name])
            found.append(name)
    return found


def load_parts(folder: Path, generation: int | None) -> dict[int, dict[str, Any]]:
    """The parts of a generation by component, as they were written; with None, of any generation.

    Another client may end the job meanwhile.
    """
    found: dict[int, dict[str, Any]] = {}
    for path in folder.glob(wire.part_file(f"{'*' if generation is None else generation}.*")):
        component = path.name.removesuffix(".json").rpartition(".")[2]
        with contextlib.suppress(FileNotFoundError):
            found[int(component)] = json.loads(path.read_bytes())
    return found


def ensure_logs(spec: JobSpec, apply_id: str) -> Path:
    """The folder for the hosts' logs: one for each allocation, so that two never share a file."""
    base = spec.options.get("log_dir")
    folder = registry.folder_of(apply_id) / "logs"
    if base:
        folder = Path(base).absolute() / f"{spec.name}-{apply_id[:8]}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"log_dir: {base!r} cannot be made",
            seen=str(error),
            hint="name a folder that you may write to, or leave it out",
        ) from error
    return folder
