"""Ports of pods through the API server: bytes both ways, errors in words, and nothing left open."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import struct
import threading
from typing import Any

import pytest

from milkweed.errors import MilkweedError
from milkweed.kube import forward
from milkweed.kube.api import Api, ApiError
from milkweed.kube.config import Login
from milkweed.kube.forward import Forward, Patience, dial
from unit.kube_fake import (
    WAIT_S,
    Asked,
    FakeApi,
    Handler,
    Reply,
    accept_upgrade,
    frame,
    read_frame,
)

PORT = 26600
LARGE = bytes(range(256)) * 8192
DATA, ERROR = b"\0", b"\1"
Said = queue.Queue[bytes | None]


class Pod:
    """What is behind a port: the test speaks for it, and hears what it is told."""

    def __init__(self) -> None:
        self.heard: Said = queue.Queue()
        self.pinged: Said = queue.Queue()
        self._out: Said = queue.Queue()
        self.opened = threading.Event()

    def say(self, data: bytes, channel: bytes = DATA) -> None:
        """Say something on a channel."""
        self._out.put(frame(channel + data))

    def send(self, data: bytes) -> None:
        """Send something that is no message."""
        self._out.put(data)

    def close(self) -> None:
        """Close the connection, as a kubelet does when the program in the pod did."""
        self._out.put(None)

    def hear(self, size: int) -> bytes:
        """So many bytes of what was said to it."""
        data = b""
        while len(data) < size:
            got = self.heard.get(timeout=WAIT_S)
            assert got is not None, "closed"
            data += got
        return data

    def wait_end(self) -> None:
        """Wait until the other side has gone."""
        while self.heard.get(timeout=WAIT_S) is not None:
            pass

    def __call__(self, handler: Handler, asked: Asked) -> None:
        """Serve one connection."""
        accept_upgrade(handler, asked)
        port = struct.pack("<H", int(asked.query["ports"]))
        handler.wfile.write(frame(DATA + port) + frame(ERROR + port))
        self.opened.set()
        reads = threading.Thread(target=self._read, args=(handler,), daemon=True)
        reads.start()
        with contextlib.suppress(OSError):
            while (data := self._out.get(timeout=WAIT_S)) is not None:
                handler.wfile.write(data)
                handler.wfile.flush()
            handler.request.shutdown(socket.SHUT_RDWR)
        reads.join(WAIT_S)

    def _read(self, handler: Handler) -> None:
        with contextlib.suppress(OSError):
            while got := read_frame(handler):
                kind, data = got
                if kind == 2:
                    assert data[:1] == DATA
                    self.heard.put(data[1:])
                else:
                    self.pinged.put(data)
        self.heard.put(None)
        self._out.put(None)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> bool:
    """Every test is done with TLS and without."""
    return request.param


@pytest.fixture
def pod(fake: FakeApi) -> Pod:
    made = Pod()
    fake.script(made)
    return made


def read_all(source: socket.socket) -> bytes:
    source.settimeout(WAIT_S)
    return b"".join(iter(lambda: source.recv(65536), b""))


def read(source: socket.socket, size: int) -> bytes:
    source.settimeout(WAIT_S)
    data = b""
    while len(data) < size:
        got = source.recv(65536)
        assert got, f"ended after {len(data)} of {size} bytes"
        data += got
    return data


def test_bytes_go_both_ways(fake: FakeApi, api: Api, pod: Pod) -> None:
    """What is written comes out at the other end, without the port numbers that come first."""
    with dial(api, "lab", "a", PORT) as here:
        here.sendall(b"hello")
        assert pod.hear(5) == b"hello"
        pod.say(b"good ")
        pod.say(b"day")
        assert read(here, 8) == b"good day"
    pod.wait_end()
    assert fake.asked[0].path == "/api/v1/namespaces/lab/pods/a/portforward"
    assert fake.asked[0].query == {"ports": str(PORT)}


def test_much_goes_both_ways_at_once(api: Api, pod: Pod) -> None:
    """Neither direction waits for the other."""
    with dial(api, "lab", "a", PORT) as here:
        writes = threading.Thread(target=here.sendall, args=(LARGE,))
        writes.start()
        pod.say(LARGE)
        assert read(here, len(LARGE)) == LARGE
        assert pod.hear(len(LARGE)) == LARGE
        writes.join(WAIT_S)
    pod.wait_end()


def test_nobody_sends_more_than_is_read(api: Api, pod: Pod) -> None:
    """A reader that waits makes the pod wait, and the silence that follows is not held against the pod."""
    here, there = socket.socketpair()
    pump = forward._Pump(forward._open(api, "lab", "a", PORT), there, None)
    pump._undelivered = bytearray(forward._FULL_BYTES)
    pump._last_s = 0.0
    pump._ask()
    assert (pump._listens_to_pod, pump._is_over()) == (False, False)
    pump._tunnel.post(bytes(forward._FULL_BYTES))
    assert pump._listens_there is False
    pump._said_all = pump._hung_up = True
    assert pump._is_over() is False, "what was said before is still to be sent"
    pump._tunnel.is_open = pump._hung_up = False
    assert pump._is_over() is False, "what the pod said before is still to be delivered"
    pump._hung_up = True
    assert pump._is_over() is True
    for each in (here, there, pump._tunnel):
        each.close()
    pod.wait_end()


def test_what_was_said_before_closing_arrives(api: Api, pod: Pod) -> None:
    """A program that writes and closes at once has written."""
    here = dial(api, "lab", "a", PORT)
    sends = threading.Thread(target=lambda: (here.sendall(LARGE), here.close()))
    sends.start()
    assert pod.hear(len(LARGE)) == LARGE
    sends.join(WAIT_S)
    pod.wait_end()


def test_what_the_pod_said_last_arrives(api: Api, pod: Pod) -> None:
    """All that a pod wrote before it closed is read, then the end."""
    with dial(api, "lab", "a", PORT) as here:
        pod.say(LARGE)
        pod.close()
        assert read_all(here) == LARGE


def test_an_answer_may_follow_the_end_of_a_question(api: Api, pod: Pod) -> None:
    """A program that has said everything still hears the answer."""
    with dial(api, "lab", "a", PORT) as here:
        here.sendall(b"question")
        here.shutdown(socket.SHUT_WR)
        assert pod.hear(8) == b"question"
        pod.say(b"answer")
        assert read(here, 6) == b"answer"
        pod.close()
        assert read_all(here) == b""


def test_a_half_closed_connection_ends_after_a_while(api: Api, pod: Pod) -> None:
    """A pod that says nothing to somebody who said everything is left."""
    with dial(api, "lab", "a", PORT, patience=Patience(linger_s=0.01)) as here:
        here.shutdown(socket.SHUT_WR)
        assert read_all(here) == b""
    pod.wait_end()


def test_an_error_in_the_pod_is_heard(api: Api, pod: Pod) -> None:
    """A port at which nobody listens closes the connection, and the kubelet's words are kept."""
    heard: list[str] = []
    with dial(api, "lab", "a", PORT, heard=heard.append) as here:
        pod.say(b"connection refused", ERROR)
        assert read_all(here) == b""
    pod.wait_end()
    assert heard == ["connection refused"]


