"""An API server on loopback that does what a test says: real HTTP, real TLS, real WebSockets, no Kubernetes."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import queue
import socket
import ssl
import struct
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from milkweed import pki
from milkweed.kube.api import Api
from milkweed.kube.config import Cluster, Config, Login

WAIT_S = 20.0
AUTHORITY = pki.make_authority("cluster")
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Asked(NamedTuple):
    """One request, as the server got it."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        """What was sent."""
        return json.loads(self.body)


class Reply(NamedTuple):
    """An answer; `hang_up` closes the connection after it, without saying so."""

    status: int = 200
    body: Any = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})
    hang_up: bool = False


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    number: int

    def setup(self) -> None:
        """Count it, and shake hands."""
        fake = self.server.fake
        self.number = fake.admit(self.request)
        if fake.tls:
            self.request = fake.tls.wrap_socket(self.request, server_side=True)
            fake.admit(self.request)
        super().setup()

    def finish(self) -> None:
        """Tell that it is closed."""
        super().finish()
        self.request.close()
        self.server.fake.note_closed()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(self.command, url.path, query, self.headers, body, self.number)
        step = self.server.fake.hear(asked)
        if isinstance(step, Reply):
            self.reply(step)
        else:
            step(self, asked)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  the base class's names

    def reply(self, reply: Reply) -> None:
        """Answer."""
        body = (
            reply.body
            if isinstance(reply.body, bytes)
            else json.dumps(reply.body, default=dict).encode()
        )
        self.send_response(reply.status)
        for name, word in {"Content-Length": str(len(body)), **reply.headers}.items():
            self.send_header(name, word)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.close_connection or reply.hang_up


Step = Reply | Callable[[Handler, Asked], None]


def drop(handler: Handler, _asked: Asked) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    """Knows its fake, and keeps quiet about clients that leave."""

    daemon_threads = True
    request_queue_size = 64
    fake: FakeApi

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no error."""


class FakeApi:
    """Answers as it was told, in that order, then with `{}`; remembers what it was asked."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.asked: list[Asked] = []
        self.closed = 0
        self.connections = 0
        self._steps: deque[Step] = deque()
        self._sockets: list[socket.socket] = []
        self._changed = threading.Condition()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.fake = self
        self.port: int = self._server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)
        self.cut()

    def script(self, *steps: Step) -> None:
        """Say how it will answer."""
        self._steps.extend(steps)

    def cut(self) -> None:
        """Break every connection."""
        for each in list(self._sockets):  # and none that is opened meanwhile
            try:
                socket.socket.shutdown(each, socket.SHUT_RDWR)
            except OSError:
                continue

    def admit(self, connected: socket.socket) -> int:
        """Count a connection; TLS makes a second socket of the same one."""
        with self._changed:
            self.connections += not isinstance(connected, ssl.SSLSocket)
            self._sockets.append(connected)
            return self.connections

    def note_closed(self) -> None:
        """One connection less."""
        with self._changed:
            self.closed += 1
            self._changed.notify_all()

    def hear(self, asked: Asked) -> Step:
        """Remember a request; what to answer."""
        with self._changed:
            self.asked.append(asked)
            self._changed.notify_all()
            return self._steps.popleft() if self._steps else Reply()

    def wait_asked(self, count: int) -> None:
        """Wait until so many requests were made."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, WAIT_S)

    def wait_closed(self, count: int) -> None:
        """Wait until so many connections are closed."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.closed >= count, WAIT_S)

    def config(self, login: Login | None = None, **cluster: Any) -> Config:
        """How to reach it."""
        if self.tls:
            cluster = {"ca_pem": AUTHORITY.cert_pem.decode(), **cluster}
        made = Cluster(**{"server": self.url, **cluster})
        shown = login or Login(token="secret")  # noqa: S106  of a test
        return Config(cluster=made, namespace="lab", context="here", log_in=lambda: shown)

    def api(self, **cluster: Any) -> Api:
        """A client of it, which never pauses."""
        return Api(self.config(**cluster), pause=lambda _seconds: None)


class Feed:
    """One stream of a watch, driven by the test."""

    def __init__(self, *events: Mapping[str, Any]) -> None:
        self._queue: queue.Queue[Mapping[str, Any] | bytes | None] = queue.Queue()
        self.opened = threading.Event()
        for event in events:
            self.send(event)

    def send(self, event: Mapping[str, Any]) -> None:
        """One event."""
        self._queue.put(event)

    def send_bytes(self, data: bytes) -> None:
        """Something else."""
        self._queue.put(data)

    def end(self) -> None:
        """As the API server ends a stream whose time is over."""
        self._queue.put(None)

    def __call__(self, handler: Handler, _asked: Asked) -> None:
        """Serve it."""
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        self.opened.set()
        while (item := self._queue.get(timeout=WAIT_S)) is not None:
            data = item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n"
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")


def pod(name: str, version: int, **more: Any) -> dict[str, Any]:
    """An object, as it is in lists and events."""
    return {"metadata": {"name": name, "namespace": "lab", "resourceVersion": str(version)}, **more}


def event(kind: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """One word of a watch."""
    return {"type": kind, "object": found}


def listed(version: int, *pods: dict[str, Any], more: str = "") -> Reply:
    """A list, or a page of one."""
    meta = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return Reply(200, {"metadata": meta, "items": pods})


class Gate:
    """A pause that ends when the test says so, and remembers how long it should have been."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._free = threading.Semaphore(0)
        self._reached = threading.Semaphore(0)

    def __call__(self, seconds: float) -> None:
        """Pause."""
        self.pauses.append(seconds)
        self._reached.release()
        assert self._free.acquire(timeout=WAIT_S)

    def wait_reached(self) -> None:
        """Wait until somebody pauses."""
        assert self._reached.acquire(timeout=WAIT_S)

    def open(self, times: int = 1) -> None:
        """Let whoever pauses go on."""
        self._free.release(times)


