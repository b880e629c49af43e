"""The keeper's door for clients elsewhere: TLS 1.3, and only with a certificate of the job."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

CERT_FILE, KEY_FILE, CA_FILE = "tls.crt", "tls.key", "ca.crt"
FILES = (CERT_FILE, KEY_FILE, CA_FILE)
"""What a folder of credentials holds."""

PORT_COUNT = 64
"""How many ports, from the first one on, a host may use: even steps for the engine, odd ones for orders."""


def make_server_context(folder: Path) -> ssl.SSLContext:
    """Serve only peers that show a certificate of the job's own authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a peer proves who it is at every connection
    context.load_cert_chain(folder / CERT_FILE, folder / KEY_FILE, password="")
    context.load_verify_locations(folder / CA_FILE)
    return context


def engine_ports(first: int, turn: int = 0) -> Sequence[int]:
    """Where a host's engine may listen, in the order they are tried; 0 is any that is free.

    The engine of a client takes what answers at an address for what answered there before, so a host that comes
    anew begins at another port: its `turn`.
    """
    ports = range(first, first + PORT_COUNT, 2)
    at = turn % len(ports)
    return [*ports[at:], *ports[:at], 0]


def vary_name(name: str, number: int) -> str:
    """A name that leads to the same machine and looks different: letters of either case mean the same in DNS.

    For hosts that come anew under one name, and must keep their port (see `engine_ports`).
    """
    varied = ""
    for letter in name:
        bit = letter.isascii() and letter.isalpha()
        varied += letter.upper() if bit and number & 1 else letter
        number >>= bit
    return varied


def control_ports(first: int) -> Sequence[int]:
    """Where a host's keeper may take orders; a client tries them in the same order."""
    return range(first + 1, first + PORT_COUNT, 2)


def listen(ports: Sequence[int]) -> socket.socket:
    """Listen on the first port that is free: hosts of two jobs may share a machine."""
    for port in ports:
        try:
            return socket.create_server(("", port))
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
    raise OSError(errno.EADDRINUSE, f"all ports from {ports[0]} to {ports[-1]} are in use")


def keep_alive(connection: socket.socket, *, patience_s: int) -> None:
    """Have the kernel notice a peer that is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, patience_s // 3))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, patience_s // 6))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_s * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
