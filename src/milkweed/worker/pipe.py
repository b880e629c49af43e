"""Lines to and from a child: what is written waits here, never in the keeper's loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from . import wire


class Pipe:
    """The keeper's end of a pair of sockets; `far_fd` is for the child."""

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._near, self._far = socket.socketpair()
        self._near.settimeout(0)
        self._out = bytearray()
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._near, self._pump)

    @property
    def far_fd(self) -> int:
        """The child's end."""
        return self._far.fileno()

    def close_far(self) -> None:
        """Leave the other end to the child."""
        self._far.close()

    def write(self, line: bytes) -> None:
        """Hand a line to the child, now or when it has room."""
        self._out += line
        self._flush()

    def _flush(self) -> None:
        if self._near.fileno() < 0:
            return
        try:
            del self._out[: self._near.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the child is gone: how it ended tells why
        if self._out:
            self._loop.add_writer(self._near, self._flush)
        else:
            self._loop.remove_writer(self._near)

    def _pump(self) -> bool:
        try:
            data = self._near.recv(256 * 1024)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(wire.decode(line))
        return True

    def drain(self) -> None:
        """Take what the child has said so far."""
        while self._near.fileno() >= 0 and self._pump():
            pass

    def close(self) -> None:
        """Let both ends go."""
        if self._near.fileno() >= 0:
            with contextlib.suppress(ValueError):
                self._loop.remove_reader(self._near)
                self._loop.remove_writer(self._near)
        self._near.close()
        self._far.close()
