"""Letting in a host that does not see the job's folder: what is said, whatever carries it to the host.

Requests and certificates may be read by anybody. What must stay private follows over TLS.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from typing import Any, cast

from ..control import Connection
from ..errors import DeadlineError, SpecError, UnreachableError
from ..pki import Authority, parse_names
from ..worker.enrol import BRIDGE_MARK
from .places import Place

GRACE_S = 6.0
"""How long hosts may take to answer before somebody looks whether they wait to be let in."""


def name_share(part: Mapping[str, Any], index: int | str) -> str:
    """The run folder of a host on its machine; `*` for whichever host of the part is there."""
    return f"{part['apply_id'].replace('-', '')[:16]}.{part['part']}.{index}"


def certify(
    authority: Authority, request: Mapping[str, Any], place: Place[object]
) -> dict[str, str]:
    """Which host it is, and a certificate with the names it is known by and those it gives itself."""
    names = [place.machine, place.node]
    for name in request["names"]:
        with contextlib.suppress(SpecError):
            parse_names([name])
            names.append(name)
    certificate = authority.certify(request["csr"].encode(), names)
    said = {"certificate": certificate.decode(), "authority": authority.cert_pem.decode()}
    return {"host": place.host, **said}


def say(step: subprocess.Popen[str], message: object) -> None:
    """Send one message to whatever runs on the host's machine."""
    if step.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            step.stdin.write(json.dumps(message) + "\n")
            step.stdin.flush()


def hear(step: subprocess.Popen[str]) -> dict[str, Any] | None:
    """The next message from there; None when there is none any more."""
    while line := step.stdout.readline() if step.stdout is not None else "":
        if (message := parse_bridge(line)) is not None:
            return message
    return None


def parse_bridge(line: str) -> dict[str, Any] | None:
    """What the bridge says in a line; None for what others print where it runs."""
    _, mark, text = line.partition(BRIDGE_MARK)
    try:
        found: Any = json.loads(text) if mark else None
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def begin(address: str, part: Mapping[str, Any]) -> None:
    """Tell a host what it is, over TLS."""
    start: dict[str, Any] = {**part, "certificates": [], "record_folder": ""}
    with (
        contextlib.suppress(UnreachableError, DeadlineError),
        Connection(address, waiting=True) as connection,
    ):
        connection.ask({"op": "begin", "start": start}, "status")
