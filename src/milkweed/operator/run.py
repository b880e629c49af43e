"""Running the operator's programs until they are told to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Generator
from pathlib import Path

from ..kube.api import Api
from .door import Certificate, Door
from .health import serve_health
from .loop import Operator, Settings
from .provision import PolicyFile, Provisioner


def make_identity() -> str:
    """A name for this very program: two on one machine are two."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


def log(line: str) -> None:
    """Tell whoever reads the pod's log."""
    print(line.replace("\n", " |"), file=sys.stderr, flush=True)  # noqa: T201  that is what it is for


@contextlib.contextmanager
def until_told() -> Generator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    told = threading.Event()

    def tell(_number: int, _frame: object) -> None:
        told.set()

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_operator(api: Api, settings: Settings, address: tuple[str, int]) -> None:
    """Serve meshes until SIGTERM, then let the next operator act."""
    with until_told() as told:
        operator = Operator(api, settings, log=log)
        server = serve_health(operator, address)
        try:
            operator.start()
            told.wait()
        finally:
            operator.stop()
            server.shutdown()
            server.server_close()


def run_provision(
    provisioner: Provisioner, certificate: Certificate, address: tuple[str, int]
) -> None:
    """Answer requests for meshes until SIGTERM."""
    with until_told() as told:
        door = Door(address, provisioner, certificate, log=log)
        threading.Thread(
            target=door.serve_forever, args=(0.1,), name="milkweed-door", daemon=True
        ).start()
        try:
            told.wait()
        finally:
            door.shutdown()
            door.server_close()


def load_provisioner(
    api: Api, policy: Path, audience: str, namespaces: tuple[str, ...]
) -> Provisioner:
    """A provisioner by the policy in a file, which must be right at the start."""
    file = PolicyFile(policy)
    file.get()
    return Provisioner(api, file.get, audience=audience, namespaces=namespaces)
