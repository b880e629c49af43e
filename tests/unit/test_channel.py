"""Lines both ways at once, plain and over TLS: real sockets, real certificates."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from milkweed import pki
from milkweed.channel import HOST_PATIENCE_S, Plain, Secure, open_tls, open_unix
from milkweed.errors import AccessError
from milkweed.worker import tls, wire
from unit.keepers import WAIT_S, make_credentials

JOB = pki.make_authority("job")
OTHER_JOB = pki.make_authority("other job")
Serve = Callable[[ssl.SSLSocket], None]


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Credentials of the job."""
    return make_credentials(tmp_path / "ours", JOB)


class Server:
    """Takes one connection over TLS; `refusal` is why it did not come to be."""

    def __init__(self, folder: Path, serve: Serve) -> None:
        self.refusal = ""
        self._context = tls.make_server_context(folder)
        self._serve = serve
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(WAIT_S)
        self.port: int = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            caller, _ = self._door.accept()
            caller.settimeout(WAIT_S)
            with caller, self._context.wrap_socket(caller, server_side=True) as peer:
                self._serve(peer)
        except OSError as error:
            self.refusal = str(error)

    def close(self) -> None:
        """Wait until it has served, and let the port go."""
        self._thread.join(WAIT_S)
        self._door.close()


@contextlib.contextmanager
def served(folder: Path, serve: Serve) -> Generator[Server]:
    server = Server(folder, serve)
    with contextlib.closing(server):
        yield server


def dial(server: Server, folder: Path, host: str = "127.0.0.1") -> contextlib.closing[Secure]:
    return contextlib.closing(open_tls(host, server.port, str(folder), WAIT_S))


def echo(peer: ssl.SSLSocket) -> None:
    while data := peer.recv(65536):
        peer.sendall(data)


# Lines


