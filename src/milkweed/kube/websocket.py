"""As much of RFC 6455 as the API server needs: binary messages, both ways, for one thread at a time."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterator
from email.message import Message
from typing import Any

from ..errors import BackendError, UnreachableError
from .answers import make_error
from .api import Api

CONNECT_S = 15.0
BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_PROTOCOL = "v4.channel.k8s.io"
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CHUNK_BYTES = 256 * 1024
_MAX_REFUSAL_BYTES = 64 * 1024
_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class Frames:
    """Cuts what comes in into messages, and puts those together that came in pieces."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._message = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take more bytes; gives the messages that are whole now, each with its kind."""
        self._data += data
        while (frame := self._cut()) is not None:
            first, content = frame
            kind, last = first & 0x0F, first & 0x80
            if kind >= CLOSE:  # these are never in pieces, and may stand between pieces
                yield kind, content
                continue
            self._message += content
            self._check_size(len(self._message))
            if last:
                message, self._message = bytes(self._message), bytearray()
                yield BINARY, message

    def _cut(self) -> tuple[int, bytes] | None:
        """The next frame, where all of it is there."""
        data = self._data
        if len(data) < 2:
            return None
        start, size = 2, data[1] & 0x7F
        if size >= 126:
            form = "!H" if size == 126 else "!Q"
            start += struct.calcsize(form)
            if len(data) < start:
                return None
            size = struct.unpack_from(form, data, 2)[0]
            self._check_size(size)
        if len(data) < start + size:
            return None
        frame = data[0], bytes(memoryview(data)[start : start + size])
        del data[: start + size]
        return frame

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise UnreachableError(
                "the API server sends a message that is too large", seen=f"{size} bytes"
            )


def _length_of(answer: Message) -> int:
    """How long a refusal is; no more is read of one than a person would."""
    said = str(answer["Content-Length"] or "")
    return min(int(said), _MAX_REFUSAL_BYTES) if said.isdecimal() else 0


def make_frame(data: bytes, kind: int = BINARY) -> bytes:
    """One message, masked as clients must."""
    mask, size = os.urandom(4), len(data)
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
    return head + mask + _mask(data, mask)


def _mask(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    whole = int.from_bytes((mask * (size // 4 + 1))[:size])
    return (int.from_bytes(data) ^ whole).to_bytes(size)


class WebSocket:
    """A connection through the API server to something in the cluster.

    Nothing waits here but the handshake: whoever uses it waits for several things at once.
    """

    def __init__(self, api: Api, path: str, query: dict[str, Any]) -> None:
        self._socket = api.open_socket(CONNECT_S)
        self._frames = Frames()
        self._messages: deque[bytes] = deque()
        self._unsent = bytearray()
        self.is_open = True
        self.received = 0
        """How many bytes have come so far."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            try:
                self._shake_hands(api, path, query)
            except (OSError, http.client.HTTPException) as error:
                raise UnreachableError(
                    "the API server opens no connection to the pod", seen=str(error)
                ) from error
            undo.pop_all()
        self._socket.settimeout(0)

    def _shake_hands(self, api: Api, path: str, query: dict[str, Any]) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        target, headers = api.request_head(path, query)
        headers |= {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Protocol": _PROTOCOL,
        }
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {word}" for name, word in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        status, answer = self._read_head()
        if status != 101:
            raise make_error(status, self._read(_length_of(answer)), f"WEBSOCKET {path}")
        wanted = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()  # noqa: S324  the protocol's
        if answer["Sec-WebSocket-Accept"] != wanted:
            raise BackendError(
                "the API server's answer is no WebSocket",
                seen=f"Sec-WebSocket-Accept: {answer['Sec-WebSocket-Accept']}",
                hint="a proxy on the way may not let WebSockets through",
            )

    def _read_head(self) -> tuple[int, Message]:
        """The answer up to its empty line, byte by byte: what follows belongs to the messages."""
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            head += self._read(1)
            if len(head) > 65536:
                raise http.client.LineTooLong("head")
        first, _, fields = head.partition(b"\r\n")
        words = first.split(maxsplit=2)
        if len(words) < 2 or not words[1].isdigit():
            raise http.client.BadStatusLine(first.decode(errors="replace"))
        return int(words[1]), http.client.parse_headers(io.BytesIO(fields))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            got = self._socket.recv(size - len(data))
            if not got:
                raise ConnectionResetError("the connection was closed")
            data += got
        return bytes(data)

    def fileno(self) -> int:
        """For those who wait."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """How many bytes were posted and have not gone yet."""
        return len(self._unsent)

    def post(self, data: bytes, kind: int = BINARY) -> None:
        """Put a message into the queue."""
        self._unsent += make_frame(data, kind)

    def flush(self) -> None:
        """Send as much of the queue as goes now."""
        try:
            while self._unsent:
                with memoryview(self._unsent) as view:
                    sent = self._socket.send(view[:_CHUNK_BYTES])
                del self._unsent[:sent]
        except _LATER:
            pass
        except OSError:
            self.is_open = False

    def take(self) -> list[bytes]:
        """The messages that have come by now; pings are answered."""
        self._fetch()
        taken, self._messages = list(self._messages), deque()
        return taken

    def _fetch(self) -> None:
        try:
            # More than TLS puts into one record: it keeps nothing back that nobody who waits would see.
            data = self._socket.recv(_CHUNK_BYTES)
        except _LATER:
            return
        except OSError:
            data = b""
        self.received += len(data)
        if not data:
            self.is_open = False
        for kind, content in self._frames.feed(data):
            if kind == CLOSE:
                self.is_open = False
            elif kind == PING:
                self.post(content, PONG)
                self.flush()
            elif kind == BINARY:
                self._messages.append(content)

    def close(self) -> None:
        """Let it go."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