def accept_upgrade(handler: Handler, asked: Asked) -> None:
    """Become a WebSocket."""
    key = asked.headers["Sec-WebSocket-Key"]
    word = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()  # noqa: S324
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", word)
    handler.send_header("Sec-WebSocket-Protocol", asked.headers["Sec-WebSocket-Protocol"])
    handler.end_headers()
    handler.wfile.flush()
    handler.close_connection = True


def frame(data: bytes, kind: int = 2, *, last: bool = True) -> bytes:
    """A frame as servers send them."""
    first = kind | (0x80 if last else 0)
    if len(data) < 126:
        return struct.pack("!BB", first, len(data)) + data
    if len(data) < 65536:
        return struct.pack("!BBH", first, 126, len(data)) + data
    return struct.pack("!BBQ", first, 127, len(data)) + data


def read_frame(handler: Handler) -> tuple[int, bytes] | None:
    """The next frame of a client, whose mask is taken off; None at the end."""
    head = handler.rfile.read(2)
    if len(head) < 2:
        return None
    size = head[1] & 0x7F
    assert head[1] & 0x80, "clients mask"
    if size >= 126:
        form = "!H" if size == 126 else "!Q"
        size = struct.unpack(form, handler.rfile.read(struct.calcsize(form)))[0]
    mask, data = handler.rfile.read(4), handler.rfile.read(size)
    if len(data) < size:
        return None
    whole = int.from_bytes((mask * (size // 4 + 1))[:size])
    return head[0] & 0x0F, (int.from_bytes(data) ^ whole).to_bytes(size)


def make_tls(folder: Path, *names: str, signer: pki.Authority = AUTHORITY) -> ssl.SSLContext:
    """How a server of these names speaks TLS; clients may show a certificate."""
    leaf = signer.issue(names or ("127.0.0.1",))
    folder.mkdir(exist_ok=True)
    pair, trusted = folder / "server.pem", folder / "ca.pem"
    pair.write_bytes(leaf.cert_pem + leaf.key_pem)
    trusted.write_bytes(AUTHORITY.cert_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    context.load_verify_locations(trusted)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
