"""Finding, reading and parsing job files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import JobFileError
from ..options import Data, Problems, describe
from ..spec import JobSpec
from .keys import OptionsOf, make_backends
from .read import read_job
from .render import render_flaws
from .tree import Flaw, FlawError, Span, Tree, locate, make_data

FILE_NAMES = ("milkweed.yaml", "job.yaml")
MAX_BYTES = 2**20

_EXAMPLE = "write at least:\nname: demo\non: process\nmeshes: {workers: 2}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """A job as a file declares it."""

    spec: JobSpec
    path: Path
    on_change: str | None = None
    """What to do when the declaration differs from the allocation; None: the backend's default."""


def find_jobfile(folder: str | os.PathLike[str]) -> Path | None:
    """The job file of a folder: `milkweed.yaml`, else `job.yaml`, else None."""
    candidates = (Path(folder) / name for name in FILE_NAMES)
    return next((path for path in candidates if path.is_file()), None)


def load_jobfile(
    path: str | os.PathLike[str],
    *,
    options_of: OptionsOf | None = None,
    backends: Sequence[str] | None = None,
) -> JobFile:
    """Read a job file."""
    path = Path(path)
    text = _decode(_read_bytes(path), str(path))
    return parse_jobfile(text, str(path), options_of=options_of, backends=backends)


def parse_jobfile(
    text: str,
    filename: str,
    *,
    options_of: OptionsOf | None = None,
    backends: Sequence[str] | None = None,
) -> JobFile:
    """Parse the text of a job file; JobFileError lists everything that is wrong with it.

    `options_of` gives the keys of each backend's block, and `backends` the names of all backends;
    without them, the installed backends say. Folders are seen from the folder that the file is in.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    tree, flaws = _parse_tree(text, filename)
    tree, data = _top_mapping(tree, text, filename)
    problems = Problems()
    base = os.path.dirname(filename)
    spec, on_change = read_job(data, make_backends(options_of, backends), problems, base)
    flaws += _place(problems, tree, flaws)
    if flaws or spec is None:
        raise _error(flaws, text, filename)
    return JobFile(spec=spec, path=Path(filename), on_change=on_change)


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = f"create it, or name another file; the usual name is {FILE_NAMES[0]}"
        raise JobFileError(f"{path}: there is no such file", hint=hint) from None
    except IsADirectoryError:
        found = find_jobfile(path)
        hint = f"name the file: {found}" if found else f"the usual name is {path / FILE_NAMES[0]}"
        raise JobFileError(f"{path}: this is a folder, not a file", hint=hint) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise JobFileError(f"{path}: cannot be read", seen=reason) from error
    if len(content) > MAX_BYTES:
        raise JobFileError(
            f"{path}: has more than {MAX_BYTES:,} bytes", hint="is this really a job file?"
        )
    return content


def _decode(content: bytes, filename: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        row, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise JobFileError(
            f"{filename}:{row}:{column}: the byte 0x{content[error.start]:02x} is not UTF-8",
            hint="save the file as UTF-8",
        ) from None


def _parse_tree(text: str, filename: str) -> tuple[Tree | None, list[Flaw]]:
    from .parse import parse_tree

    try:
        return parse_tree(text)
    except FlawError as error:
        raise _error([error.flaw], text, filename) from None


def _top_mapping(tree: Tree | None, text: str, filename: str) -> tuple[Tree, dict[str, Data]]:
    data = None if tree is None else make_data(tree)
    if tree is None or data is None:
        raise JobFileError(f"{filename}:1:1: the file declares nothing", hint=_EXAMPLE)
    if isinstance(data, dict):
        return tree, data
    start = tree.span.start
    message = f"a job file is a mapping of keys to values, not {describe(data)}"
    raise _error([Flaw(Span(start, start + 1), (), message, _EXAMPLE)], text, filename)


def _place(problems: Problems, tree: Tree, flaws: list[Flaw]) -> list[Flaw]:
    """Give each problem its place, leaving out what follows from a flaw that is known already."""
    known = {(flaw.span, flaw.path) for flaw in flaws}
    placed = [
        Flaw(locate(tree, found.path, at_key=found.at_key), found.path, found.message, found.hint)
        for found in problems
    ]
    return [flaw for flaw in placed if (flaw.span, flaw.path) not in known]


def _error(flaws: Iterable[Flaw], text: str, filename: str) -> JobFileError:
    return JobFileError(render_flaws(flaws, text, filename))
