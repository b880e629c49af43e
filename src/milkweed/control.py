"""Talking to a keeper: one question and its answer, or a session that stays and hears what happens."""

from __future__ import annotations

import base64
import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from .channel import Channel, open_tls, open_unix
from .errors import DeadlineError, UnreachableError
from .worker import wire
from .worker.tls import control_ports

Message = Mapping[str, Any]
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Door:
    """Where a keeper takes orders: `unix:///path`, or `tls://machine:22222/trainers/3@job#credentials`.

    The port is the first of those it may have taken, and the path is the host, of an allocation, that must be
    behind it: hosts of several jobs, or of several shares of one, may live on one machine.
    """

    path: str = ""
    machine: str = ""
    port: int = 0
    host: str = ""
    credentials: str = ""
    job: str = ""
    via: str = ""
    """Who carries the connection where the machine cannot be dialled: a pod that an API server leads to."""

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"{self.host}@{self.job}" if self.job else self.host
        via = f"|{self.via}" if self.via else ""
        return f"tls://{self.machine}:{self.port}/{host}{via}#{self.credentials}"


def parse_door(address: str) -> Door:
    """Read such an address."""
    scheme, _, rest = address.partition("://")
    if scheme == "unix" and rest:
        return Door(path=rest)
    place, _, credentials = rest.partition("#")
    authority, _, whose = place.partition("/")
    whose, _, via = whose.partition("|")
    host, _, job = whose.partition("@")
    machine, _, port = authority.rpartition(":")
    if scheme != "tls" or not (machine and port.isdecimal() and host and credentials):
        raise UnreachableError(f"{address!r} is not a control address milkweed knows")
    return Door(
        machine=machine, port=int(port), host=host, credentials=credentials, job=job, via=via
    )


def _unreachable(door: Door, seen: str) -> UnreachableError:
    where = door.path or f"{door.machine} (host {door.host})"
    return UnreachableError("the hosts' keeper does not answer", seen=f"{where}: {seen}")


BY_HOST = "*"
"""The way to hosts that can be dialled, where they cannot dial back: one of them carries that for the engine."""


def _dialler(via: str, port: int) -> Callable[[], socket.socket] | None:
    """How a machine is dialled that only an API server leads to."""
    if via in {"", BY_HOST}:
        return None
    from .kube.via import dial_via

    return lambda: dial_via(via, port)


class Connection:
    """One connection to a keeper; messages in order, both ways."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = CONNECT_TIMEOUT_S,
        thorough: bool = True,
        waiting: bool = False,
    ) -> None:
        """Connect; `thorough` tries every port, `waiting` wants a keeper that waits to be told what it is."""
        self._waiting = waiting
        door = parse_door(address)
        if door.path:
            try:
                self._channel: Channel = open_unix(door.path, timeout_s)
            except OSError as error:
                raise _unreachable(door, str(error)) from error
        else:
            ports = control_ports(door.port)
            self._channel = self._find(door, ports if thorough else ports[:1], timeout_s)

    def _find(self, door: Door, ports: Sequence[int], timeout_s: float) -> Channel:
        """Try the ports in the order in which a keeper took the first free one.

        That it is not there is seen only where nobody can be it: one that says nothing may be.
        """
        seen = silent = ""
        for port in ports:
            try:
                self._channel = open_tls(
                    door.machine, port, door.credentials, timeout_s, dial=_dialler(door.via, port)
                )
            except ConnectionRefusedError as error:
                seen = seen or str(error)
                continue
            except ssl.SSLError as error:
                seen = f"port {port} is somebody else's: {getattr(error, 'reason', '') or error}"
                continue
            except OSError as error:
                raise _unreachable(door, str(error)) from error
            try:
                if self._is_behind(door, timeout_s):
                    return self._channel
                seen = seen or f"port {port} is another host's"
            except (UnreachableError, DeadlineError) as error:
                silent = silent or f"port {port} gives no answer: {error.what}"
            self._channel.close()
        raise _unreachable(door, silent or seen)

    def _is_behind(self, door: Door, timeout_s: float) -> bool:
        answer = self.ask({"op": "status"}, "status", timeout_s=timeout_s)
        if door.job not in {"", answer.get("job", "")}:
            return False
        fits = not answer["stopping"] and answer.get("waiting", False) == self._waiting
        return fits and any(host["host"] == door.host for host in answer["hosts"])

    def send(self, message: Message) -> None:
        """Send one message."""
        try:
            self._channel.send(wire.encode(message))
        except OSError as error:
            raise UnreachableError("the hosts' keeper is gone", seen=str(error)) from error

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None when the keeper has closed."""
        try:
            line = self._channel.receive_line(timeout_s)
        except TimeoutError as error:
            if error.errno == errno.ETIMEDOUT:
                return None  # the connection itself has broken
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
        self._channel.hang_up()

    def close(self) -> None:
        """Let the connection go; the other side sees it at once."""
        self.hang_up()
        self._channel.close()

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
        hear: Callable[[Session, Message], None],
        thorough: bool = True,
    ) -> None:
        self.address = address
        self._connection = Connection(address, thorough=thorough)
        self._hear = hear
        self._synced = threading.Event()
        hello = {"op": "hello", "client": client, "owner": owner, "output": output}
        self.left = False
        """Whether this side ended it."""
        self.open = True
        """Whether the keeper may still say something."""
        try:
            status = self._connection.ask(hello, "status")
        except (UnreachableError, DeadlineError):
            self._connection.close()
            raise
        self.node: str = status["node"]
        self.keeper: str = status.get("keeper", "")
        """Which keeper it is: another one may be behind the same door later."""
        self.labels: list[str] = [host["host"] for host in status["hosts"]]
        # What is there now is heard before anything that changes it.
        for host in status["hosts"]:
            hear(self, {"ev": "host", **host})
        self._thread = threading.Thread(target=self._listen, name="milkweed-session", daemon=True)

    def start(self) -> None:
        """Hear what happens from now on."""
        self._thread.start()

    def _listen(self) -> None:
        while (message := self._connection.receive(None)) is not None:
            if message.get("ev") == "synced":
                self._synced.set()
            else:
                self._hear(self, message)
        self.open = False
        self._synced.set()
        self._connection.close()
        self._hear(self, {"ev": "closed"})

    def send(self, message: Message) -> None:
        """Send an order whose answer nobody waits for."""
        self._connection.send(message)

    def ask_sync(self) -> None:
        """Ask for a word once everything that hosts have printed so far was sent."""
        self._synced.clear()
        try:
            self._connection.send({"op": "sync"})
        except UnreachableError:
            self._synced.set()

    def wait_synced(self, timeout_s: float) -> None:
        """Wait for that word."""
        self._synced.wait(max(0.0, timeout_s))

    def close(self) -> None:
        """End the presence."""
        self.left = True
        self._connection.hang_up()
        if self._thread.ident and threading.current_thread() is not self._thread:
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


class RemoteLog:
    """Reads logs of hosts whose files are not to be seen from here; one connection for each."""

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}

    def read(self, address: str, offset: int) -> bytes:
        """A piece of the log of the host behind a door; nothing when it does not answer."""
        order = {"op": "log", "host": parse_door(address).host, "offset": offset}
        try:
            if address not in self._connections:
                self._connections[address] = Connection(address)
            return base64.b64decode(self._connections[address].ask(order, "log")["data"])
        except (UnreachableError, DeadlineError):
            if broken := self._connections.pop(address, None):
                broken.close()
            return b""

    def close(self) -> None:
        """Let the connections go."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
