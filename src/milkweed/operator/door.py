"""The HTTPS server before the provisioner: small, patient with nobody, and every request is written down."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..errors import AccessError, MilkweedError
from .asked import LARGEST, Answer, Request
from .lease import render_time, utc_now
from .provision import Provisioner

IDLE_S = 10.0
"""How long a caller may say nothing."""
LONGEST_S = 120.0
"""How long a caller may stay, however busy."""
CALLERS = 32
"""How many are spoken to at the same time; others are sent away."""


class Certificate:
    """A certificate and its key, read again when their files change."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._paths = cert, key
        self._seen: list[int] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._lock = threading.Lock()

    def get(self) -> ssl.SSLContext:
        """What is shown to the next caller."""
        with self._lock:
            try:
                seen = [path.stat().st_mtime_ns for path in self._paths]
                if seen != self._seen:
                    self._context.load_cert_chain(*self._paths)
                    self._seen = seen
            except OSError as error:
                raise AccessError(
                    "the endpoint's certificate cannot be used",
                    seen=f"{error}: {' and '.join(map(str, self._paths))}",
                ) from error
            return self._context


class Door(ThreadingHTTPServer):
    """Lets callers in one by one, each in a thread of its own."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        provisioner: Provisioner,
        certificate: Certificate,
        *,
        log: Callable[[str], None] = lambda _line: None,
        wall: Callable[[], dt.datetime] = utc_now,
        longest_s: float = LONGEST_S,
        callers: int = CALLERS,
    ) -> None:
        self.provisioner = provisioner
        self._longest_s = longest_s
        self._certificate = certificate
        self._log = log
        self._wall = wall
        self._room = threading.BoundedSemaphore(callers)
        certificate.get()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin with a caller, or send them away where too many are here."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """All of one caller's connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands here and not where callers are waited for: one who is slow holds up nobody else."""
        request.settimeout(IDLE_S)
        context = self._certificate.get()
        # The time of a caller counts from here on: one who shakes hands byte by byte takes a place as well.
        with context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as secured:
            limit = threading.Timer(self._longest_s, _break_off, (secured,))
            limit.daemon = True
            limit.start()
            try:
                secured.do_handshake()
                super().finish_request(secured, client_address)
            finally:
                limit.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the library calls it so
        """Callers who break off, or do not trust us, are their own affair; a mistake of ours is told."""
        error = sys.exception()
        if not isinstance(error, OSError):
            self._log(f"a request from {client_address[0]} failed: {_describe(error)}")

    def write_down(self, answer: Answer, address: str) -> None:
        """One line for each request, with no secret in it."""
        now = render_time(self._wall())
        self._log(json.dumps({"time": now, "from": address, **answer.audit}))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "milkweed"
    sys_version = ""
    timeout = IDLE_S
    server: Door  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        if self.path in {"/healthz", "/readyz"}:
            ready = self.path == "/healthz" or self.server.provisioner.is_ready()
            self._send(200 if ready else 503, {"ok": ready})
        else:
            self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        length = self.headers.get("Content-Length", "0")
        chunked = "Transfer-Encoding" in self.headers
        if chunked or not length.isdecimal() or int(length) > LARGEST:
            document = {"error": f"a request has a Content-Length of at most {LARGEST} bytes"}
            answer = Answer(413, document, {"verb": self.command, "status": 413})
            self.close_connection = True
        else:
            body = self.rfile.read(int(length))
            request = Request(self.command, self.path, self._token(), body)
            answer = self.server.provisioner.answer(request)
        self.server.write_down(answer, str(self.client_address[0]))
        self._send(answer.status, answer.document)

    def _token(self) -> str:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else ""

    def _send(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the library
        """Requests are written down elsewhere, with what came of them."""


def _break_off(secured: socket.socket) -> None:
    """End a connection under its reader, who is woken by that."""
    with contextlib.suppress(OSError):
        # Not that of the TLS object, which its reader is using.
        socket.socket.shutdown(secured, socket.SHUT_RDWR)


def _describe(error: BaseException | None) -> str:
    """What a person can mend, in words; of a mistake of ours its place, and nothing that was said."""
    if isinstance(error, MilkweedError):
        return str(error)
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{place}"
