"""Files on their way into a job: as text of its script where they can be, else packed."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import os
import re
import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .staged import BODY_BYTES, walk_files

SCRIPT_BYTES = 4 * 2**20 - 4096
"""What Slurm takes as a script where an administrator has not said otherwise."""
_LINE = 76
_NOT_PLAIN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A file that a script writes."""

    target: str
    """Its path below the job's folder, of plain characters."""
    content: bytes
    executable: bool = False


def render_file(file: Carried) -> list[str]:
    """The lines of a shell script that write a file: readable where its content is text."""
    target = f'"$mw_folder"/{shlex.quote(file.target)}'
    mode = [f"chmod 700 {target}"] if file.executable else []
    return [*_render_content(file.content, target), *mode]


def _render_content(content: bytes, target: str) -> list[str]:
    text = _as_text(content)
    if text is not None:
        end = make_end(text)
        return [f"cat <<'{end}' >{target} || mw_fail", *text.split("\n")[:-1], end]
    return render_packed(content, f">{target}")


def render_packed(content: bytes, then: str) -> list[str]:
    """The lines that hold bytes as base64; `then` is where they go, a redirection or a pipe."""
    packed = base64.b64encode(content).decode()
    lines = [packed[at : at + _LINE] for at in range(0, len(packed), _LINE)]
    end = make_end(packed)
    return [f"base64 -d <<'{end}' {then} || mw_fail", *lines, end]


def _as_text(content: bytes) -> str | None:
    """The content where a script can hold it as it stands: whole lines without control characters."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if text.endswith("\n") and not _NOT_PLAIN.search(text) else None


def make_end(text: str) -> str:
    """A line that no line of a text is: a text cannot know the hash of itself."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    lines = set(text.split("\n"))
    at = 0
    while (end := f"MILKWEED_{digest[at : at + 12]}") in lines:
        at += 1
    return end


# Files and folders of this machine


def is_small(path: Path) -> bool:
    """Whether it may travel in a script, by its size on disk."""
    total = 0
    for size in _sizes(path):
        total += size
        if total > 8 * BODY_BYTES:
            return False
    return True


def _sizes(path: Path) -> Iterator[int]:
    yield path.stat().st_size
    if path.is_dir():
        for folder, _, names in os.walk(path):
            for name in names:
                yield 512 + os.lstat(os.path.join(folder, name)).st_size


@functools.lru_cache(maxsize=32)
def pack_for(run_id: str, path: str) -> bytes | None:
    """A file or folder as it is when a run is planned; None when it is too large for a script."""
    del run_id  # one look at it for all jobs of a plan
    found = Path(path)
    if not is_small(found):
        return None
    packed = io.BytesIO()
    pack(found, packed)
    return packed.getvalue() if len(packed.getvalue()) <= BODY_BYTES else None


def pack(path: Path, target: io.BufferedIOBase) -> None:
    """Write a file or folder as an archive; the same bytes for the same files."""
    with (
        gzip.GzipFile("", "wb", 6, target, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for source, name in walk_files(path.resolve(), path.name or path.resolve().name):
            entry = archive.gettarinfo(str(source), name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                entry.type = tarfile.REGTYPE
                with source.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
