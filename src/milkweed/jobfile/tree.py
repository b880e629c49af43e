"""Plain values that know where in a text they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..options import Data, Path


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the text, by character index."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong at one place of the text."""

    span: Span
    path: Path
    message: str
    hint: str = ""


class FlawError(Exception):
    """The text cannot be read any further."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.message)
        self.flaw = flaw


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text, number, true, false or nothing."""

    span: Span
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    span: Span
    items: Sequence[Tree]


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping; each entry keeps the span of its key."""

    span: Span
    entries: dict[str, tuple[Span, Tree]]


Tree: TypeAlias = Scalar | Items | Entries


def make_data(tree: Tree) -> Data:
    """The plain data of a tree."""
    if isinstance(tree, Scalar):
        return tree.value
    if isinstance(tree, Items):
        return [make_data(item) for item in tree.items]
    return {key: make_data(item) for key, (_, item) in tree.entries.items()}


def locate(tree: Tree, path: Path, *, at_key: bool) -> Span:
    """Where a value stands, or its key; for what is not there, the nearest key that is."""
    key = Span(tree.span.start, tree.span.start + 1)
    for part in path:
        if isinstance(tree, Entries) and isinstance(part, str) and part in tree.entries:
            key, tree = tree.entries[part]
        elif isinstance(tree, Items) and isinstance(part, int) and part < len(tree.items):
            tree = tree.items[part]
            key = tree.span
        else:
            return key
    is_written = tree.span.end > tree.span.start
    return tree.span if is_written and not at_key else key