@pytest.fixture
def pair() -> Generator[tuple[Plain, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield Plain(here), there


def test_lines_come_whole(pair: tuple[Plain, socket.socket]) -> None:
    """However the bytes arrive, lines come one by one and without their ends."""
    channel, peer = pair
    peer.sendall(b"one\ntwo\nth")
    assert [channel.receive_line(WAIT_S), channel.receive_line(WAIT_S)] == [b"one", b"two"]
    peer.sendall(b"ree\n")
    assert channel.receive_line(WAIT_S) == b"three"


def test_the_end_is_nothing(pair: tuple[Plain, socket.socket]) -> None:
    """What was said before the end is heard; half a line is none."""
    channel, peer = pair
    peer.sendall(b"last\nhalf")
    peer.close()
    assert channel.receive_line(WAIT_S) == b"last"
    assert channel.receive_line(WAIT_S) == b""


def test_a_wait_for_a_line_has_a_deadline(pair: tuple[Plain, socket.socket]) -> None:
    """Half a line does not make the wait longer, and what came is not lost."""
    channel, peer = pair
    peer.sendall(b"ha")
    with pytest.raises(TimeoutError):
        channel.receive_line(0.01)
    peer.sendall(b"lf\n")
    assert channel.receive_line(WAIT_S) == b"half"


def test_a_deadline_that_has_passed_waits_for_nothing(pair: tuple[Plain, socket.socket]) -> None:
    """A line that is there already is still given."""
    channel, peer = pair
    with pytest.raises(TimeoutError):
        channel.receive_line(0.0)
    peer.sendall(b"a\nb\n")
    assert channel.receive_line(WAIT_S) == b"a"
    assert channel.receive_line(0.0) == b"b"


def test_a_line_without_end_is_refused(
    pair: tuple[Plain, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that never ends its line cannot fill our memory."""
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 1000)
    channel, peer = pair
    peer.sendall(b"x" * 2000)
    with pytest.raises(OSError, match="too long"):
        channel.receive_line(WAIT_S)


def test_hanging_up_wakes_whoever_reads(pair: tuple[Plain, socket.socket]) -> None:
    """A reader in another thread sees the end, and so does the other side; twice is fine."""
    channel, peer = pair
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(channel.receive_line(None)))
    reader.start()
    channel.hang_up()
    channel.hang_up()
    reader.join(WAIT_S)
    assert (heard, peer.recv(1)) == ([b""], b"")


def test_nobody_behind_a_path(tmp_path: Path) -> None:
    """A socket that is not there, or that nobody listens on, is an error at once."""
    with pytest.raises(FileNotFoundError):
        open_unix(str(tmp_path / "none"), 1.0)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "dead"))
    with pytest.raises(ConnectionRefusedError):
        open_unix(str(tmp_path / "dead"), 1.0)


# TLS


def test_lines_over_tls(ours: Path) -> None:
    """What is sent comes back, also what is larger than any buffer on the way."""
    large = b"x" * 3_000_000
    with served(ours, echo) as server, dial(server, ours) as channel:
        for line in (b"hello", large, b"bye"):
            sender = threading.Thread(target=channel.send, args=(line + b"\n",))
            sender.start()
            assert channel.receive_line(WAIT_S) == line
            sender.join()
        channel.hang_up()


def test_both_ends_speak_at_once(ours: Path) -> None:
    """While one thread reads, others send: every line arrives whole, in both directions."""
    said: list[bytes] = []

    def serve(peer: ssl.SSLSocket) -> None:
        rest = b""
        for number in range(300):
            peer.sendall(b"from the host %d\n" % number)
            if number % 3 == 0:
                rest += peer.recv(65536)
        while rest.count(b"\n") < 400:
            rest += peer.recv(65536)
        said.extend(rest.splitlines())

    with served(ours, serve) as server, dial(server, ours) as channel:
        heard: list[bytes] = []

        def read() -> None:
            heard.extend(channel.receive_line(WAIT_S) for _ in range(300))

        def send(name: bytes) -> None:
            for number in range(200):
                channel.send(b"%s %d\n" % (name, number))

        threads = [
            threading.Thread(target=read),
            threading.Thread(target=send, args=(b"a",)),
            threading.Thread(target=send, args=(b"b",)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert heard == [b"from the host %d" % number for number in range(300)]
    assert [line for line in said if line.startswith(b"a")] == [b"a %d" % n for n in range(200)]
    assert [line for line in said if line.startswith(b"b")] == [b"b %d" % n for n in range(200)]


def test_a_peer_without_a_certificate_gets_nothing(ours: Path) -> None:
    """A host of the job serves nobody who shows no certificate, and the client hears why."""
    bare = ssl.create_default_context(cafile=str(ours / "ca.crt"))
    served_to: list[object] = []
    with (
        served(ours, served_to.append) as server,
        socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connected,
    ):
        channel = Secure(connected, bare, "127.0.0.1")
        channel.shake_hands()  # in TLS 1.3 the refusal comes after it
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            channel.receive_line(WAIT_S)
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in server.refusal
    assert served_to == []


def test_a_host_of_another_job_is_not_spoken_to(ours: Path, tmp_path: Path) -> None:
    """Its certificate is not of our job: the handshake fails, and the host hears that."""
    theirs = make_credentials(tmp_path / "theirs", OTHER_JOB, JOB)
    with (
        served(theirs, echo) as server,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        open_tls("127.0.0.1", server.port, str(ours), WAIT_S)
    assert "UNKNOWN_CA" in server.refusal


def test_a_client_of_another_job_is_not_served(ours: Path, tmp_path: Path) -> None:
    """Trusting our hosts is not enough."""
    theirs = make_credentials(tmp_path / "theirs", OTHER_JOB, JOB)
    with (
        served(ours, echo) as server,
        dial(server, theirs) as channel,
        pytest.raises(ssl.SSLError, match="UNKNOWN_CA"),
    ):
        channel.receive_line(WAIT_S)
    assert "CERTIFICATE_VERIFY_FAILED" in server.refusal


def test_a_host_must_have_the_name_it_is_dialled_by(tmp_path: Path, ours: Path) -> None:
    """Another host of the job cannot stand in for the one that is meant."""
    elsewhere = tmp_path / "elsewhere"
    pki.save_credentials(elsewhere, JOB.issue(["n2"]), JOB.cert_pem)
    with (
        served(elsewhere, echo) as server,
        pytest.raises(ssl.SSLError, match="IP address mismatch"),
    ):
        open_tls("127.0.0.1", server.port, str(ours), WAIT_S)


def test_a_host_that_hangs_up_in_the_handshake(ours: Path) -> None:
    """Whoever is there is not a host of the job."""
    door = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        caller, _ = door.accept()
        caller.recv(65536)
        caller.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    with door, pytest.raises(ssl.SSLError):
        open_tls("127.0.0.1", door.getsockname()[1], str(ours), WAIT_S)
    thread.join(WAIT_S)


def test_an_orderly_end_over_tls_is_nothing(ours: Path) -> None:
    """The other side says that it leaves: there are no more lines."""

    def leave(peer: ssl.SSLSocket) -> None:
        peer.sendall(b"last\n")
        peer.unwrap()

    with served(ours, leave) as server, dial(server, ours) as channel:
        assert channel.receive_line(WAIT_S) == b"last"
        assert channel.receive_line(WAIT_S) == b""
        channel.hang_up()


def test_an_end_without_a_word_is_not_taken_for_one(ours: Path) -> None:
    """Somebody on the way could cut a stream short: what is not signed off raises, and is no last line."""

    def vanish(peer: ssl.SSLSocket) -> None:
        peer.sendall(b"half")

    with (
        served(ours, vanish) as server,
        dial(server, ours) as channel,
        pytest.raises(OSError, match="EOF occurred"),
    ):
        channel.receive_line(WAIT_S)


def test_a_silent_machine_is_noticed_by_the_kernel(ours: Path) -> None:
    """A peer that is gone without a word ends the connection after a few seconds, not after hours."""
    with served(ours, echo) as server, dial(server, ours) as channel:
        option = channel._socket.getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < HOST_PATIENCE_S
        assert option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) < HOST_PATIENCE_S
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == HOST_PATIENCE_S * 1000
        channel.hang_up()


def test_new_credentials_in_a_folder_are_seen(ours: Path) -> None:
    """Certificates are read once for each state of the folder, not once for all."""
    with served(ours, echo) as server, dial(server, ours) as channel:
        channel.hang_up()
    pki.save_credentials(ours, OTHER_JOB.issue(["127.0.0.1"]), OTHER_JOB.cert_pem)
    with served(ours, echo) as server, dial(server, ours) as channel:
        channel.send(b"hello\n")
        assert channel.receive_line(WAIT_S) == b"hello"
        channel.hang_up()


def test_credentials_that_are_not_there(tmp_path: Path) -> None:
    """Without them nobody is dialled in vain for long; the error is one that callers know."""
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        pytest.raises((OSError, AccessError)),
    ):
        open_tls("127.0.0.1", door.getsockname()[1], str(tmp_path / "gone"), WAIT_S)
