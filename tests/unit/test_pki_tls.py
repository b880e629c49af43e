"""Real TLS connections on loopback: the job's own certificates get in, and nothing else does."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pytest
from cryptography.hazmat.primitives import serialization

from milkweed import pki
from milkweed.errors import AccessError

NAMES = ["localhost", "127.0.0.1"]
TIMEOUT_S = 10.0
JOB = pki.make_authority("job")
OTHER_JOB = pki.make_authority("other job")


def keep(folder: Path, signer: pki.Authority, trusts: pki.Authority) -> pki.Credentials:
    return pki.save_credentials(folder, signer.issue(NAMES), trusts.cert_pem)


class Server:
    """Serves one connection: greets who gets in, and keeps the error of who does not."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.refusal: str = ""
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
            connection.settimeout(TIMEOUT_S)
            with connection, self._context.wrap_socket(connection, server_side=True) as peer:
                peer.sendall(b"welcome")
        except OSError as error:
            self.refusal = str(error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(TIMEOUT_S)
        self._listener.close()


def greet(port: int, context: ssl.SSLContext, name: str = "localhost") -> tuple[bytes, str | None]:
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as peer,
    ):
        return peer.recv(100), peer.version()


@pytest.fixture
def host(tmp_path: Path) -> pki.Credentials:
    return keep(tmp_path / "host", JOB, JOB)


@pytest.fixture
def client(tmp_path: Path) -> pki.Credentials:
    return keep(tmp_path / "client", JOB, JOB)


@pytest.mark.parametrize("name", NAMES)
def test_two_certificates_of_a_job_meet(
    host: pki.Credentials, client: pki.Credentials, name: str
) -> None:
    """A client of the job reaches a host of the job, by name and by address, in TLS 1.3."""
    with Server(pki.make_server_context(host)) as server:
        answer = greet(server.port, pki.make_client_context(client), name)
    assert answer == (b"welcome", "TLSv1.3")
    assert server.refusal == ""


