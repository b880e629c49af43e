"""Milkweed's own source as an archive: what travels to machines that do not see this one's files."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@functools.cache
def pack_worker() -> bytes:
    """The worker's own source: nothing else of milkweed is needed on a host."""
    files = [_PACKAGE / "__init__.py", _PACKAGE / "identity.py"]
    return pack_files(_PACKAGE, [*files, *sorted(_PACKAGE.glob("worker/*.py"))])


def pack_package() -> bytes:
    """All of milkweed: a client's image need not have it, and has the same version then."""
    return pack_files(_PACKAGE, sorted(_PACKAGE.rglob("*.py")))


def pack_files(package: Path, files: Iterable[Path]) -> bytes:
    """Files of a package as an archive to import from: the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in files:
            # The time of a file may be one that archives do not know: some images have them all from 1970.
            entry = zipfile.ZipInfo(str(Path("milkweed") / file.relative_to(package)))
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return packed.getvalue()
