"""A stream of lines to a keeper: over a socket of this machine, or over TLS to another.

Lines are read by one thread while others send. A TLS object may not be used by two threads at once, so it is
kept apart from its socket: waiting for bytes holds no lock.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .pki import Credentials, make_client_context
from .worker import tls, wire

HOST_PATIENCE_S = 4
"""How long a host may be silent before its connection counts as broken."""
HANDSHAKE_TIMEOUT_S = 2.0
_CHUNK_BYTES = 256 * 1024


class Channel(Protocol):
    """Both ends can send at any time."""

    def send(self, data: bytes) -> None:
        """Send all of it; OSError when the other end is gone."""
        ...

    def receive_line(self, timeout_s: float | None) -> bytes:
        """The next line; nothing at the end, TimeoutError when none came in time."""
        ...

    def hang_up(self) -> None:
        """Wake whoever reads here, and tell the other end."""
        ...

    def close(self) -> None:
        """Let the socket go."""
        ...


class Plain:
    """A channel over a socket as it is."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def receive_line(self, timeout_s: float | None) -> bytes:
        """The next line."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            if len(self._rest) > wire.MAX_LINE_BYTES:
                raise OSError("a line is too long")
            self._socket.settimeout(_left(deadline_s))
            data = self._read()
            if not data:
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _read(self) -> bytes:
        return self._socket.recv(_CHUNK_BYTES)

    def hang_up(self) -> None:
        """Wake whoever reads here, and tell the other end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let the socket go."""
        self._socket.close()


class Secure(Plain):
    """A channel over TLS."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, name: str) -> None:
        super().__init__(connected)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._lock = threading.Lock()

    def shake_hands(self) -> None:
        """Prove each other's certificates; SSLError says who was not content."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed(self._socket.recv(_CHUNK_BYTES))
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the other end should know why
                raise
            else:
                self._flush()
                return

    def send(self, data: bytes) -> None:
        """Send all of it."""
        with self._lock:
            self._tls.write(data)
            self._flush()

    def _read(self) -> bytes:
        while True:
            with self._lock:
                try:
                    return self._tls.read(_CHUNK_BYTES)
                except ssl.SSLWantReadError:
                    self._flush()
                except ssl.SSLZeroReturnError:
                    return b""
            data = self._socket.recv(_CHUNK_BYTES)
            with self._lock:
                self._feed(data)

    def _feed(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._socket.sendall(data)


def open_unix(path: str, timeout_s: float) -> Plain:
    """Connect to a socket of this machine."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    try:
        made.connect(path)
    except OSError:
        made.close()
        raise
    return Plain(made)


def open_tls(
    host: str,
    port: int,
    folder: str,
    timeout_s: float,
    *,
    dial: Callable[[], socket.socket] | None = None,
) -> Secure:
    """Connect to a port of another machine and shake hands; SSLError when either side refuses."""
    made = dial() if dial else socket.create_connection((host, port), timeout_s)
    try:
        if made.family != socket.AF_UNIX:  # a tunnel's near end
            tls.keep_alive(made, patience_s=HOST_PATIENCE_S)
        channel = Secure(made, _context(folder), host)
        made.settimeout(min(timeout_s, HANDSHAKE_TIMEOUT_S))
        try:
            channel.shake_hands()
        except (TimeoutError, ConnectionError) as error:
            raise ssl.SSLError(f"whoever listens there does not shake hands: {error}") from error
        made.settimeout(timeout_s)
    except (OSError, ValueError):
        made.close()
        raise
    return channel


def _context(folder: str) -> ssl.SSLContext:
    """Reading certificates takes longer than shaking hands: once for each state of the folder."""
    return _make_context(folder, os.stat(Credentials.of_folder(folder).cert).st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _make_context(folder: str, _state: int) -> ssl.SSLContext:
    return make_client_context(Credentials.of_folder(Path(folder)))


def _left(deadline_s: float | None) -> float | None:
    if deadline_s is None:
        return None
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no line came in time")
    return left_s
