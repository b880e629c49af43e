"""The port of rank 0: held for it, and nobody else's."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Generator

import pytest

from milkweed.worker.ports import hold_port

IP_LOCAL_PORT_RANGE = 51


@pytest.fixture
def held() -> Generator[socket.socket]:
    with hold_port() as made:
        yield made


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET6, "::"),
        (socket.AF_INET, "0.0.0.0"),  # noqa: S104
        (socket.AF_INET, "127.0.0.1"),
    ],
)
def test_rank_0_can_listen_on_a_held_port(
    held: socket.socket, family: socket.AddressFamily, address: str
) -> None:
    """A server that allows addresses to be reused, as every server does, gets it, and is reached there."""
    port = held.getsockname()[1]
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port), 5), server.accept()[0]:
            pass


def confine(other: socket.socket, port: int) -> None:
    """Leave the kernel no other free port for a socket than this one."""
    try:
        only = struct.pack("I", port << 16 | port)
        other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only)
    except OSError:
        pytest.skip("this kernel lets nobody choose the range of free ports")


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_a_held_port_is_nobody_s_free_one(
    held: socket.socket, family: socket.AddressFamily, address: str, reuse: bool
) -> None:
    """Where no other is left, a server that wants any free port gets none."""
    with socket.socket(family) as other:
        confine(other, held.getsockname()[1])
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        with pytest.raises(OSError, match="in use") as caught:
            other.bind((address, 0))
        assert caught.value.errno == errno.EADDRINUSE


def test_no_connection_begins_at_a_held_port(held: socket.socket) -> None:
    """A client gets none either."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
        confine(other, held.getsockname()[1])
        with pytest.raises(OSError, match="address") as caught:
            other.connect(server.getsockname())
        assert caught.value.errno == errno.EADDRNOTAVAIL


def test_two_held_ports_differ(held: socket.socket) -> None:
    """Two programs on one host do not meet."""
    with hold_port() as other:
        assert other.getsockname()[1] != held.getsockname()[1]


def test_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the port is held for IPv4; where nothing can be held, that is said."""
    real = socket.socket

    def make(family: int) -> socket.socket:
        if family not in allowed:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return real(family)

    monkeypatch.setattr(socket, "socket", make)
    allowed = {socket.AF_INET}
    with hold_port() as found:
        assert found.family == socket.AF_INET
    allowed = set()
    with pytest.raises(OSError, match="no free port"):
        hold_port()
