"""Reaching a port of a pod through the API server, for clients that cannot route to it.

The API server's protocol knows no end of one direction. So when a local program has said everything, the pod is
not told; what the pod still says is passed on, and after a while of silence both ends are closed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ..errors import MilkweedError
from .api import Api, ApiError
from .resources import PODS
from .websocket import PING, WebSocket

__all__ = ["Forward", "Patience", "WebSocket", "dial"]

ACCEPT_PAUSE_S = 0.1
"""How long nobody is let in after that has failed."""
_CHUNK_BYTES = 64 * 1024
_FULL_BYTES = 1024 * 1024
_DATA, _ERROR = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long silence is borne."""

    ping_s: float = 20.0
    """The pause after which a silent connection is asked whether it is still there: proxies cut idle ones."""
    answer_s: float = 60.0
    """How long there may be no answer to that."""
    linger_s: float = 5.0
    """How long a pod may be silent after its client has said everything."""


_PATIENCE = Patience()


def dial(
    api: Api,
    namespace: str,
    pod: str,
    port: int,
    *,
    heard: Callable[[str], None] | None = None,
    patience: Patience = _PATIENCE,
) -> socket.socket:
    """A socket whose other end is a port of a pod; `heard` is told why it broke."""
    tunnel = _open(api, namespace, pod, port)
    here, there = socket.socketpair()
    pump = _Pump(tunnel, there, heard, patience)
    threading.Thread(target=pump.run, name="milkweed-forward", daemon=True).start()
    return here


def _open(api: Api, namespace: str, pod: str, port: int) -> WebSocket:
    path, query = PODS.path(namespace, pod, "portforward"), {"ports": port}
    try:
        return WebSocket(api, path, query)
    except ApiError as error:
        if error.status != 401:
            raise
        api.log_in_again()
        return WebSocket(api, path, query)


