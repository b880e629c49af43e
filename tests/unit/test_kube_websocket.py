"""Messages over WebSockets: whole, in pieces, large, between pings, and until somebody closes."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from milkweed.errors import BackendError, UnreachableError
from milkweed.kube.api import Api, ApiError
from milkweed.kube.websocket import BINARY, CLOSE, PING, PONG, Frames, WebSocket, make_frame
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

LARGE = bytes(range(256)) * 1200
Serve = Callable[[Handler], None]


def upgraded(serve: Serve) -> Callable[[Handler, Asked], None]:
    """A step of the fake: a WebSocket that does that."""

    def step(handler: Handler, asked: Asked) -> None:
        accept_upgrade(handler, asked)
        with contextlib.suppress(OSError):
            serve(handler)

    return step


def echo(handler: Handler) -> None:
    while (got := read_frame(handler)) and got[0] != CLOSE:
        handler.wfile.write(frame(got[1], PONG if got[0] == PING else BINARY))
        handler.wfile.flush()


def saying(*data: bytes) -> Serve:
    """Say that, then close."""

    def serve(handler: Handler) -> None:
        for each in data:
            handler.wfile.write(each)
            handler.wfile.flush()

    return serve


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> bool:
    """Every test is done with TLS and without."""
    return request.param


@contextlib.contextmanager
def opened(api: Api) -> Iterator[WebSocket]:
    made = WebSocket(api, "/api/v1/x", {"ports": 7})
    try:
        yield made
    finally:
        made.close()


def say(tunnel: WebSocket, data: bytes) -> None:
    """Send a message and wait until it has gone; BrokenPipeError when it cannot."""
    tunnel.post(data)
    while tunnel.is_open and tunnel.unsent:
        tunnel.flush()
        if tunnel.unsent:
            wait(tunnel, select.POLLOUT)
    if tunnel.unsent:
        raise BrokenPipeError


def hear(tunnel: WebSocket) -> bytes | None:
    """The next message; None when the other side has closed."""
    heard = waiting.setdefault(tunnel, deque())
    while tunnel.is_open and not heard:
        wait(tunnel, select.POLLIN)
        heard += tunnel.take()
    return heard.popleft() if heard else None


waiting: weakref.WeakKeyDictionary[WebSocket, deque[bytes]] = weakref.WeakKeyDictionary()
"""Messages that came together with an earlier one."""


def wait(tunnel: WebSocket, event: int) -> None:
    """As those do who use tunnels."""
    poller = select.poll()
    poller.register(tunnel, event)
    assert poller.poll(WAIT_S * 1000), "nothing happens"


# Frames


def test_frames_are_cut_wherever_they_are_broken() -> None:
    """However the bytes arrive, the same messages come out."""
    stream = frame(b"a") + frame(b"") + frame(b"x" * 126) + frame(LARGE) + frame(b"p", PING)
    messages = [(BINARY, b"a"), (BINARY, b""), (BINARY, b"x" * 126), (BINARY, LARGE), (PING, b"p")]
    for size in (1, 2, 3, 7, 1000, len(stream)):
        frames = Frames()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [each for piece in pieces for each in frames.feed(piece)] == messages


def test_messages_in_pieces_are_put_together() -> None:
    """A message may come in several frames, with a ping between them."""
    pieces = [frame(b"one ", last=False), frame(b"ping", PING), frame(b"two ", 0, last=False)]
    pieces.append(frame(b"three", 0))
    assert list(Frames().feed(b"".join(pieces))) == [(PING, b"ping"), (BINARY, b"one two three")]


def test_a_message_without_end_is_refused() -> None:
    """Nobody can make us keep more than a message may have, in one frame or in many."""
    with pytest.raises(UnreachableError, match="too large"):
        list(Frames(1000).feed(frame(b"x" * 1001)[:20]))
    frames = Frames(1000)
    list(frames.feed(frame(b"x" * 900, last=False)))
    with pytest.raises(UnreachableError, match="too large"):
        list(frames.feed(frame(b"x" * 900, 0)))


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
def test_what_clients_send_is_masked(size: int) -> None:
    """A frame of ours has a mask, and its content is only seen with it."""
    data = (b"content " * (size // 8 + 1))[:size]
    made = make_frame(data)
    assert (made[0], made[1] & 0x80) == (0x82, 0x80)
    head = {126: 4, 127: 10}.get(made[1] & 0x7F, 2)
    mask = made[head : head + 4]
    assert bytes(b ^ mask[i % 4] for i, b in enumerate(made[head + 4 :])) == data


# Connections


def test_messages_go_both_ways(fake: FakeApi, api: Api) -> None:
    """Small, empty and large messages come back as they were."""
    fake.script(upgraded(echo))
    with opened(api) as tunnel:
        for data in (b"hello", b"", LARGE, b"x" * 126):
            say(tunnel, data)
            assert hear(tunnel) == data
    asked = fake.asked[0]
    assert (asked.path, asked.query) == ("/api/v1/x", {"ports": "7"})
    assert asked.headers["Authorization"] == "Bearer secret"
    assert asked.headers["Host"] == f"127.0.0.1:{fake.port}"
    assert asked.headers["Sec-WebSocket-Protocol"] == "v4.channel.k8s.io"


def test_pings_are_answered(fake: FakeApi, api: Api) -> None:
    """A ping gets a pong with the same content, while we wait for a message."""
    answers: list[tuple[int, bytes] | None] = []

    def serve(handler: Handler) -> None:
        saying(frame(b"are you there", PING))(handler)
        answers.append(read_frame(handler))
        saying(frame(b"done"))(handler)

    fake.script(upgraded(serve))
    with opened(api) as tunnel:
        assert hear(tunnel) == b"done"
    assert answers == [(PONG, b"are you there")]


def test_what_comes_with_the_head_is_not_lost(fake: FakeApi, api: Api) -> None:
    """Messages may follow the first answer in the same breath."""

    def step(handler: Handler, asked: Asked) -> None:
        sent = handler.wfile
        with contextlib.closing(handler.request.makefile("wb", 65536)) as held:
            handler.wfile = held
            accept = handler.wfile.flush
            handler.wfile.flush = lambda: None  # type: ignore[method-assign]
            accept_upgrade(handler, asked)
            handler.wfile.write(frame(b"early") + frame(b"bird"))
            accept()
        handler.wfile = sent

    fake.script(step)
    with opened(api) as tunnel:
        assert [hear(tunnel), hear(tunnel), hear(tunnel)] == [b"early", b"bird", None]


@pytest.mark.parametrize("last", [frame(b"", CLOSE), b"", frame(b"half")[:3]])
def test_the_end_is_none(fake: FakeApi, api: Api, last: bytes) -> None:
    """After the other side has closed, with a word or without, there is no message."""
    fake.script(upgraded(saying(frame(b"first"), last)))
    with opened(api) as tunnel:
        assert [hear(tunnel), hear(tunnel), tunnel.is_open] == [b"first", None, False]
        with contextlib.suppress(BrokenPipeError):
            say(tunnel, b"x")
        with pytest.raises(BrokenPipeError):
            say(tunnel, LARGE)


def test_a_slow_reader_is_waited_for(fake: FakeApi, api: Api) -> None:
    """Much more than fits in between goes through, when the other side reads at last."""
    total, go = 0, threading.Event()

    def serve(handler: Handler) -> None:
        nonlocal total
        go.wait(WAIT_S)
        while (got := read_frame(handler)) and got[1]:
            total += len(got[1])
        saying(frame(b"thanks"))(handler)

    fake.script(upgraded(serve))
    with opened(api) as tunnel:
        for _ in range(30):
            tunnel.post(LARGE)
        tunnel.flush()
        assert tunnel.unsent > 0
        go.set()
        say(tunnel, b"")
        assert hear(tunnel) == b"thanks"
    assert total == 30 * len(LARGE)


def test_a_refusal_has_the_words_of_the_api_server(fake: FakeApi, api: Api) -> None:
    """A pod that is not there is a refusal like any other."""
    fake.script(Reply(404, {"message": 'pods "a" not found', "reason": "NotFound"}))
    with pytest.raises(ApiError, match='pods "a" not found') as caught:
        WebSocket(api, "/x", {})
    assert (caught.value.missing, caught.value.reason) == (True, "NotFound")
    fake.script(Reply(503, {}))
    with pytest.raises(UnreachableError, match="503"):
        WebSocket(api, "/x", {})


def raw(answer: bytes) -> Callable[[Handler, Asked], None]:
    def step(handler: Handler, _asked: Asked) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    return step


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 101 Switch", "closed"),
        (b"hello\r\n\r\n", "hello"),
        (b"x" * 70_000, "head"),
        (b"HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: x\r\n\r\n", "no WebSocket"),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 9\r\n\r\nhal", "closed"),
        (b"HTTP/1.1 400 Bad\r\n\r\n", "refuses it .400."),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: many\r\n\r\n", "refuses it .400."),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 99999999\r\n\r\n" + b"no" * 40_000, "nono"),
    ],
)
def test_a_strange_answer_is_explained(fake: FakeApi, api: Api, answer: bytes, error: str) -> None:
    """What is no WebSocket is an error, and the connection is closed."""
    fake.script(raw(answer))
    with pytest.raises(BackendError, match=error):
        WebSocket(api, "/x", {})
    fake.wait_closed(1)


def test_nobody_there_is_unreachable() -> None:
    """Without a server there is no connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with FakeApi() as fake:
        api = fake.api(server=f"http://127.0.0.1:{port}")
    with pytest.raises(UnreachableError, match="does not answer"):
        WebSocket(api, "/x", {})
