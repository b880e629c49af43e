"""Files and folders of the submitting machine that jobs shall have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...errors import SpecError

BODY_BYTES = 256 * 1024
"""What a staged file may have, packed, to travel inside a job; larger ones are fetched by it."""


def walk_files(path: Path, name: str) -> Iterator[tuple[Path, str]]:
    """What is there, folders before what is in them; only files, folders and links can be sent."""
    is_link = path.is_symlink()
    if not (is_link or path.is_dir() or path.is_file()):
        raise SpecError(
            f"path: {str(path)!r} is neither a file nor a folder",
            hint="take it out of what is staged",
        )
    yield path, name
    if path.is_dir() and not is_link:
        for child in sorted(path.iterdir()):
            yield from walk_files(child, f"{name}/{child.name}")
