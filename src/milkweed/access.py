"""Finding out in a moment whether a host will let us in; the engine itself would only time out."""

from __future__ import annotations

import socket
import ssl

from .errors import AccessError, UnreachableError
from .pki import Credentials, make_client_context

TIMEOUT_S = 5.0
LISTEN_S = 0.1


def check_access(credentials: Credentials, address: str) -> None:
    """Shake hands with a `tls://host:port` address; raise with the reason when either side refuses."""
    host, _, port = address.partition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as plain:
            _shake_hands(credentials, plain, host, address)
    except ssl.SSLError as error:
        raise AccessError(
            f"the worker at {address} and this client do not trust each other",
            seen=str(error),
            hint="only certificates of the job itself get in: load the job from its own state file",
        ) from error
    except OSError as error:
        raise UnreachableError(
            f"the worker at {address} does not answer", seen=str(error)
        ) from error


def _shake_hands(credentials: Credentials, plain: socket.socket, host: str, address: str) -> None:
    with make_client_context(credentials).wrap_socket(plain, server_hostname=host) as tls:
        # A server refuses a client's certificate after the handshake: it says so now, or it is content.
        tls.settimeout(LISTEN_S)
        try:
            if tls.recv(1) == b"":
                raise AccessError(f"the worker at {address} closed the connection")
        except TimeoutError:
            return
