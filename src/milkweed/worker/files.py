"""Receiving files: what is here already is not sent again, and nothing is written outside of its folder.

Runs in a child of the keeper. The client first tells what there should be, and hears what is lacking; then it
sends that, in pieces. A file is written beside its place and moved there when it is whole. In a mirror, what an
earlier mirror brought and is gone now is removed; what programs wrote there stays.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

from . import leaving, wire

_PIECE_BYTES = 1 << 20


class Entry(NamedTuple):
    """One thing that should be there; `content` is a file's SHA-256, or where a link leads."""

    path: str
    kind: str
    """`file`, `folder` or `link`."""
    mode: int = 0o644
    size: int = 0
    content: str = ""


def receive(fd: int, begin: Mapping[str, Any], run: Path) -> int:
    """Take messages of a client until all is there; SystemExit says what kept it from that."""
    signal.signal(signal.SIGTERM, _end_early)
    pipe = socket.socket(fileno=fd)
    with pipe, pipe.makefile("rb") as lines, Receiver(begin, run) as receiver:
        for line in lines:
            message = wire.decode(line)
            pipe.sendall(wire.encode(receiver.take(message)))
            if message["do"] == "end":
                return 0
    raise SystemExit("the client went before all files were there")


def _end_early(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def check_path(path: str) -> str:
    """Refuse what is not a plain path below a folder."""
    if "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        refuse(f"{path!r} is not a path below a folder")
    return path


def refuse(what: str) -> NoReturn:
    """End this child with words for the client."""
    raise SystemExit(f"refused: {what}")


class Receiver:
    """One folder and what should be in it."""

    def __init__(self, begin: Mapping[str, Any], run: Path) -> None:
        dest = str(begin["dest"])
        self._renamed: dict[str, str] = {}
        if begin.get("single"):
            dest = self._place_single(dest, str(begin["single"]))
        try:
            os.makedirs(dest, exist_ok=True)
        except OSError as error:
            _fail(dest, error)
        self._root = os.path.realpath(dest)
        self._wanted: dict[str, Entry] = {}
        self._lacking: set[str] = set()
        self._file: _Incoming | None = None
        self._prepared = False
        self._mirror = bool(begin.get("mirror"))
        name = _sha256(self._root.encode(errors="surrogateescape")).hexdigest()[:16]
        self._memory = run / f"mirror-{name}.json"
        self._before: dict[str, str] = _load(self._memory) if self._mirror else {}

    def _place_single(self, dest: str, name: str) -> str:
        """A single file comes into a folder that is there or that a slash names; else it gets a new name."""
        if dest.endswith("/") or os.path.isdir(dest):
            return dest
        folder, own = os.path.split(dest)
        self._renamed[name] = own
        return folder or "."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._file:
            self._file.drop()

    def take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a message says; the answer."""
        try:
            return self._take(message)
        except OSError as error:
            _fail(str(message.get("path") or error.filename), error)

    def _take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["do"] == "entries":
            return {"lacks": self._look(message["entries"])}
        if not self._prepared:
            self._prepared = True
            self._prepare()
        if message["do"] == "piece":
            self._write(message)
            return {"got": True}
        return self._finish()

    # What is there, and what is not

    def _look(self, entries: Sequence[Sequence[Any]]) -> list[int]:
        lacks: list[int] = []
        for number, fields in enumerate(entries):
            entry = Entry(*fields)
            check_path(entry.path)
            if entry.kind not in {"file", "folder", "link"}:
                refuse(f"{entry.path!r} is of kind {entry.kind!r}, which is not known here")
            self._wanted[entry.path] = entry
            if entry.kind == "file" and not self._has(entry):
                self._lacking.add(entry.path)
                lacks.append(number)
        return lacks

    def _has(self, entry: Entry) -> bool:
        path = os.path.join(self._root, self._renamed.get(entry.path, entry.path))
        try:
            seen = os.lstat(path)
            if not stat.S_ISREG(seen.st_mode) or seen.st_size != entry.size:
                return False
            if not self._is_inside(os.path.dirname(path)) or _hash(path) != entry.content:
                return False
            if stat.S_IMODE(seen.st_mode) != entry.mode & 0o777:
                os.chmod(path, entry.mode & 0o777)
        except OSError:
            return False
        return True

    def _is_inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return os.path.commonpath([self._root, real]) == self._root

    def _place(self, path: str) -> str:
        """Where an entry goes; the folder around it is there then, and inside."""
        above, _, name = self._renamed.get(path, path).rpartition("/")
        folder = os.path.join(self._root, above) if above else self._root
        if not self._is_inside(folder):
            refuse(f"{path!r} leads out of {self._root} through a link")
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, name)

    # Making it so

    def _prepare(self) -> None:
        gone = [path for path, kind in self._before.items() if not self._still(path, kind)]
        for path in sorted(gone, key=lambda path: path.count("/"), reverse=True):
            self._remove(check_path(path), self._before[path])
        for entry in self._wanted.values():
            if entry.kind == "folder":
                self._make_folder(entry.path)

    def _still(self, path: str, kind: str) -> bool:
        entry = self._wanted.get(path)
        return entry is not None and entry.kind == kind

    def _remove(self, path: str, kind: str) -> None:
        at = os.path.join(self._root, path)
        if not self._is_inside(os.path.dirname(at)):
            return
        with contextlib.suppress(OSError):  # somebody else was faster, or keeps things there
            if kind != "folder":
                os.unlink(at)
            elif not os.path.islink(at):
                shutil.rmtree(os.path.join(at, "__pycache__"), ignore_errors=True)
                os.rmdir(at)

    def _make_folder(self, path: str) -> None:
        at = self._place(path)
        if not os.path.isdir(at):
            os.mkdir(at)
        if not self._is_inside(at):
            refuse(f"{path!r} leads out of {self._root} through a link")

    def _write(self, message: Mapping[str, Any]) -> None:
        path = str(message["path"])
        if self._file is None:
            if path not in self._lacking:
                refuse(f"{path!r} was not asked for")
            self._lacking.discard(path)
            self._file = _Incoming(self._wanted[path], self._place(path))
        if self._file.entry.path != path:
            refuse(f"{path!r} came before {self._file.entry.path!r} was whole")
        try:
            self._file.add(base64.b64decode(message["data"], validate=True))
            if message["end"]:
                self._file.finish()
                self._file = None
        except binascii.Error:
            refuse(f"a piece of {path!r} is not what was sent")

    def _finish(self) -> dict[str, Any]:
        if self._file or self._lacking:
            refuse("some files did not come")
        entries = sorted(self._wanted.values(), key=lambda entry: entry.path, reverse=True)
        for entry in entries:
            self._settle(entry)
        if self._mirror:
            leaving.save(self._memory, {entry.path: entry.kind for entry in entries})
        return {"entries": len(entries)}

    def _settle(self, entry: Entry) -> None:
        """Links come last, so that nothing is written through them; so do modes, so that folders can be filled."""
        if entry.kind == "link":
            at = self._place(entry.path)
            if os.path.islink(at) and os.readlink(at) == entry.content:
                return
            if os.path.islink(at) or os.path.isfile(at):
                os.unlink(at)
            os.symlink(entry.content, at)
        elif entry.kind == "folder":
            # Whoever owns it can go on writing there, or the next time would fail.
            os.chmod(os.path.join(self._root, entry.path), entry.mode & 0o777 | 0o700)


class _Incoming:
    """A file on its way, beside the place where it goes."""

    def __init__(self, entry: Entry, place: str) -> None:
        self.entry = entry
        self._place = place
        self._digest = _sha256()
        self._part = os.path.join(os.path.dirname(place), f".milkweed-{os.getpid()}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._fd = os.open(self._part, flags, 0o600)

    def add(self, data: bytes) -> None:
        """Write one more piece."""
        self._digest.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        """Move the whole file to its place."""
        if self._digest.hexdigest() != self.entry.content:
            self.drop()
            raise SystemExit(f"{self.entry.path} changed while it was sent: try again")
        os.fchmod(self._fd, self.entry.mode & 0o777)
        os.close(self._fd)
        try:
            os.replace(self._part, self._place)
        except OSError:
            os.unlink(self._part)
            raise

    def drop(self) -> None:
        """It will not be whole."""
        with contextlib.suppress(OSError):
            os.unlink(self._part)


def _fail(path: str, error: OSError) -> NoReturn:
    words = {
        errno.EISDIR: "there is a folder of that name",
        errno.EEXIST: f"there is a file {error.filename}",
        errno.ENOTDIR: "above it is a file",
    }
    raise SystemExit(f"{path}: {words.get(error.errno or 0) or error.strerror}") from error


def _sha256(data: bytes = b"") -> Any:
    import hashlib  # by those who need it: every keeper has this module

    return hashlib.sha256(data)


def _hash(path: str) -> str:
    digest = _sha256()
    with open(path, "rb") as file:
        while data := file.read(_PIECE_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _load(path: Path) -> dict[str, str]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
