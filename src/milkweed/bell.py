"""A bell that new hosts ring, so that a client that waits for them looks at once and otherwise seldom.

A ring is a connection that is closed again. Nothing is read from it, and all it does is end a pause.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_REST_S = 0.05
"""The shortest time between two rings that count: nobody can make a client busy by ringing."""


class Bell:
    """Listens on a port that the system chose, from its first use on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rung = threading.Event()
        self._port = 0

    def open(self) -> int:
        """The port; opened at the first call. 0 when this machine lets nobody listen."""
        with self._lock:
            if not self._port:
                with contextlib.suppress(OSError):
                    door = socket.create_server(("", 0))
                    self._port = door.getsockname()[1]
                    listen = threading.Thread(
                        target=self._listen, args=(door,), name="milkweed-bell", daemon=True
                    )
                    listen.start()
            return self._port

    def _listen(self, door: socket.socket) -> None:
        while True:
            try:
                caller, _address = door.accept()
            except OSError:
                return
            caller.close()
            self._rung.set()
            time.sleep(_REST_S)

    def ring(self) -> None:
        """End a pause of this very program: something that it watches is different."""
        self._rung.set()

    def wait(self, timeout_s: float) -> bool:
        """Pause; True when the bell ended the pause."""
        rung = self._rung.wait(timeout_s)
        self._rung.clear()
        return rung


def route_to(machine: str) -> str:
    """The address of this machine that another one would answer to; no packet is sent for it."""
    for family, kind, protocol, _name, address in socket.getaddrinfo(
        machine, 9, type=socket.SOCK_DGRAM
    ):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return ""


bell = Bell()
