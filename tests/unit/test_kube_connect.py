"""Connections to the API server: who it must be, who we are, and what is in between."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Self

import pytest
from cryptography.hazmat.primitives import serialization

from milkweed import pki
from milkweed.errors import AccessError, SpecError, UnreachableError
from milkweed.kube import connect
from milkweed.kube.config import Cluster, Login
from milkweed.kube.connect import Proxy, find_proxy, make_context
from milkweed.kube.resources import PODS
from unit.kube_fake import AUTHORITY, WAIT_S, Asked, FakeApi, Handler, Reply, make_tls

SERVER = "https://10.1.2.3:6443"


@contextlib.contextmanager
def serving(folder: Path, *names: str, signer: pki.Authority = AUTHORITY) -> Generator[FakeApi]:
    with FakeApi(make_tls(folder / "tls", *names, signer=signer)) as fake:
        yield fake


def say_who(handler: Handler, _asked: Asked) -> None:
    """Answer with the names in the client's certificate."""
    shown = handler.request.getpeercert()
    names = [word for _kind, word in shown["subjectAltName"]] if shown else []
    handler.reply(Reply(body=names))


# TLS


def test_the_authority_of_the_kubeconfig_is_trusted(tmp_path: Path) -> None:
    """A server with a certificate of the cluster's authority is asked, in TLS."""
    with serving(tmp_path) as fake:
        api = fake.api()
        assert api.get(PODS, "lab") == {}
        api.close()


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    """A server that the cluster's authority did not sign gets no token."""
    with serving(tmp_path, signer=pki.make_authority("other")) as fake:
        with pytest.raises(AccessError, match="not trusted") as caught:
            fake.api().get(PODS, "lab")
        assert ("unable to get local issuer" in caught.value.seen, fake.asked) == (True, [])
        with pytest.raises(AccessError):
            fake.api(ca_pem=None).get(PODS, "lab")


def test_insecure_means_insecure(tmp_path: Path) -> None:
    """Whoever says so in the kubeconfig talks to any server."""
    with serving(tmp_path, "elsewhere", signer=pki.make_authority("other")) as fake:
        api = fake.api(insecure=True)
        assert api.get(PODS, "lab") == {}
        api.close()


def test_another_name_may_be_expected(tmp_path: Path) -> None:
    """Behind a tunnel the certificate has the server's own name, which the kubeconfig tells."""
    with serving(tmp_path, "api.example.com") as fake:
        with pytest.raises(AccessError, match="not trusted"):
            fake.api().get(PODS, "lab")
        api = fake.api(server_name="api.example.com")
        assert api.get(PODS, "lab") == {}
        api.close()


def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    """Who we are is told by certificate; another login opens another connection."""
    one, two = (AUTHORITY.issue([name]) for name in ("one", "two"))
    logins = [Login(None, leaf.cert_pem.decode(), leaf.key_pem.decode()) for leaf in (one, two)]
    with serving(tmp_path) as fake:
        fake.script(say_who, say_who, say_who)
        api = fake.api()
        api.config.log_in = lambda: logins[0]
        assert [api.get(PODS, "lab"), api.get(PODS, "lab")] == [["one"], ["one"]]
        api.config.log_in = lambda: logins[1]
        assert api.get(PODS, "lab") == ["two"]
        assert [asked.connection for asked in fake.asked] == [1, 1, 2]
        api.close()


