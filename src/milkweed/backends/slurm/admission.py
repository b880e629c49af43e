"""Letting in hosts that do not see the job's folder, through a step that only the job's owner can start.

Requests and certificates pass through it, which anybody may read. What must stay private follows over TLS.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...control import Connection
from ...errors import AccessError, DeadlineError, SpecError, UnreachableError
from ...pki import Authority, load_authority, parse_names
from ..credentials import KEY_FOLDER
from . import commands
from .places import Place
from .script import DEFAULT_PYTHON, render_bridge, render_visit

GRACE_S = 6.0
"""How long hosts may take to answer before somebody looks whether they wait to be let in."""
VISIT_TIMEOUT_S = 20.0


def is_silent(place: Place, now: float) -> bool:
    """Whether a host has been silent for so long that it may be waiting."""
    return place.row is not None and place.row.start is not None and now - place.row.start > GRACE_S


def admit(folder: Path, places: Sequence[Place], door: Callable[[Place], str]) -> None:
    """Visit every component that has silent hosts; let in those that wait, and tell them what they are."""
    authority = load_authority(folder / KEY_FOLDER)
    for component in sorted({place.component for place in places}):
        silent = [place for place in places if place.component == component]
        with contextlib.suppress(UnreachableError, AccessError, subprocess.SubprocessError):
            for place in _visit(authority, silent):
                _begin(door(place), place)


def _visit(authority: Authority, places: Sequence[Place]) -> list[Place]:
    """Fetch requests, bring certificates; the hosts that were let in."""
    first = places[0]
    if first.row is None:
        return []
    command = [
        *render_visit(first.row, len(first.row.nodes)),
        *render_bridge(first.part.get("python", DEFAULT_PYTHON)),
    ]
    share = f"{first.part['apply_id'].replace('-', '')[:16]}.{first.part['part']}"
    step = commands.start(command)
    clock = threading.Timer(VISIT_TIMEOUT_S, step.kill)
    clock.start()
    try:
        return _talk(step, share, authority, {place.node: place for place in places}, first)
    finally:
        clock.cancel()
        step.kill()
        with contextlib.suppress(OSError):
            step.communicate()


def _talk(
    step: subprocess.Popen[str],
    share: str,
    authority: Authority,
    silent: dict[str, Place],
    first: Place,
) -> list[Place]:
    nodes = first.row.nodes if first.row else ()
    _say(step, {"share": share, "index_env": "SLURM_PROCID"})
    admitted: dict[str, Any] = {}
    for _ in nodes:
        if (request := _hear(step)) is None:
            break  # one whose keeper is gone says nothing, and ends its task
        # One that was let in already, or sees the folder and starts slowly, asks for nothing.
        if request.get("ev") == "request":
            admitted[request["index"]] = _certify(authority, request, nodes, first)
    if not admitted:
        return []
    _say(step, admitted)
    heard = [answer for _ in admitted if (answer := _hear(step))]
    let_in = {nodes[int(answer["index"])] for answer in heard if answer.get("ev") == "admitted"}
    return [place for node, place in silent.items() if node in let_in]


def _certify(
    authority: Authority, request: dict[str, Any], nodes: Sequence[str], first: Place
) -> dict[str, str]:
    node = nodes[int(request["index"])]
    names = [first.part["addresses"].get(node, node), node]
    for name in request["names"]:
        with contextlib.suppress(SpecError):
            parse_names([name])
            names.append(name)
    certificate = authority.certify(request["csr"].encode(), names)
    return {"certificate": certificate.decode(), "authority": authority.cert_pem.decode()}


def _say(step: subprocess.Popen[str], message: object) -> None:
    if step.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            step.stdin.write(json.dumps(message) + "\n")
            step.stdin.flush()


def _hear(step: subprocess.Popen[str]) -> dict[str, Any] | None:
    line = step.stdout.readline() if step.stdout is not None else ""
    return json.loads(line) if line else None


def _begin(address: str, place: Place) -> None:
    """Tell a host what it is, over TLS."""
    start: dict[str, Any] = {**place.part, "certificates": [], "record_folder": ""}
    with (
        contextlib.suppress(UnreachableError, DeadlineError),
        Connection(address, waiting=True) as connection,
    ):
        connection.ask({"op": "begin", "start": start}, "status")
