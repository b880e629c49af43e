"""Files that travel to pods: in ConfigMaps, with their modes, as many as it takes."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import SpecError
from ...options import Data
from ..graph import Stage, Step, Write

MAX_MAP_BYTES = 900_000
"""What one ConfigMap carries; Kubernetes takes 1 MiB with all names."""
MAX_BYTES = 8 * MAX_MAP_BYTES
"""What travels with one job: all of it is in the plan, too."""
FOLDER = "files"
"""Below this name in the volume; at its top there are names of Kubernetes' own."""
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_HINT = "put it into the image or on a volume, and let the work take it from there"


@dataclass(frozen=True, slots=True)
class File:
    """One file as pods see it."""

    path: str
    """Relative to the run's folder."""
    content: bytes
    executable: bool = False


def read_files(steps: Sequence[Step]) -> list[File]:
    """The files that steps before some work wrote or staged; the last one of a name wins."""
    found: dict[str, File] = {}
    for step in steps:
        if isinstance(step, Write):
            found[step.filename] = File(step.filename, step.content, step.executable)
        elif isinstance(step, Stage) and step.path:
            found |= {each.path: each for each in read_path(step.path)}
    size = sum(len(each.content) for each in found.values())
    if size > MAX_BYTES:
        raise SpecError(
            f"{size:,} bytes of files; at most {MAX_BYTES:,} travel with a job", hint=_HINT
        )
    return list(found.values())


def read_path(said: str) -> list[File]:
    """A file of this machine, or all that are in a folder, under its last name."""
    path = Path(said).expanduser()
    name = path.name or path.resolve().name
    if not name or name == "..":
        raise SpecError(f"path: {said!r} has no last name")
    try:
        if path.is_dir():
            return [_read(each, f"{name}/{each.relative_to(path)}") for each in _walk(path)]
        return [_read(path, name)]
    except OSError as error:
        raise SpecError(
            f"path: {error.filename or said} cannot be read: {error.strerror}"
        ) from None


def _walk(folder: Path) -> Iterator[Path]:
    for each in sorted(folder.rglob("*")):
        if not each.is_dir():
            yield each


def _read(path: Path, name: str) -> File:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise SpecError(f"path: {path} is no plain file")
    if found.st_size > MAX_MAP_BYTES:
        raise SpecError(
            f"path: {path} has {found.st_size:,} bytes; a file that travels has at most {MAX_MAP_BYTES:,}",
            hint=_HINT,
        )
    return File(name, path.read_bytes(), executable=os.access(path, os.X_OK))


def pack(files: Sequence[File], texts: Mapping[str, str]) -> list[list[File]]:
    """What each ConfigMap carries; the texts, which stand beside the folder of files, are in the first."""
    first = [File(name, text.encode()) for name, text in texts.items()]
    packs = [first]
    for file in files:
        placed = File(f"{FOLDER}/{file.path}", file.content, file.executable)
        if len(file.content) > MAX_MAP_BYTES:
            raise SpecError(f"{file.path}: has more than {MAX_MAP_BYTES:,} bytes", hint=_HINT)
        if sum(len(each.content) for each in packs[-1]) + len(file.content) > MAX_MAP_BYTES:
            packs.append([])
        packs[-1].append(placed)
    return packs


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
