"""Keepers without hosts: they answer on a real socket, plain or with real TLS, and say what they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from milkweed import pki
from milkweed.worker import tls, wire

NAMES = ["localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3"]
WAIT_S = 10.0
WAITER = """
import json, pathlib, sys
from milkweed.errors import AccessError
from milkweed.worker import enrol
print(json.dumps(enrol.wait_for_start(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))))
"""


def host(label: str, state: str = "ready", **more: Any) -> dict[str, Any]:
    """A host as its keeper describes it."""
    said = {"address": f"tls://{label}:1", "reason": "", "exit_code": None, "tail": []}
    return {"host": label, "state": state, **said, **more}


def make_credentials(folder: Path, authority: pki.Authority, *trusts: pki.Authority) -> Path:
    """A certificate for this machine in a folder, and whom it trusts."""
    trusted = b"".join(each.cert_pem for each in trusts or (authority,))
    pki.save_credentials(folder, authority.issue(NAMES), trusted)
    return folder


def free_ports(count: int) -> list[int]:
    """The odd steps from a first port on where a keeper may take orders, all of them free now."""
    for _ in range(100):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for step in range(1, count):
                held.enter_context(socket.create_server(("127.0.0.1", first + 2 * step)))
            return [first + 2 * step for step in range(count)]
    raise OSError(errno.EADDRINUSE, "no free ports")


def move_runs(program: str, folder: Path) -> str:
    """A program that looks for run folders below another folder than all of this user's programs."""
    moved = program.replace("/" + "tmp/milkweed-", f"{folder}/milkweed-")
    assert moved != program
    return moved


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as made:
        return made.connect_ex(str(path)) == 0


class FakeKeeper:
    """Serves in a thread of its own; `orders` is everything it was told."""

    def __init__(
        self, *hosts: str | Mapping[str, Any], node: str = "n1", stopping: bool = False
    ) -> None:
        self.hosts = [host(each) if isinstance(each, str) else dict(each) for each in hosts]
        self.node = node
        self.stopping = stopping
        self.job = ""
        self.keeper = ""
        """Which keeper it is, among those behind one door."""
        self.silent = False
        """Takes orders and answers none."""
        self.chatty = False
        """Goes on talking when it is told to stop."""
        self.orders: list[dict[str, Any]] = []
        self.port = 0
        self.path = ""
        self.times: dict[str, float] = {}
        """What it tells of its time limit."""
        self.answers: dict[str, dict[str, Any]] = {}
        """What else it answers to, by the name of the order."""
        self._changed = threading.Condition()
        self._writers: list[asyncio.StreamWriter] = []
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def listen_tls(self, folder: Path, port: int = 0, machine: str = "127.0.0.1") -> Self:
        """Take orders over TLS."""
        context = tls.make_server_context(folder)
        door = socket.create_server((machine, port))
        self.port = door.getsockname()[1]
        self._run(self._start(sock=door, ssl=context))
        return self

    def listen_unix(self, path: Path) -> Self:
        """Take orders on a socket of this machine."""
        self.path = str(path)
        door = socket.socket(socket.AF_UNIX)
        door.bind(self.path)
        self._run(self._start(sock=door))
        return self

    @property
    def address(self) -> str:
        """Where it takes orders on this machine."""
        return f"unix://{self.path}"

    def door(self, credentials: Path, label: str = "", *, skipped: int = 0) -> str:
        """Where it takes orders over TLS, after ports that others have taken."""
        first = self.port - 1 - 2 * skipped
        label = label or str(self.hosts[0]["host"])
        return f"tls://127.0.0.1:{first}/{label}#{credentials}"

    async def _start(self, **how: Any) -> None:
        self._servers.append(await asyncio.start_server(self._serve, **how))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while line := await reader.readline():
                self._take(wire.decode(line), writer)
        writer.close()

    def _take(self, order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        with self._changed:
            self.orders.append(order)
            self._changed.notify_all()
        answer = self.answers.get(order["op"])
        if order["op"] in {"hello", "status"}:
            answer = {"ev": "status", "hosts": self.hosts, "stopping": self.stopping}
            answer |= {"node": self.node, "job": self.job, "clients": 1, "keep": True, "pid": 1}
            answer |= {"keeper": self.keeper, **self.times}
        elif order["op"] == "sync":
            answer = {"ev": "synced"}
        elif order["op"] == "stop":
            if self.chatty:
                writer.write(wire.encode({"ev": "out"}) * 3)
            else:
                writer.close()
            return
        if answer is not None and not self.silent:
            writer.write(wire.encode(answer))

    def tell(self, message: Mapping[str, Any]) -> None:
        """Say something to everybody who is connected."""
        self._loop.call_soon_threadsafe(self._tell, wire.encode(message))

    def _tell(self, data: bytes) -> None:
        for writer in self._writers:
            if not writer.is_closing():
                writer.write(data)

    def hang_up(self, *, abruptly: bool = False) -> None:
        """Close every connection: in order, or as a machine does that is gone."""
        self._loop.call_soon_threadsafe(self._hang_up, abruptly)

    def _hang_up(self, abruptly: bool) -> None:
        for writer in self._writers:
            writer.transport.abort() if abruptly else writer.close()
        self._writers.clear()

    def wait_for(self, op: str, count: int = 1) -> list[dict[str, Any]]:
        """The orders of that name, once there are so many."""

        def found() -> list[dict[str, Any]]:
            return [order for order in self.orders if order["op"] == op]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, WAIT_S), self.orders
            return found()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _stop(self) -> None:
        await asyncio.sleep(0.005)  # asyncio forgets those who knock while a server closes
        for server in self._servers:
            server.close()
        for _ in range(
            1000
        ):  # let those who were just let in begin, and those who are cut off finish
            self._hang_up(abruptly=True)
            await asyncio.sleep(0.001)
            if asyncio.all_tasks() == {asyncio.current_task()} and not self._writers:
                return

    def close(self) -> None:
        """Be gone: nobody listens any more."""
        if not self._loop.is_closed():
            self._run(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
