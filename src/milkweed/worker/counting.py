"""How many ranks a host takes: a driver is asked in a process of its own, since it may take its time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import affinity, children, devices
from .children import Child, Output
from .fleet import Fleet

Message = Mapping[str, Any]


def count(order: Message, env: Mapping[str, str]) -> dict[str, Any]:
    """The count, and where GPUs are when ranks run near them; or why there is none."""
    nproc = order["nproc"]
    try:
        found = nproc if isinstance(nproc, int) else devices.count_procs(nproc, env)
        addresses = affinity.gpu_addresses(env) if order.get("numa") else None
    except (OSError, ValueError) as error:
        return {"error": str(error)}
    return {"nproc": found, "addresses": addresses}


def count_aside(
    fleet: Fleet, order: Message, env: Mapping[str, str], then: Callable[[Message], None]
) -> None:
    """Count, and hand it on: at once, or when the driver has answered; others are served meanwhile."""
    asks = not isinstance(order["nproc"], int) or order.get("numa")
    if not asks or not devices.find_driver(env):
        then(count(order, env))
        return
    said = _Said()
    outputs = Output(said), Output(said)
    child = Child("count", str(order["host"]), 0)

    def ended(_status: int) -> None:
        for output in outputs:
            output.drain()
        then(said.read())

    def run(_fd: int) -> int:
        os.write(1, json.dumps(count(order, env)).encode())
        return 0

    child.on_exit = ended
    fleet.fork(child, run, outputs, env=env, cwd=fleet.cwd)


class _Said:
    """A sink for what such a process tells."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._data += data

    def end(self) -> None:
        """Whoever waits for it reads it then."""

    def read(self) -> Message:
        """All of it; a process that was ended has told nothing."""
        try:
            return json.loads(self._data)
        except ValueError:
            tail = self._data.decode(errors="replace").splitlines()[-children.TAIL_LINES :]
            return {"error": "\n".join(["its devices could not be counted", *tail])}
