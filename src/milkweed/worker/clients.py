"""The connections a keeper holds."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from typing import Any

from . import wire

MAX_BACKLOG_BYTES = 4 * 2**20


class Client:
    """One connection; it counts for the lease once it has said hello."""

    def __init__(self, writer: asyncio.StreamWriter, *, remote: bool = False) -> None:
        self._writer = writer
        self.remote = remote
        """Whether it is on another machine, so that its connection may break without it."""
        self.name = ""
        self.owner = False
        self.wants_output = False
        self.back_s = 0.0
        """How soon it will be back when it goes, if it says so."""
        self.line = b""
        """What it said last, as it came: handed on without being written anew."""
        self._dropped: dict[tuple[Any, ...], dict[str, Any]] = {}
        """What is told of lines that were left out, by where they came from."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; lines that a client is too slow to read are counted instead of piling up.

        Those with a number are bounded by who sends them, and never left out.
        """
        transport = self._writer.transport
        if transport.is_closing():
            return
        is_full = transport.get_write_buffer_size() > MAX_BACKLOG_BYTES
        if is_full and message.get("ev") in {"out", "step-out"} and "number" not in message:
            self._drop(message)
            return
        # Nothing overtakes the word that lines are missing: there may be no more lines to come.
        for told in self._dropped.values():
            self._writer.write(wire.encode(told))
        self._dropped.clear()
        self._writer.write(wire.encode(message))

    def _drop(self, message: Mapping[str, Any]) -> None:
        origin = tuple(message.get(key) for key in ("ev", "id", "host", "rank", "stream"))
        told = self._dropped.setdefault(origin, {**message, "lines": [], "dropped": 0})
        told["dropped"] += len(message["lines"])

    def may_hear(self, message: Mapping[str, Any]) -> bool:
        """Whether output is of this client's procs, or of nobody's, and it wants any."""
        return self.wants_output and message.get("client", "") in {"", self.name}

    def close(self) -> None:
        """Let the connection go."""
        self._writer.close()

    async def closed(self) -> None:
        """Wait until all that was sent is out."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)


class Stream:
    """A sink that sends bytes to a client as they are."""

    def __init__(self, client: Client, number: int, stream: str) -> None:
        self._client = client
        self._head = {"ev": "exec-out", "id": number, "stream": stream}

    def feed(self, data: bytes) -> None:
        """Send what came."""
        self._client.send({**self._head, "data": base64.b64encode(data).decode()})

    def end(self) -> None:
        """Nothing is kept back, so nothing is left."""


class Clients:
    """All clients that have said hello."""

    def __init__(self) -> None:
        self._clients: list[Client] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._clients)

    @property
    def has_owner(self) -> bool:
        """Whether one of them is the owner."""
        return any(client.owner for client in self._clients)

    def add(self, client: Client) -> None:
        """Count a client."""
        if client not in self._clients:
            self._clients.append(client)

    def remove(self, client: Client) -> None:
        """Forget a client."""
        if client in self._clients:
            self._clients.remove(client)

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Tell everybody, but output only those who want it and whose procs wrote it."""
        is_output = message.get("ev") == "out"
        for client in self._clients:
            if not is_output or client.may_hear(message):
                client.send(message)

    def has(self, name: str) -> bool:
        """Whether a client of that name is there."""
        return any(client.name == name for client in self._clients)

    def tell(self, name: str, message: Mapping[str, Any]) -> None:
        """Tell one client, if it is there."""
        for client in self._clients:
            if client.name == name:
                client.send(message)

    async def close(self) -> None:
        """Close all connections, after what was sent is out."""
        for client in self._clients:
            await client.closed()
