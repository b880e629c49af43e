"""Files that travel to pods: in ConfigMaps, with their modes, as many as it takes; links and folders as words."""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import SpecError
from ...options import Data
from ..graph import Stage, Step, Write
from .staged import walk_files

MAX_MAP_BYTES = 900_000
"""What one ConfigMap carries; Kubernetes takes 1 MiB with all names. Larger files travel in pieces."""
MAX_BYTES = 36 * MAX_MAP_BYTES
"""What travels with one job: all of it is in the plan, too."""
FOLDER, PIECES = "files", "pieces"
"""Below these names in the volume; at its top there are names of Kubernetes' own."""
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_HINT = "put it into the image or on a volume, and let the work take it from there"


@dataclass(frozen=True, slots=True)
class File:
    """One file, folder or link as pods see it."""

    path: str
    """Relative to the run's folder."""
    content: bytes = b""
    executable: bool = False
    target: str = ""
    """Where a link leads; nothing where it is none."""
    is_folder: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it has content."""
        return not (self.target or self.is_folder)

    @property
    def is_large(self) -> bool:
        """Whether it travels in pieces."""
        return len(self.content) > MAX_MAP_BYTES


def read_files(steps: Sequence[Step]) -> list[File]:
    """The files that steps before some work wrote or staged; the last one of a name wins."""
    found: dict[str, File] = {}
    for step in steps:
        if isinstance(step, Write):
            found[step.filename] = File(step.filename, step.content, step.executable)
        elif isinstance(step, Stage) and step.path:
            found |= {each.path: each for each in read_path(step.path)}
    _check_size(sum(len(each.content) for each in found.values()))
    return list(found.values())


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise SpecError(
            f"{size:,} bytes of files; at most {MAX_BYTES:,} travel with a job", hint=_HINT
        )


def read_path(said: str) -> list[File]:
    """A file of this machine, or all that is in a folder, under its last name; links stay links."""
    path = Path(said).expanduser()
    name = path.name or path.resolve().name
    if not name or name == "..":
        raise SpecError(f"path: {said!r} has no last name")
    try:
        entries = list(walk_files(path.resolve(strict=True), name))
        _check_size(sum(each.lstat().st_size for each, _ in entries if each.is_file()))
        return [_read(each, placed) for each, placed in entries]
    except OSError as error:
        raise SpecError(
            f"path: {error.filename or said} cannot be read: {error.strerror}"
        ) from None


def _read(path: Path, name: str) -> File:
    target = os.readlink(path) if path.is_symlink() else ""
    try:
        f"{name}{target}".encode()
    except UnicodeEncodeError:
        hint = "rename it, or pack the folder into one file"
        raise SpecError(f"path: the name {name!r} is not UTF-8", hint=hint) from None
    if target:
        return File(name, target=target)
    if path.is_dir():
        return File(name, is_folder=True)
    return File(name, path.read_bytes(), executable=os.access(path, os.X_OK))


def split(files: Sequence[File]) -> Iterator[tuple[File, list[File]]]:
    """Each large file with the pieces that it travels in, where they lie in the volume."""
    for number, file in enumerate(each for each in files if each.is_large):
        starts = range(0, len(file.content), MAX_MAP_BYTES)
        yield (
            file,
            [
                File(f"{PIECES}/{number}/{at}", file.content[start : start + MAX_MAP_BYTES])
                for at, start in enumerate(starts)
            ],
        )


def pack(files: Sequence[File], texts: Mapping[str, str]) -> list[list[File]]:
    """What each ConfigMap carries; the texts, which stand beside the folder of files, are in the first."""
    packs = [[File(name, text.encode()) for name, text in texts.items()]]
    placed = [
        replace(file, path=f"{FOLDER}/{file.path}")
        for file in files
        if file.is_plain and not file.is_large
    ]
    for file in [*placed, *(piece for _, pieces in split(files) for piece in pieces)]:
        if sum(len(each.content) for each in packs[-1]) + len(file.content) > MAX_MAP_BYTES:
            packs.append([])
        packs[-1].append(file)
    return packs


def render_placing(files: Sequence[File], source: str, target: str) -> list[str]:
    """The lines of a shell script that put everything from the volume to its place."""

    def place(path: str) -> str:
        return shlex.quote(f"{target}/{path}")

    folders = [each.path for each in files if each.is_folder]
    folders += [os.path.dirname(each.path) for each in files if each.is_large or each.target]
    lines = [f"mkdir -p {place(path)}" for path in dict.fromkeys(folders) if path]
    if any(each.is_plain and not each.is_large for each in files):
        lines.append(f"cp -R {source}/{FOLDER}/. {target}/")
    for file, pieces in split(files):
        words = " ".join(f"{source}/{piece.path}" for piece in pieces)
        lines.append(f"cat {words} >{place(file.path)}")
        lines.append(f"chmod {'755' if file.executable else '644'} {place(file.path)}")
    links = [each for each in files if each.target]
    return lines + [f"ln -s -- {shlex.quote(each.target)} {place(each.path)}" for each in links]


def make_data(files: Sequence[File]) -> dict[str, Data]:
    """The content of a ConfigMap: text where it is text; keys are numbers, since names may be anything."""
    data: dict[str, Data] = {}
    binary: dict[str, Data] = {}
    for key, file in _keyed(files):
        try:
            data[key] = file.content.decode()
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(file.content).decode()
    found: dict[str, Data] = {"data": data} if data else {}
    return {**found, "binaryData": binary} if binary else found


def make_source(name: str, files: Sequence[File]) -> dict[str, Data]:
    """How a ConfigMap is put into a volume: names and modes."""
    items: list[Data] = [
        {"key": key, "path": file.path, "mode": 0o755 if file.executable else 0o644}
        for key, file in _keyed(files)
    ]
    return {"configMap": {"name": name, "items": items}}


def _keyed(files: Sequence[File]) -> list[tuple[str, File]]:
    """Each file with its key: its name where that may be one."""
    found: dict[str, File] = {}
    for number, file in enumerate(files):
        name = file.path.removeprefix(f"{FOLDER}/")
        key = name if _KEY.fullmatch(name) else f"file-{number}"
        while key in found:
            key += "-"
        found[key] = file
    return list(found.items())
