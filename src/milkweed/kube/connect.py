"""Connections to the API server: TLS under the right name, through a proxy where there has to be one."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import select
import ssl
import tempfile
import urllib.parse
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import AccessError, SpecError
from ..worker.tls import keep_alive
from .config import Cluster
from .login import Login

CONNECT_S = 10.0
"""How long reaching the API server and shaking hands may take."""
PATIENCE_S = 30
"""How long the machine at the other end may be gone before the kernel gives a connection up."""


class Proxy(NamedTuple):
    """What leads to the API server."""

    host: str
    port: int
    headers: Mapping[str, str]


class Connection(http.client.HTTPConnection):
    """A connection over TLS, or without, which may expect another name than the one it dials."""

    def __init__(
        self, cluster: Cluster, login: Login, context: ssl.SSLContext | None, *, timeout_s: float
    ) -> None:
        url = urllib.parse.urlsplit(cluster.server)
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        proxy = find_proxy(cluster.server, cluster.proxy, os.environ)
        super().__init__(
            proxy.host if proxy else host, proxy.port if proxy else port, timeout=CONNECT_S
        )
        if proxy:
            self.set_tunnel(host, port, dict(proxy.headers))
        self.login = login
        """Who it speaks for: a certificate is shown once, when it is opened."""
        self._tls = context
        self._name = cluster.server_name or host
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """Connect, and shake hands under the right name."""
        super().connect()
        keep_alive(self.sock, patience_s=PATIENCE_S)
        if self._tls:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)
        self.sock.settimeout(self._timeout_s)

    def is_usable(self, login: Login) -> bool:
        """Whether it was kept open for the same login; a kept one has nothing to say but that it ended."""
        shown = (self.login.cert_pem, self.login.key_pem)
        if self.sock is None or shown != (login.cert_pem, login.key_pem):
            return False
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return not poller.poll(0)


# TLS


def make_context(cluster: Cluster, login: Login) -> ssl.SSLContext | None:
    """How to speak TLS with the API server; None where it is spoken to without."""
    if not cluster.server.startswith("https:"):
        return None
    try:
        context = ssl.create_default_context(cadata=cluster.ca_pem)
    except ssl.SSLError as error:
        raise AccessError(
            "the authority of the API server in the kubeconfig is not a certificate",
            seen=str(error),
        ) from error
    # Python is stricter than kubectl from 3.13 on, and authorities of older clusters lack what it asks for.
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    if cluster.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if login.cert_pem:
        _load_pair(context, f"{login.cert_pem}\n{login.key_pem or ''}\n".encode())
    return context


def _load_pair(context: ssl.SSLContext, pair: bytes) -> None:
    with _file_of(pair) as path:
        try:
            # An empty password: with none, a key that asks for one would stop the program at a prompt.
            context.load_cert_chain(path, password="")
        except (ssl.SSLError, OSError) as error:
            raise AccessError(
                "the client certificate for the API server cannot be used", seen=str(error)
            ) from None


@contextmanager
def _file_of(data: bytes) -> Generator[str]:
    """Python reads certificates from files only: one in memory, else one that is gone soon."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="milkweed-") as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    with open(os.memfd_create("milkweed-login"), "wb", buffering=0) as memory:
        memory.write(data)
        yield f"/proc/self/fd/{memory.fileno()}"


# Proxies


def find_proxy(server: str, said: str | None, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy that the kubeconfig names; else the one of the environment, as kubectl understands it."""
    url = urllib.parse.urlsplit(server)
    if not said:
        said = _variable(environ, f"{url.scheme}_proxy")
        if not said or _is_direct(url, _variable(environ, "no_proxy")):
            return None
    proxy = urllib.parse.urlsplit(said if "://" in said else f"http://{said}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise SpecError(
            f"the proxy {proxy.scheme}://{proxy.hostname or ''} to the API server is not supported",
            hint="use one with http://, or `kubectl proxy` and its address",
        )
    headers: dict[str, str] = {}
    if proxy.username is not None:
        words = f"{proxy.username}:{proxy.password or ''}"
        shown = base64.b64encode(urllib.parse.unquote(words).encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {shown}"
    return Proxy(proxy.hostname, proxy.port or 80, headers)


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _is_direct(url: urllib.parse.SplitResult, no_proxy: str) -> bool:
    host = (url.hostname or "").lower()
    if host == "localhost":
        return True
    address = None
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback:
            return True
    return any(_is_named(entry.strip().lower(), host, address) for entry in no_proxy.split(","))


def _is_named(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    """Whether an entry of NO_PROXY means a host: `*`, a name, its subdomains, an address, a network."""
    if entry.count(":") == 1:
        entry = entry.partition(":")[0]
    if not entry or entry == "*":
        return entry == "*"
    if address is not None:
        with suppress(ValueError):
            return address in ipaddress.ip_network(entry, strict=False)
        return False
    name = entry.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else f".{host}".endswith(f".{name}")