def test_a_pod_that_is_not_there_is_an_error_at_once(fake: FakeApi, api: Api) -> None:
    """Dialling tells what the API server says."""
    fake.script(Reply(404, {"message": 'pods "a" not found'}))
    with pytest.raises(ApiError, match='pods "a" not found'):
        dial(api, "lab", "a", PORT)


def test_an_expired_login_is_renewed(fake: FakeApi, api: Api) -> None:
    """A connection is asked for once more with a new login."""
    pod, tokens = Pod(), ["old", "new"]
    api.config.log_in = lambda: Login(tokens[0])
    api.config.forget = lambda: tokens.remove("old")
    fake.script(Reply(401, {}), pod)
    dial(api, "lab", "a", PORT).close()
    pod.wait_end()
    assert [each.headers["Authorization"] for each in fake.asked] == ["Bearer old", "Bearer new"]


def test_a_silent_connection_is_asked(api: Api, pod: Pod) -> None:
    """Idle connections are kept open by pings; those that answer stay."""
    with dial(api, "lab", "a", PORT, patience=Patience(ping_s=0.01)) as here:
        for _ in range(3):
            assert pod.pinged.get(timeout=WAIT_S) == b""
            pod.send(frame(b"", 0xA))
        pod.say(b"still here")
        assert read(here, 10) == b"still here"
    pod.wait_end()


