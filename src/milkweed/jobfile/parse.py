"""YAML text to a tree.

The tree is built from parser events, so nothing is ever constructed from a tag, plain words mean
what YAML 1.2 says (`no`, `on` and `12:00:00` are text), and aliases cannot grow without bound.
Imported on first use only, because the YAML parser is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from ..options import Path, describe
from .tree import Entries, Flaw, FlawError, Items, Scalar, Span, Tree, make_data

MAX_DEPTH = 40
MAX_VALUES = 100_000

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 300


def parse_tree(text: str) -> tuple[Tree | None, list[Flaw]]:
    """Read YAML text; None for a text without any value. Raises FlawError where reading must stop."""
    return _Builder(text).build()


def parse_scalar(text: str) -> str | int | float | bool | None:
    """What a plain word means in YAML 1.2's core schema."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if len(text) <= _MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _BASED_INT.fullmatch(text):
            return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "", 1)) if _NOT_FINITE.fullmatch(text) else text


@dataclass(frozen=True, slots=True)
class _Anchored:
    """What an alias may stand for."""

    tree: Tree
    values: int
    height: int


class _Builder:
    """Turns the events of one document into a tree, noting what can be noted and going on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._events = self._parse(text)
        self._flaws: list[Flaw] = []
        self._anchors: dict[str, _Anchored | None] = {}
        """None while the value is being built."""
        self._count = 0
        self._deepest = 0
        self._seen = 0
        """How far into the text the parser has come."""

    def build(self) -> tuple[Tree | None, list[Flaw]]:
        next(self._events)  # the start of the stream
        event = next(self._events)
        if isinstance(event, StreamEndEvent):
            return None, self._flaws
        if cast("Any", event).version not in (None, (1, 2)):
            self._stop_version()
        tree = self._tree(next(self._events), (), 0)
        next(self._events)  # the end of the document
        event = next(self._events)
        if isinstance(event, DocumentStartEvent):
            hint = "keep one document in a file"
            self._stop(_span(event), (), "a second document starts here", hint)
        return tree, self._flaws

    def _parse(self, text: str) -> Iterator[Event]:
        parser = cast("Any", YAML(typ="safe", pure=True))
        try:
            for event in parser.parse(text):
                self._seen = event.end_mark.index
                yield event
        except YAMLError as error:
            raise FlawError(_syntax_flaw(error, text)) from None
        except AssertionError:  # a version that the parser does not know
            self._stop_version()
        except (ValueError, OverflowError):  # an escape such as "\UFFFFFFFF"
            at = max(text.find("\\U", self._seen), self._seen)
            self._stop(Span(at, at + 10), (), "an escape that is no character")

    def _stop_version(self) -> NoReturn:
        at = max(self._text.find("%YAML"), 0)
        self._stop(Span(at, at + 5), (), "a job file is YAML 1.2", "take this line out")

    def _stop(self, span: Span, path: Path, message: str, hint: str = "") -> NoReturn:
        raise FlawError(Flaw(span, path, message, hint))

    def _note(self, span: Span, path: Path, message: str, hint: str = "") -> None:
        self._flaws.append(Flaw(span, path, message, hint))

    def _tree(self, event: Any, path: Path, depth: int) -> Tree:
        self._go_down(depth, event)
        if isinstance(event, AliasEvent):
            return self._aliased(event, path, depth)
        self._count_up(1, event)
        if event.tag is not None:
            message = f"the tag {_shown_tag(event.tag)} is not allowed"
            hint = "write the value without a tag; put text in quotes"
            self._note(_span(event), path, message, hint)
        return (
            self._anchored(event, path, depth) if event.anchor else self._value(event, path, depth)
        )

    def _go_down(self, depth: int, event: Event) -> None:
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            self._stop(_span(event), (), f"more than {MAX_DEPTH} values inside each other")

    def _count_up(self, values: int, event: Event) -> None:
        self._count += values
        if self._count > MAX_VALUES:
            hint = "use fewer aliases" if self._anchors else ""
            message = f"the file stands for more than {MAX_VALUES:,} values"
            self._stop(_span(event), (), message, hint)

    def _anchored(self, event: Any, path: Path, depth: int) -> Tree:
        count, deepest = self._count - 1, self._deepest
        self._deepest = depth
        self._anchors[event.anchor] = None
        tree = self._value(event, path, depth)
        self._anchors[event.anchor] = _Anchored(tree, self._count - count, self._deepest - depth)
        self._deepest = max(self._deepest, deepest)
        return tree

    def _aliased(self, event: Any, path: Path, depth: int) -> Tree:
        name: str = event.anchor
        known = self._anchors.get(name)
        if known is None:
            message = "contains itself" if name in self._anchors else "has no anchor before it"
            hint = f'to mean a text, use quotes: "*{name}"'
            self._note(_span(event), path, f"the alias *{name} {message}", hint)
            return Scalar(_span(event), None)
        self._go_down(depth + known.height, event)
        self._count_up(known.values, event)
        return replace(known.tree, span=_span(event))

    def _value(self, event: Any, path: Path, depth: int) -> Tree:
        span = _span(event)
        if isinstance(event, MappingStartEvent):
            return Entries(span, self._entries(path, depth))
        if isinstance(event, SequenceStartEvent):
            return Items(span, self._items(path, depth))
        value: str = event.value
        return Scalar(span, _join_pairs(value) if event.style else parse_scalar(value))

    def _items(self, path: Path, depth: int) -> list[Tree]:
        items: list[Tree] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._tree(event, (*path, len(items)), depth + 1))
        return items

    def _entries(self, path: Path, depth: int) -> dict[str, tuple[Span, Tree]]:
        entries: dict[str, tuple[Span, Tree]] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            span = _span(event)
            key = self._key(self._tree(event, path, depth + 1), span, path)
            value_path = path if key is None else (*path, key)
            value = self._tree(next(self._events), value_path, depth + 1)
            if key is None:
                continue
            if key in entries:
                line = self._text.count("\n", 0, entries[key][0].start) + 1
                self._note(span, value_path, "is set twice", f"it is set in line {line}, too")
            else:
                entries[key] = (span, value)
        return entries

    def _key(self, tree: Tree, span: Span, path: Path) -> str | None:
        data = make_data(tree)
        if isinstance(data, str):
            return data
        quotable = isinstance(data, bool | int | float)
        hint = "put it in quotes" if quotable else ""
        self._note(span, path, f"a key must be text, not {describe(data)}", hint)
        return None


def _join_pairs(text: str) -> str:
    """Make one character of two escapes that stand for it together, as JSON writes a butterfly."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return text