class _Pump:
    """Carries bytes between a socket and a pod until one of them has ended."""

    def __init__(
        self,
        tunnel: WebSocket,
        there: socket.socket,
        heard: Callable[[str], None] | None,
        patience: Patience = _PATIENCE,
    ) -> None:
        there.settimeout(0)
        self._patience = patience
        self._tunnel, self._there, self._heard = tunnel, there, heard
        self._greeted: set[int] = set()
        self._undelivered = bytearray()
        self._said_all = False
        """Nothing more comes from the local program; it may still listen."""
        self._hung_up = False
        """Nor does it listen."""
        self._last_s = self._asked_s = time.monotonic()

    def run(self) -> None:
        """Carry, and close both ends."""
        try:
            while not self._is_over():
                self._wait()
                self._read_there()
                self._tunnel.flush()
                self._read_tunnel()
                self._deliver()
        except MilkweedError as error:
            self._tell(str(error))
        finally:
            self._tunnel.close()
            with contextlib.suppress(OSError):
                self._there.shutdown(socket.SHUT_RDWR)
            self._there.close()

    def _is_over(self) -> bool:
        if not self._tunnel.is_open:
            return self._hung_up or not self._undelivered
        silent_s = time.monotonic() - self._last_s
        if silent_s > self._patience.answer_s:
            self._tell(f"nothing was heard from the API server for {silent_s:.0f} s")
            return True
        done = self._said_all and not self._tunnel.unsent
        return done and (self._hung_up or silent_s > self._patience.linger_s)

    # Nobody may send more than the other end takes.

    @property
    def _listens_there(self) -> bool:
        return not self._said_all and self._tunnel.is_open and self._tunnel.unsent < _FULL_BYTES

    @property
    def _listens_to_pod(self) -> bool:
        return self._tunnel.is_open and len(self._undelivered) < _FULL_BYTES

    def _wait(self) -> None:
        """Wait until something can be done."""
        poller = select.poll()
        pod = (select.POLLIN if self._listens_to_pod else 0) | (
            select.POLLOUT if self._tunnel.unsent else 0
        )
        if pod and self._tunnel.is_open:
            poller.register(self._tunnel, pod)
        there = (select.POLLIN if self._listens_there else 0) | (
            select.POLLOUT if self._undelivered else 0
        )
        if there or not self._hung_up:
            poller.register(self._there, there)
        pause_s = self._patience.linger_s if self._said_all else self._patience.ping_s
        found = dict(poller.poll(pause_s * 1000))
        if found.get(self._there.fileno(), 0) & (select.POLLHUP | select.POLLERR):
            self._hung_up = True
            self._undelivered.clear()
        self._ask()

    def _ask(self) -> None:
        """Have a silent API server say something."""
        now_s = time.monotonic()
        if not self._listens_to_pod:
            self._last_s = now_s
        elif now_s - max(self._last_s, self._asked_s) >= self._patience.ping_s:
            self._tunnel.post(b"", PING)
            self._asked_s = now_s

    def _read_there(self) -> None:
        if not self._listens_there:
            return
        try:
            data = self._there.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, self._hung_up = b"", True
        if data:
            self._tunnel.post(bytes([_DATA]) + data)
        else:
            self._said_all = True
            self._last_s = time.monotonic()

    def _read_tunnel(self) -> None:
        """The first message of each channel tells the port's number; the rest is what the pod says."""
        if not self._listens_to_pod:
            return
        before = self._tunnel.received
        for message in self._tunnel.take():
            channel, data = message[0] if message else -1, message[1:]
            if channel not in self._greeted:
                self._greeted.add(channel)
                data = data[2:]
            if channel == _DATA:
                self._undelivered += data
            elif channel == _ERROR and data:
                self._tell(data.decode(errors="replace"))
                self._tunnel.close()
        if self._tunnel.received != before:
            self._last_s = time.monotonic()

    def _deliver(self) -> None:
        try:
            while self._undelivered:
                with memoryview(self._undelivered) as view:
                    sent = self._there.send(view[:_CHUNK_BYTES])
                del self._undelivered[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._hung_up = True
            self._undelivered.clear()

    def _tell(self, reason: str) -> None:
        if self._heard is not None:
            self._heard(reason)


class Forward:
    """A port of this machine that leads to a port of a pod, for programs that dial addresses."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        pod: str,
        port: int,
        *,
        listener: socket.socket | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Take connections from now on, at a port that the system chooses unless a listener is given."""
        self._api, self._namespace, self._pod, self._port = api, namespace, pod, port
        self._pause = pause
        self._lock = threading.Lock()
        self._clients: set[socket.socket] | None = set()
        self.error = ""
        """Why the last connection that failed did so."""
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="milkweed-forward", daemon=True).start()

    def _accept(self) -> None:
        while self._clients is not None:
            try:
                client, _address = self._listener.accept()
            except (
                OSError
            ) as error:  # it was closed; or, say, too many files are open at the moment
                self._hear(str(error))
                self._pause(ACCEPT_PAUSE_S)
                continue
            threading.Thread(
                target=self._serve, args=(client,), name="milkweed-forward", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if not self._admit(client):
                return
            try:
                tunnel = _open(self._api, self._namespace, self._pod, self._port)
                _Pump(tunnel, client, self._hear).run()
            except (MilkweedError, OSError) as error:
                self._hear(str(error))
            finally:
                self._dismiss(client)

    def _hear(self, reason: str) -> None:
        self.error = reason

    def _admit(self, client: socket.socket) -> bool:
        with self._lock:
            if self._clients is None:
                return False
            self._clients.add(client)
            return True

    def _dismiss(self, client: socket.socket) -> None:
        with self._lock:
            if self._clients is not None:
                self._clients.discard(client)

    def close(self) -> None:
        """Take no more connections, and end those that are there."""
        with self._lock:
            clients, self._clients = self._clients or (), None
            for end in (self._listener, *clients):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