def test_a_connection_without_answers_ends(api: Api, pod: Pod) -> None:
    """An API server that is silent although it is asked is gone."""
    heard: list[str] = []
    brief = Patience(ping_s=0.01, answer_s=0.05)
    with dial(api, "lab", "a", PORT, heard=heard.append, patience=brief) as here:
        assert read_all(here) == b""
    assert "nothing was heard from the API server" in heard[0]


def test_nonsense_ends_the_connection(api: Api, pod: Pod) -> None:
    """What cannot be a message is no reason to go on."""
    heard: list[str] = []
    with dial(api, "lab", "a", PORT, heard=heard.append) as here:
        pod.send(b"\x82\x7f" + b"\xff" * 8)
        assert read_all(here) == b""
    assert "too large" in heard[0]


# Ports of this machine


def connect(tunnel: Forward) -> socket.socket:
    return socket.create_connection(("127.0.0.1", tunnel.port), WAIT_S)


def test_a_port_of_this_machine_leads_to_the_pod(fake: FakeApi, api: Api) -> None:
    """Every connection to it is one to the pod, and they do not mix."""
    pods = [Pod(), Pod()]
    with Forward(api, "lab", "a", PORT) as tunnel:
        assert tunnel.port > 0
        for pod in pods:
            fake.script(pod)
        with connect(tunnel) as one:
            assert pods[0].opened.wait(WAIT_S)
            with connect(tunnel) as two:
                one.sendall(b"first")
                two.sendall(b"second")
                assert pods[0].hear(5) == b"first"
                assert pods[1].hear(6) == b"second"
                pods[0].say(b"1")
                pods[1].say(b"2")
                assert (read(one, 1), read(two, 1)) == (b"1", b"2")
                pods[0].close()
                assert read_all(one) == b""
                pods[1].close()
                assert read_all(two) == b""
        assert tunnel.error == ""


@pytest.mark.parametrize("trouble", [Reply(404, {"message": "no such pod"}), Reply(503)])
def test_a_connection_that_fails_is_closed_and_explained(
    fake: FakeApi, api: Api, trouble: Reply
) -> None:
    """Who dials sees the connection close; why is known here."""
    fake.script(trouble)
    with Forward(api, "lab", "a", PORT) as tunnel, connect(tunnel) as here:
        assert read_all(here) == b""
        assert "no such pod" in tunnel.error or "503" in tunnel.error


def test_a_login_that_fails_closes_the_connection(api: Api) -> None:
    """Nobody waits for a login that does not come."""

    def fail() -> Login:
        raise MilkweedError("no login")

    api.config.log_in = fail
    with Forward(api, "lab", "a", PORT) as tunnel, connect(tunnel) as here:
        assert read_all(here) == b""
        assert tunnel.error == "no login"


def test_closing_ends_everything(api: Api, pod: Pod) -> None:
    """After closing nobody gets in, and who was in is out; closing twice is fine."""
    tunnel = Forward(api, "lab", "a", PORT)
    with connect(tunnel) as here:
        here.sendall(b"x")
        assert pod.hear(1) == b"x"
        tunnel.close()
        assert read_all(here) == b""
    pod.wait_end()
    tunnel.close()
    with pytest.raises(ConnectionRefusedError):
        connect(tunnel)


class Reluctant(socket.socket):
    """A listener that has no file left for the first who comes."""

    failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail once."""
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_a_connection_that_could_not_be_taken_is_taken_later(api: Api, pod: Pod) -> None:
    """A program that has too many files open for a moment is not cut off for good."""
    listener = Reluctant()
    pauses: list[float] = []
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    tunnel = Forward(api, "lab", "a", PORT, listener=listener, pause=pauses.append)
    with tunnel, connect(tunnel) as here:
        here.sendall(b"x")
        assert pod.hear(1) == b"x"
        assert "too many open files" in tunnel.error
    assert pauses[0] == forward.ACCEPT_PAUSE_S


def test_a_late_guest_is_sent_away(api: Api) -> None:
    """A connection that came in while it was closed is not served."""
    tunnel = Forward(api, "lab", "a", PORT)
    tunnel.close()
    here, there = socket.socketpair()
    tunnel._serve(there)
    assert read_all(here) == b""
    here.close()
