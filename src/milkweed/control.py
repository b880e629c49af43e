"""Talking to a keeper: one question and its answer, or a session that stays and hears what happens."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from .errors import DeadlineError, UnreachableError
from .worker import wire

Message = Mapping[str, Any]
CONNECT_TIMEOUT_S = 5.0


def parse_control(address: str) -> str:
    """The path in `unix:///path`."""
    scheme, _, path = address.partition("://")
    if scheme != "unix" or not path:
        raise UnreachableError(f"{address!r} is not a control address milkweed knows")
    return path


class Connection:
    """One connection to a keeper; messages in order, both ways."""

    def __init__(self, address: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(parse_control(address))
        except OSError as error:
            self._socket.close()
            raise UnreachableError(
                "the hosts' keeper does not answer", seen=f"{address}: {error}"
            ) from error
        self._reader = self._socket.makefile("rb")

    def send(self, message: Message) -> None:
        """Send one message."""
        try:
            self._socket.sendall(wire.encode(message))
        except OSError as error:
            raise UnreachableError("the hosts' keeper is gone", seen=str(error)) from error

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None when the keeper has closed."""
        try:
            self._socket.settimeout(timeout_s)
            line = self._reader.readline(wire.MAX_LINE_BYTES)
        except TimeoutError as error:
            raise DeadlineError(f"the hosts' keeper did not answer within {timeout_s} s") from error
        except (OSError, ValueError):
            return None
        return wire.decode(line) if line else None

    def ask(self, message: Message, answer: str, *, timeout_s: float = 10.0) -> dict[str, Any]:
        """Send a message and wait for the answer with that name."""
        self.send(message)
        while True:
            got = self.receive(timeout_s)
            if got is None:
                raise UnreachableError("the hosts' keeper closed the connection")
            if got.get("ev") == answer:
                return got

    def hang_up(self) -> None:
        """Tell the other side, and whoever reads here, that this is over."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let the connection go; the other side sees it at once."""
        self.hang_up()
        self._reader.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Session:
    """A client's presence: while it lasts the hosts are in use, and everything that happens is heard."""

    def __init__(
        self,
        address: str,
        *,
        client: str,
        owner: bool,
        output: bool,
        hear: Callable[[Message], None],
    ) -> None:
        self._connection = Connection(address)
        self._hear = hear
        self._synced = threading.Event()
        hello = {"op": "hello", "client": client, "owner": owner, "output": output}
        # What is there now is heard before anything that changes it.
        for host in self._connection.ask(hello, "status")["hosts"]:
            hear({"ev": "host", **host})
        self._thread = threading.Thread(target=self._listen, name="milkweed-session", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while (message := self._connection.receive(None)) is not None:
            if message.get("ev") == "synced":
                self._synced.set()
            else:
                self._hear(message)
        self._synced.set()
        self._hear({"ev": "closed"})

    def send(self, message: Message) -> None:
        """Send an order whose answer nobody waits for."""
        self._connection.send(message)

    def sync(self, timeout_s: float) -> None:
        """Wait until everything that hosts have printed so far was heard."""
        self._synced.clear()
        with contextlib.suppress(UnreachableError):
            self._connection.send({"op": "sync"})
            self._synced.wait(timeout_s)

    def close(self) -> None:
        """End the presence."""
        self._connection.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        self._connection.close()


def run_command(
    address: str, host: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Iterator[tuple[str, bytes] | int]:
    """Run a command on a host: pairs of stream and bytes as they come, and last the exit code."""
    with Connection(address) as connection:
        order = {"op": "exec", "id": 1, "host": host, "argv": list(argv), "env": dict(env or {})}
        connection.send(order)
        while (message := connection.receive(None)) is not None:
            if message["ev"] == "exec-out":
                yield message["stream"], base64.b64decode(message["data"])
            elif message["ev"] == "exec-exit":
                yield int(message["code"])
                return
        raise UnreachableError(
            f"the connection to host {host} was lost while the command ran",
            hint="its exit code is not known; `milkweed status --why` tells what became of the host",
        )
