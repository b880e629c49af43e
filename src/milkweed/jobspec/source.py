"""From a file to a graph: text, tree, dialect; every mistake shown at once and in its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import JobspecError
from ..jobfile.render import render_flaws
from ..jobfile.tree import Flaw, FlawError, Span, Tree, locate, make_data
from ..options import Data, Path as Where, Problems, describe
from .graph import Graph, Position
from .reading import Places, Spot

if TYPE_CHECKING:
    from .order import Complaint

MAX_BYTES = 16 * 2**20


class Source:
    """A file while it is read: its values, and where each of them stands."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.problems = Problems()
        self._places = Places(self.text)
        tree, self._flaws = self._parse()
        self._tree, self.top = self._mapping(tree)

    def _parse(self) -> tuple[Tree | None, list[Flaw]]:
        from ..jobfile.parse import parse_tree

        try:
            return parse_tree(self.text)
        except FlawError as error:
            raise self._error([error.flaw]) from None

    def _mapping(self, tree: Tree | None) -> tuple[Tree, Spot]:
        data = None if tree is None else make_data(tree)
        if tree is None or data is None:
            raise JobspecError(f"{self.filename}:1:1: the file declares nothing", hint=_EXAMPLE)
        if not isinstance(data, dict):
            start = tree.span.start
            message = f"a jobspec is a mapping of keys to values, not {describe(data)}"
            raise self._error([Flaw(Span(start, start + 1), (), message, _EXAMPLE)])
        return tree, Spot(data, (), self.problems)

    def position(self, path: Where) -> Position:
        """Where a value stands, or its key where it has one."""
        return self._places.position(locate(self._tree, path, at_key=True).start)

    def complain(self, complaints: Iterable[Complaint], origins: Mapping[str, Spot]) -> None:
        """Note what is wrong with steps; `origins` says from which value each of them was read."""
        for bad in complaints:
            origin = origins.get(bad.step.id, self.top)
            self.problems.add((*origin.path, *_part_of(bad, origin.data)), bad.message, bad.hint)

    def refuse_flaws(self) -> None:
        """Raise all that was noted so far."""
        known = {(flaw.span, flaw.path) for flaw in self._flaws}
        placed = [
            Flaw(locate(self._tree, bad.path, at_key=bad.at_key), bad.path, bad.message, bad.hint)
            for bad in self.problems
        ]
        flaws = self._flaws + [flaw for flaw in placed if (flaw.span, flaw.path) not in known]
        if flaws:
            raise self._error(flaws)

    def _error(self, flaws: Sequence[Flaw]) -> JobspecError:
        return JobspecError(render_flaws(flaws, self.text, self.filename))


_EXAMPLE = """write at least:
version: 1
resources: {one: {type: node, count: 1}}
tasks:
- command: [hostname]
  resources: one"""


def _part_of(bad: Complaint, data: Data) -> Where:
    """The key of a step that a complaint is about."""
    if not isinstance(data, dict):
        return ()
    if bad.is_name:
        return ("name",) if "name" in data else ()
    needs = data.get("depends_on")
    if bad.need and isinstance(needs, list) and bad.need in needs:
        return ("depends_on", needs.index(bad.need))
    return ()


def parse_jobspec(text: str, filename: str = "jobspec", *, dialect: str | None = None) -> Graph:
    """Read a jobspec; JobspecError lists everything that is wrong with it, each with its place."""
    from .dialects import choose_dialect

    source = Source(text, filename)
    parse = choose_dialect(source, dialect)
    graph = parse(source)
    source.refuse_flaws()
    if graph is None:
        raise JobspecError(f"{filename}: the file declares no step", hint=_EXAMPLE)
    return graph


def load_jobspec(path: str | os.PathLike[str], *, dialect: str | None = None) -> Graph:
    """Read a jobspec from a file."""
    return parse_jobspec(_decode(_read(Path(path)), str(path)), str(path), dialect=dialect)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise JobspecError(f"{path}: cannot be read", seen=reason, hint="name a jobspec") from error
    if len(content) > MAX_BYTES:
        raise JobspecError(
            f"{path}: has more than {MAX_BYTES:,} bytes", hint="is this really a jobspec?"
        )
    return content


def _decode(content: bytes, filename: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        row, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise JobspecError(
            f"{filename}:{row}:{column}: the byte 0x{content[error.start]:02x} is not UTF-8",
            hint="save the file as UTF-8",
        ) from None