def _span(event: Any) -> Span:
    return Span(event.start_mark.index, event.end_mark.index)


def _shown_tag(tag: object) -> str:
    text = str(tag).replace("tag:yaml.org,2002:", "!!")
    return text if len(text) <= 60 else f"{text[:59]}…"


def _syntax_flaw(error: Any, text: str) -> Flaw:
    mark = getattr(error, "problem_mark", None)
    at: int = mark.index if mark else getattr(error, "position", 0)
    if at >= len(text.rstrip()) and (opened := getattr(error, "context_mark", None)):
        at = opened.index  # what the end of the file left open says more than the end does
    char = text[at] if at < len(text) else ""
    message, hint = _syntax_words(error, char)
    return Flaw(Span(at, at + 1), (), message, hint)


def _syntax_words(error: Any, char: str) -> tuple[str, str]:
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    if problem == "special characters are not allowed":
        return f"the character {char!r} is not allowed", ""
    if "cannot start any token" in problem and char == "\t":
        return "a tab where YAML wants spaces", "indent with spaces"
    if "cannot start any token" in problem:
        return f"a text cannot start with {char!r}", "put it in quotes"
    if "mapping values are not allowed" in problem:
        hint = "put a text that holds ': ' in quotes; check that the lines above line up"
        return "a ':' that does not belong here", hint
    context: str | None = getattr(error, "context", None)
    mark = getattr(error, "context_mark", None)
    if context and mark:
        problem += f", {context} that starts in line {mark.line + 1}"
    return f"this is not YAML: {problem}", ""
