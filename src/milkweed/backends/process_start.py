"""What a keeper is told: the text of its start file, and the certificates it hands to hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .. import identity
from ..registry import folder_of
from ..spec import JobSpec, MeshSpec
from ..worker import wire
from .base import Request


def make_start(request: Request, run: Path, *, hosts: bool) -> dict[str, Any]:
    """Everything the keeper needs, as plain data."""
    spec = request.spec
    logs = spec.options.get("log_dir") or str(run / wire.LOG_FOLDER)
    return {
        "apply_id": request.apply_id,
        "keep": request.keep,
        "owner": identity.process(os.getpid()),
        "idle_timeout_s": spec.lifetime.idle_timeout_s,
        "time_limit_s": spec.lifetime.time_limit_s,
        "cwd": os.getcwd(),
        "logs": os.path.abspath(logs),
        "credentials": "",
        "record_folder": str(folder_of(request.apply_id)),
        "hosts": _make_hosts(spec, run, os.path.abspath(logs)) if hosts else [],
        "batch": _make_batch(request),
    }


def _make_hosts(spec: JobSpec, run: Path, logs: str) -> list[dict[str, Any]]:
    ranked = [(mesh, rank) for mesh in spec.meshes for rank in range(mesh.hosts)]
    return [
        _make_host(spec, mesh, rank, f"ipc://{run / wire.SOCKET_FOLDER / str(number)}", logs)
        for number, (mesh, rank) in enumerate(ranked)
    ]


def _make_host(spec: JobSpec, mesh: MeshSpec, rank: int, ipc: str, logs: str) -> dict[str, Any]:
    transport = spec.options.get("transport", "ipc")
    return {
        "mesh": mesh.name,
        "rank": rank,
        "env": spec.mesh_env(mesh),
        "log": f"{logs}/{mesh.name}.{rank}.log",
        "transport": transport,
        "address": ipc if transport == "ipc" else "",
    }


def _make_batch(request: Request) -> dict[str, Any] | None:
    if not request.client_script:
        return None
    env = {**request.spec.env, wire.STATE_ENV: request.state_path}
    return {"argv": list(request.client_script), "env": env}


def ensure_credentials(start: dict[str, Any], run: Path, apply_id: str) -> None:
    """Issue the job's own authority and one certificate for its hosts and one for its clients."""
    if not any(host["transport"] == "tls" for host in start["hosts"]):
        return
    import socket

    from ..pki import engine_environment, make_authority, save_authority, save_credentials

    authority = make_authority(apply_id)
    folder = run / "tls"
    save_authority(folder, authority)
    names = ["localhost", "127.0.0.1", socket.gethostname()]
    for who in ("host", "client"):
        leaf = authority.issue(names)
        credentials = save_credentials(folder / who, leaf, authority.cert_pem)
        if who == "host":
            for host in start["hosts"]:
                host["env"] = {**host["env"], **engine_environment(credentials)}
    start["credentials"] = str(folder / "client")
