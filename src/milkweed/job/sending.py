"""Local files and folders as hosts are told of them, and sending what a host lacks."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SpecError
from ..worker.files import Entry
from .ignoring import ALWAYS, Pattern, is_ignored, parse_patterns

PIECE_BYTES = 256 * 1024
PIECES_AHEAD = 16
"""How many pieces may be on their way: neither end holds more of a file than this."""
ENTRIES_AT_ONCE = 1000

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A local folder of which every host has a copy; what is gone here is removed there."""

    source: str
    dest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a file or a folder holds, read once for all hosts."""

    root: str
    """The folder below which the entries are."""
    entries: tuple[Entry, ...]
    single: str = ""
    """The name of the file, when it is not a folder."""

    @property
    def summary(self) -> Iterator[tuple[str, bytes]]:
        """Each name and what tells its content from another, as an image's digests want it."""
        for entry in self.entries:
            seen = f"{entry.kind} {entry.mode:o} {entry.content}"
            yield "" if self.single else entry.path, seen.encode(errors="surrogateescape")


def load_source(path: str, *, contents: bool = True, gitignore: bool = False) -> Source:
    """Read what there is; links are kept as links, and devices and sockets are left out."""
    local = os.path.abspath(os.path.expanduser(path))
    try:
        if not os.path.isdir(local):
            name = os.path.basename(local)
            return Source(root=os.path.dirname(local), entries=(_file(local, name),), single=name)
        patterns = parse_patterns([*ALWAYS, *(_load_gitignore(local) if gitignore else ())])
        if contents:
            return Source(root=local, entries=tuple(_walk(local, "", patterns)))
        root, name = os.path.split(local)
        own = Entry(name, "folder", _mode(os.stat(local)))
        found = (_below(name, entry) for entry in _walk(local, "", patterns))
        return Source(root=root, entries=(own, *found))
    except OSError as error:
        raise SpecError(
            f"{path}: it cannot be copied to hosts",
            seen=str(error),
            hint="check its name and that you may read all of it",
        ) from error


def _load_gitignore(folder: str) -> list[str]:
    try:
        return Path(folder, ".gitignore").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _below(name: str, entry: Entry) -> Entry:
    return Entry(f"{name}/{entry.path}", entry.kind, entry.mode, entry.size, entry.content)


def _walk(root: str, below: str, patterns: Sequence[Pattern]) -> Iterator[Entry]:
    for item in sorted(os.scandir(os.path.join(root, below)), key=lambda item: item.name):
        path = f"{below}/{item.name}" if below else item.name
        folder = item.is_dir(follow_symlinks=False)
        if is_ignored(path, patterns, folder=folder):
            continue
        if item.is_symlink():
            yield Entry(path, "link", 0o777, 0, os.readlink(item.path))
        elif folder:
            yield Entry(path, "folder", _mode(item.stat()))
            yield from _walk(root, path, patterns)
        elif item.is_file():
            yield _file(item.path, path)


def _mode(seen: os.stat_result) -> int:
    return stat.S_IMODE(seen.st_mode) & 0o777


def _file(local: str, path: str) -> Entry:
    digest = hashlib.sha256()
    with open(local, "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(f"{local} is neither a file nor a folder")
        while data := file.read(PIECE_BYTES):
            digest.update(data)
    return Entry(path, "file", _mode(seen), seen.st_size, digest.hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """How files are sent: `send` gives a message to the host, `wait` returns its next answer."""

    send: Callable[[Message], None]
    wait: Callable[[], Message]


def send_source(source: Source, talk: Talk) -> int:
    """Tell a host what there should be, and send what it lacks; how many files were sent."""
    lacking = _ask_lacking(source, talk)
    ahead = 0
    for piece in (piece for entry in lacking for piece in _pieces(source.root, entry)):
        if ahead == PIECES_AHEAD:
            talk.wait()
            ahead -= 1
        talk.send({"do": "piece", **piece})
        ahead += 1
    for _ in range(ahead):
        talk.wait()
    talk.send({"do": "end"})
    talk.wait()
    return len(lacking)


def _ask_lacking(source: Source, talk: Talk) -> list[Entry]:
    lacking: list[Entry] = []
    for at in range(0, len(source.entries), ENTRIES_AT_ONCE):
        part = source.entries[at : at + ENTRIES_AT_ONCE]
        fields = [[each.path, each.kind, each.mode, each.size, each.content] for each in part]
        talk.send({"do": "entries", "entries": fields})
        lacking += [part[number] for number in talk.wait()["lacks"]]
    return lacking


def _pieces(root: str, entry: Entry) -> Iterator[Message]:
    """A file in pieces; the last says so, though it may be empty."""
    with open(os.path.join(root, entry.path), "rb") as file:
        left = entry.size
        while True:
            data = file.read(min(PIECE_BYTES, left))
            left -= len(data)
            end = left == 0 or not data
            yield {"path": entry.path, "end": end, "data": data}
            if end:
                return
