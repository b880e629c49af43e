"""Requests to the API server: connections that are kept, errors in words, watches that end cleanly.

A request is repeated in three cases only.

- The connection that was kept for it turns out to be closed. If it could not be sent whole, nobody has carried it
  out. If it was sent and not a byte came back, it may have been: then everything but POST is sent once more, since
  doing it twice gives the same. For a POST it is UnreachableError: nobody knows whether the object was made, and a
  second one would say «there is one already» of our own. (`apply` makes objects too, and may be repeated.)
- The answer is 401, and there is a new login.
- The answer is 429, which says that nothing was done: after the pause that the API server asks for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import AccessError, MilkweedError, UnreachableError
from .answers import ApiError, make_error
from .config import Config, Login
from .connect import Connection, make_context
from .resources import Resource

__all__ = ["Api", "ApiError", "Stream"]

TIMEOUT_S = 30.0
"""How long the API server may be silent before it has not answered."""
SILENCE_S = 90.0
"""The same for a watch: a healthy one says something every minute."""
MANAGER = "milkweed"
"""Who says what an object should be, for server-side apply."""
MAX_IDLE = 8
CHUNK_BYTES = 64 * 1024
BUSY_TRIES = 4
BUSY_PAUSE_S = 5.0
Object = Mapping[str, Any]
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
_BROKEN = (OSError, http.client.HTTPException)


class _Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str] = {}
    data: bytes | None = None
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class _Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: str = ""

    @property
    def pause_s(self) -> float:
        """How long it asks us to wait."""
        seconds = float(self.retry_after) if self.retry_after.isdecimal() else 1.0
        return min(seconds, BUSY_PAUSE_S)


class Api:
    """One API server, asked by anybody in this program, also by several threads at once."""

    def __init__(self, config: Config, *, pause: Callable[[float], object] = time.sleep) -> None:
        self.config = config
        self.requests = 0
        """How many requests were made, for those who care."""
        self._pause = pause
        self._prefix = urllib.parse.urlsplit(config.cluster.server).path
        self._idle: list[Connection] = []
        self._tls: tuple[Login, ssl.SSLContext | None] | None = None
        self._lock = threading.Lock()

    # One request

    def get(self, resource: Resource, namespace: str = "", name: str = "", **query: str) -> Any:
        """One object, or a list of all."""
        return self._ask(_Request("GET", resource.path(namespace, name), query))

    def create(self, resource: Resource, namespace: str, body: Object, **query: str) -> Any:
        """Make a new object."""
        path = resource.path(namespace)
        return self._ask(_Request("POST", path, query, _json(body), "application/json"))

    def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Any:
        """Put an object in the place of the one that was read."""
        path = resource.path(namespace, name)
        return self._ask(_Request("PUT", path, {}, _json(body), "application/json"))

    def patch(
        self, resource: Resource, namespace: str, name: str, body: Object, *, sub: str = ""
    ) -> Any:
        """Change some fields of an object."""
        path = resource.path(namespace, name, sub)
        return self._ask(_Request("PATCH", path, {}, _json(body), _PATCH_TYPES["merge"]))

    def apply(
        self, resource: Resource, namespace: str, body: Object, *, force: bool = True, **query: str
    ) -> Any:
        """Say what an object should be; it is made, or changed to that."""
        path = resource.path(namespace, str(body["metadata"]["name"]))
        query = {"fieldManager": MANAGER, "force": str(force).lower(), **query}
        return self._ask(_Request("PATCH", path, query, _json(body), _PATCH_TYPES["apply"]))

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        policy: str = "Background",
        uid: str = "",
    ) -> bool:
        """Delete an object, where there is a uid that very one; False when it is not there any more."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options |= {"propagationPolicy": policy} | ({"preconditions": {"uid": uid}} if uid else {})
        path = resource.path(namespace, name)
        try:
            self._ask(_Request("DELETE", path, {}, _json(options), "application/json"))
        except ApiError as error:
            if error.missing:
                return False
            raise
        return True

    def read(self, path: str, **query: str) -> bytes:
        """Something that is not JSON, such as a log."""
        return self._answer(_Request("GET", path, query))

    def _ask(self, request: _Request) -> Any:
        body = self._answer(request)
        try:
            return json.loads(body) if body else {}
        except ValueError as error:
            raise UnreachableError(
                f"what answers at {self.config.cluster.server} is no API server",
                seen=body[:200].decode(errors="replace"),
            ) from error

    def _answer(self, request: _Request) -> bytes:
        """What the API server says to a request; asked again as long as it says to come later."""
        answer = self._send_as_known(request)
        for _ in range(BUSY_TRIES):
            if answer.status != 429:
                break
            self._pause(answer.pause_s)
            answer = self._send_as_known(request)
        if answer.status >= 300:
            raise make_error(answer.status, answer.body, str(request))
        return answer.body

    def _send_as_known(self, request: _Request) -> _Answer:
        """Send a request; once more when the login was not known any more, and there is a new one."""
        login = self.config.log_in()
        answer = self._send(request, login)
        if answer.status == 401 and (renewed := self.log_in_again()) != login:
            answer = self._send(request, renewed)
        return answer

    def _send(self, request: _Request, login: Login) -> _Answer:
        """Send a request; once more when the connection that was kept turns out to be closed."""
        if connection := self._take(login):
            with contextlib.suppress(_Repeat):
                return self._exchange(connection, request, kept=True)
        return self._exchange(self._connect(login, TIMEOUT_S), request, kept=False)

    def _exchange(self, connection: Connection, request: _Request, *, kept: bool) -> _Answer:
        sent = False
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            try:
                self._put(connection, request)
                sent = True
                response = connection.getresponse()
                retry_after = response.getheader("Retry-After") or ""
                answer = _Answer(response.status, response.read(), retry_after)
            except _BROKEN as error:
                if kept and isinstance(error, _STALE) and not (sent and request.method == "POST"):
                    raise _Repeat from error
                raise self._unreachable(error, request if sent else None) from error
            undo.pop_all()
        self._give_back(connection)
        return answer

    def _put(self, connection: Connection, request: _Request) -> None:
        self.requests += 1
        target, headers = self._head(request.path, request.query, connection.login)
        if request.data is not None:
            headers["Content-Type"] = request.kind
        connection.request(request.method, target, request.data, headers)

    def _head(
        self, path: str, query: Mapping[str, Any], login: Login
    ) -> tuple[str, dict[str, str]]:
        target = self._prefix + path
        if query:
            target += "?" + urllib.parse.urlencode(query, doseq=True)
        headers = {"Accept": "application/json, */*", "User-Agent": MANAGER}
        if login.token:
            headers["Authorization"] = f"Bearer {login.token}"
        return target, headers

    # Connections

    def _take(self, login: Login) -> Connection | None:
        """A connection that was kept and is still good."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_usable(login):
                    connection.login = login
                    return connection
                connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            keep = connection.sock is not None and len(self._idle) < MAX_IDLE
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def _connect(self, login: Login, timeout_s: float) -> Connection:
        """A new connection, which is made already: whoever asks may be told why not."""
        with self._lock:
            if self._tls is None or self._tls[0] != login:
                self._tls = (login, make_context(self.config.cluster, login))
            context = self._tls[1]
        connection = Connection(self.config.cluster, login, context, timeout_s=timeout_s)
        try:
            connection.connect()
        except _BROKEN as error:
            connection.close()
            raise self._unreachable(error) from error
        return connection

    def open_socket(self, timeout_s: float) -> socket.socket:
        """A connection of its own, for what is no request and answer."""
        return self._connect(self.config.log_in(), timeout_s).sock

    def request_head(self, path: str, query: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """The target and the headers of a request that is written by hand."""
        target, headers = self._head(path, query, self.config.log_in())
        return target, {"Host": urllib.parse.urlsplit(self.config.cluster.server).netloc, **headers}

    def log_in_again(self) -> Login:
        """Forget the login that was not taken, and get another one where there is one."""
        self.config.forget()
        self.close()
        return self.config.log_in()

    def close(self) -> None:
        """Let all kept connections go; those in use go on, and the next request opens a new one."""
        with self._lock:
            idle, self._idle, self._tls = self._idle, [], None
        for connection in idle:
            connection.close()

    def _unreachable(self, error: Exception, request: _Request | None = None) -> MilkweedError:
        """Why there is no answer; a change that was sent whole may have been made."""
        server = self.config.cluster.server
        if isinstance(error, ssl.SSLCertVerificationError):
            return AccessError(
                f"the API server at {server} shows a certificate that is not trusted",
                seen=error.verify_message,
                hint="its authority must be in the kubeconfig",
            )
        seen = str(error) or type(error).__name__
        if request and request.method != "GET":
            seen += f"\nwhether it carried out {request} is not known"
        return UnreachableError(f"the API server at {server} does not answer", seen=seen)

    # Watching

    @contextlib.contextmanager
    def watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str], *, timeout_s: float
    ) -> Generator[Stream]:
        """Events as they come; the server ends the stream after about the time that was asked for."""
        asked = {**query, "watch": "true", "timeoutSeconds": str(int(timeout_s))}
        with self._stream(_Request("GET", resource.path(namespace), asked), "WATCH") as stream:
            yield stream

    @contextlib.contextmanager
    def follow(self, path: str, **query: str) -> Generator[Stream]:
        """Something that is not JSON and grows, such as a log; `Stream.lines` has it."""
        with self._stream(_Request("GET", path, query), "GET") as stream:
            yield stream

    @contextlib.contextmanager
    def _stream(self, request: _Request, verb: str) -> Generator[Stream]:
        login = self.config.log_in()
        stream = self._open_stream(request, login)
        if stream.status == 401 and (renewed := self.log_in_again()) != login:
            stream.close()
            stream = self._open_stream(request, renewed)
        try:
            if stream.status >= 300:
                raise make_error(stream.status, stream.read(), f"{verb} {request.path}")
            yield stream
        finally:
            stream.close()

    def _open_stream(self, request: _Request, login: Login) -> Stream:
        connection = self._connect(login, SILENCE_S)
        try:
            self._put(connection, request)
            return Stream(connection, self._unreachable)
        except _BROKEN as error:
            connection.close()
            raise self._unreachable(error) from error


class _Repeat(Exception):  # noqa: N818  no error: the same again, please
    """The kept connection was closed, and the request may be sent once more."""


class Stream:
    """The events of one watch as they come. It may be ended from another thread."""

    def __init__(
        self, connection: Connection, explain: Callable[[Exception], MilkweedError]
    ) -> None:
        self._connection = connection
        self._explain = explain
        self._socket = connection.sock  # the connection forgets it where an answer is its last
        self._response = connection.getresponse()
        self.status = self._response.status

    def __iter__(self) -> Iterator[Any]:
        """Every event; the end is the server's, UnreachableError when the connection broke."""
        while line := self._guard(self._response.readline):
            try:
                event = json.loads(line)
            except ValueError as error:
                raise self._explain(error) from error
            yield event

    def lines(self) -> Iterator[bytes]:
        """Every line as it is, where it is no watch; the last may have no end. A broken end is an error."""
        rest = b""
        while data := self._guard(lambda: self._response.read1(CHUNK_BYTES)):
            *whole, rest = (rest + data).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if self._response.length:
            raise self._explain(http.client.IncompleteRead(rest, self._response.length))
        if rest:
            yield rest

    def read(self) -> bytes:
        """All of it, where it is an answer and no stream."""
        return self._guard(self._response.read)

    def _guard(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except _BROKEN as error:
            raise self._explain(error) from error

    def end(self) -> None:
        """Wake whoever reads here: there is nothing more to come."""
        with contextlib.suppress(OSError):
            # Not that of the TLS object, which its reader is using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let it go."""
        self._response.close()
        self._connection.close()


def _json(body: Object) -> bytes:
    return json.dumps(body).encode()