def test_a_client_without_a_certificate_is_refused(host: pki.Credentials) -> None:
    """Trusting the job's authority is not enough to be let in."""
    bare = ssl.create_default_context(cafile=str(host.ca))
    with (
        Server(pki.make_server_context(host)) as server,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        greet(server.port, bare)
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in server.refusal


def test_a_client_of_another_job_is_refused(host: pki.Credentials, tmp_path: Path) -> None:
    """A certificate that another job's authority signed opens nothing here."""
    stranger = keep(tmp_path / "stranger", OTHER_JOB, JOB)
    with (
        Server(pki.make_server_context(host)) as server,
        pytest.raises(ssl.SSLError, match="UNKNOWN_CA"),
    ):
        greet(server.port, pki.make_client_context(stranger))
    assert "CERTIFICATE_VERIFY_FAILED" in server.refusal


def test_a_host_of_another_job_is_refused(client: pki.Credentials, tmp_path: Path) -> None:
    """A client sends nothing to a host that its job's authority did not sign."""
    impostor = keep(tmp_path / "impostor", OTHER_JOB, JOB)
    with (
        Server(pki.make_server_context(impostor)) as server,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        greet(server.port, pki.make_client_context(client))
    assert server.refusal


@pytest.mark.parametrize("name", ["elsewhere", "127.0.0.2", "milkweed host"])
def test_a_host_under_another_name_is_refused(
    host: pki.Credentials, client: pki.Credentials, name: str
) -> None:
    """A host of the job cannot pose as another host; the certificate's subject is no name."""
    with (
        Server(pki.make_server_context(host)) as server,
        pytest.raises(ssl.SSLCertVerificationError, match="match"),
    ):
        greet(server.port, pki.make_client_context(client), name)
    assert server.refusal


def test_an_expired_certificate_is_refused(host: pki.Credentials, tmp_path: Path) -> None:
    """Certificates stop working when their time is over."""
    old = pki.make_authority("old", days=1, clock=lambda: 0.0)
    leaf = old.issue(NAMES, clock=lambda: 0.0)
    late = pki.save_credentials(tmp_path / "late", leaf, JOB.cert_pem)
    pki.ensure_trusted(host, old.cert_pem)
    with (
        Server(pki.make_server_context(host)) as server,
        pytest.raises(ssl.SSLError, match="EXPIRED"),
    ):
        greet(server.port, pki.make_client_context(late))
    assert "expired" in server.refusal


def test_older_tls_is_refused(host: pki.Credentials, client: pki.Credentials) -> None:
    """Both ends speak TLS 1.3 and nothing older."""
    context = ssl.create_default_context(cafile=str(client.ca))
    context.load_cert_chain(client.cert, client.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Server(pki.make_server_context(host)) as server, pytest.raises(ssl.SSLError):
        greet(server.port, context)
    assert "UNSUPPORTED_PROTOCOL" in server.refusal


def test_a_leaf_cannot_sign_a_certificate_that_works(host: pki.Credentials, tmp_path: Path) -> None:
    """A host that turns on its job cannot add hosts or clients with its own key."""
    leaf = JOB.issue(NAMES)
    rogue = pki.Authority(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem).issue(NAMES)
    chain = pki.Leaf(cert_pem=rogue.cert_pem + leaf.cert_pem, key_pem=rogue.key_pem)
    forged = pki.save_credentials(tmp_path / "forged", chain, JOB.cert_pem)
    with Server(pki.make_server_context(host)) as server, pytest.raises(ssl.SSLError):
        greet(server.port, pki.make_client_context(forged))
    assert "CERTIFICATE_VERIFY_FAILED" in server.refusal


def test_one_more_authority_can_be_trusted(
    host: pki.Credentials, client: pki.Credentials, tmp_path: Path
) -> None:
    """A client learns to trust a second job and keeps the first; saying so twice is harmless."""
    second = keep(tmp_path / "second", OTHER_JOB, JOB)
    pki.ensure_trusted(client, OTHER_JOB.cert_pem)
    pki.ensure_trusted(client, OTHER_JOB.cert_pem)
    assert client.ca.read_bytes() == JOB.cert_pem + OTHER_JOB.cert_pem
    for credentials in (host, second):
        with Server(pki.make_server_context(credentials)) as server:
            assert greet(server.port, pki.make_client_context(client))[0] == b"welcome"


def test_contexts_check_both_ways(host: pki.Credentials) -> None:
    """Both contexts demand a certificate, the client's checks names, and no session is resumed."""
    server, client = pki.make_server_context(host), pki.make_client_context(host)
    assert server.verify_mode == client.verify_mode == ssl.CERT_REQUIRED
    assert client.check_hostname
    assert server.num_tickets == 0


def test_missing_or_locked_credentials_are_explained(host: pki.Credentials) -> None:
    """An encrypted key gives an error instead of a prompt, and so does a missing one."""
    key = serialization.load_pem_private_key(host.key.read_bytes(), password=None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    host.key.write_bytes(locked)
    with pytest.raises(AccessError, match="cannot be used"):
        pki.make_client_context(host)
    host.key.unlink()
    with pytest.raises(AccessError, match="cannot be used") as caught:
        pki.make_server_context(host)
    assert "No such file" in caught.value.seen


def test_connecting_needs_no_cryptography(host: pki.Credentials) -> None:
    """Importing is cheap, and a host without `cryptography` can still serve and dial."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from milkweed import pki; assert 'ssl' not in sys.modules\n"
        "credentials = pki.Credentials.of_folder(sys.argv[1])\n"
        "pki.make_server_context(credentials), pki.make_client_context(credentials)\n"
        "print(*pki.engine_environment(credentials))\n"
    )
    command = [sys.executable, "-c", program, str(host.cert.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "HYPERACTOR_TLS_CERT"