@pytest.mark.parametrize("in_memory", [True, False])
def test_keys_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """A key is in a file as long as Python reads it, and where possible never on a disk."""
    monkeypatch.setattr(connect.tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    leaf = AUTHORITY.issue(["me"])
    login = Login(None, leaf.cert_pem.decode(), leaf.key_pem.decode())
    assert make_context(Cluster(server=SERVER), login) is not None
    assert list(tmp_path.iterdir()) == []


def test_credentials_that_cannot_be_used_are_explained() -> None:
    """Damaged, locked and foreign keys are errors, never a prompt; so is a damaged authority."""
    leaf, other = AUTHORITY.issue(["me"]), AUTHORITY.issue(["other"])
    key = serialization.load_pem_private_key(leaf.key_pem, password=None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    for bad in (b"", b"nonsense", locked, other.key_pem):
        with pytest.raises(AccessError, match="certificate for the API server cannot be used"):
            make_context(Cluster(server=SERVER), Login(None, leaf.cert_pem.decode(), bad.decode()))
    with pytest.raises(AccessError, match="is not a certificate"):
        make_context(Cluster(server=SERVER, ca_pem="nonsense"), Login())


def test_older_authorities_are_good_enough() -> None:
    """Kubectl takes authorities that newer Pythons find too plain, and so do we."""
    context = make_context(Cluster(server=SERVER), Login())
    assert context is not None
    assert not context.verify_flags & ssl.VerifyFlags.VERIFY_X509_STRICT
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert make_context(Cluster(server="http://10.1.2.3"), Login()) is None


# Proxies


class Tunnel:
    """A proxy that connects to one address, whatever it is asked for, and remembers what it was asked."""

    def __init__(self, port: int, answer: str = "200 OK") -> None:
        self.heads: list[str] = []
        self._answer, self._target = answer, port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
        self._door.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                with client:
                    self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        with client.makefile("rb") as lines:
            self.heads.append(b"".join(iter(lines.readline, b"\r\n")).decode())
        client.sendall(f"HTTP/1.1 {self._answer}\r\n\r\n".encode())
        if not self._answer.startswith("200"):
            return
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=self._copy, args=(server, client))
            back.start()
            self._copy(client, server)
            back.join(WAIT_S)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def test_a_proxy_is_asked_for_a_tunnel(tmp_path: Path) -> None:
    """TLS goes through the proxy of the kubeconfig, which sees the server's name and its own password only."""
    with serving(tmp_path, "api.example.com") as fake, Tunnel(fake.port) as tunnel:
        proxy = f"http://me:pass%40word@127.0.0.1:{tunnel.port}"
        api = fake.api(server="https://api.example.com:6443", proxy=proxy)
        assert api.get(PODS, "lab") == {}
        api.close()
    assert tunnel.heads[0].startswith("CONNECT api.example.com:6443 HTTP/1.")
    assert "Proxy-Authorization: Basic bWU6cGFzc0B3b3Jk" in tunnel.heads[0]
    assert "secret" not in tunnel.heads[0]


def test_a_proxy_that_refuses_is_explained() -> None:
    """What the proxy says is what was seen."""
    with FakeApi() as fake, Tunnel(fake.port, "407 Who are you") as tunnel:
        api = fake.api(server="https://api.example.com", proxy=f"http://127.0.0.1:{tunnel.port}")
        with pytest.raises(UnreachableError, match="407 Who are you"):
            api.get(PODS, "lab")


@pytest.mark.parametrize("proxy", ["https://proxy:3128", "socks5://proxy:1080", "http://"])
def test_other_proxies_are_refused(proxy: str) -> None:
    """A proxy that milkweed cannot speak to is an error, not a detour around it; its password is not shown."""
    with pytest.raises(SpecError, match="is not supported") as caught:
        find_proxy(SERVER, proxy.replace("//", "//me:word@"), {})
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("server", "environ", "proxied"),
    [
        (SERVER, {}, False),
        (SERVER, {"HTTPS_PROXY": "http://proxy:3128"}, True),
        (SERVER, {"https_proxy": "proxy:3128"}, True),
        (SERVER, {"HTTP_PROXY": "http://proxy:3128"}, False),
        ("http://10.1.2.3", {"HTTP_PROXY": "http://proxy:3128"}, True),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://proxy:3128"}, False),
        ("https://127.0.0.9:6443", {"HTTPS_PROXY": "http://proxy:3128"}, False),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://proxy:3128"}, False),
    ],
)
def test_the_environment_names_proxies(server: str, environ: dict[str, str], proxied: bool) -> None:
    """As for kubectl: by scheme, in capitals or not, and never for this machine itself."""
    assert find_proxy(server, None, environ) == (Proxy("proxy", 3128, {}) if proxied else None)


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", " 192.168.0.0/16 , 10.1.2.3 ", True),
        ("10.1.2.3", "11.0.0.0/8,example.com,10.1.2", False),
        ("10.1.2.3", "*", True),
        ("[fd00::7]", "fd00::/16", True),
        ("api.example.com", "example.com", True),
        ("api.example.com", ".example.com", True),
        ("api.example.com", "*.example.com", True),
        ("API.example.com", "api.EXAMPLE.com:6443", True),
        ("example.com", ".example.com", False),
        ("myexample.com", "example.com", False),
        ("api.example.com", "10.0.0.0/8,,org", False),
    ],
)
def test_exceptions_are_understood(host: str, no_proxy: str, direct: bool) -> None:
    """NO_PROXY has names, subdomains, addresses and networks; the kubeconfig's own proxy has no exceptions."""
    environ = {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": no_proxy}
    server = f"https://{host}:6443"
    assert (find_proxy(server, None, environ) is None) == direct
    assert find_proxy(server, "http://said", environ) == Proxy("said", 80, {})
