"""Reading the values of a file strictly: each knows where it stands, and all problems are noted at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..options import Data, OptionField, Path, Problems, describe, read_value, suggest_key
from ..spec import check_env
from .graph import Position
from .order import flaws_of_filename, flaws_of_name

_TEXT = OptionField("text", "")
_BOOL = OptionField("bool", "")
_WORDS = OptionField("texts", "")
_DATA = OptionField("data", "")
_DURATION = OptionField("duration", "")
_OPERATORS = frozenset("();<>|&")


@dataclass(frozen=True, slots=True)
class Spot:
    """One value of a file, its place, and where problems are noted."""

    data: Data
    path: Path
    problems: Problems

    def refuse(self, message: str, hint: str = "", *, at_key: bool = False) -> None:
        """Note what is wrong here, and go on."""
        self.problems.add(self.path, message, hint, at_key=at_key)

    def inside(self, part: str | int, data: Data) -> Spot:
        """A value of this one."""
        return Spot(data, (*self.path, part), self.problems)

    def keys(self, known: Iterable[str], required: Sequence[str] = ()) -> dict[str, Spot]:
        """The values of a mapping, whose keys must be known; what is no mapping has none."""
        if not isinstance(self.data, dict):
            names = list(known)
            hint = f"write keys and values; known: {', '.join(names)}" if names else ""
            self.refuse(f"{describe(self.data)} is not a mapping", hint)
            return {}
        table = dict.fromkeys(known)
        found: dict[str, Spot] = {}
        for key, value in self.data.items():
            spot = self.inside(key, value)
            if key in table:
                found[key] = spot
            else:
                spot.refuse("unknown key", suggest_key(key, table), at_key=True)
        for key in required:
            if key not in found:
                self.inside(key, None).refuse("is missing", f"add `{key}: …`", at_key=True)
        return found

    def entries(self) -> dict[str, Spot]:
        """The values of a mapping that may have any keys."""
        if isinstance(self.data, dict):
            return {key: self.inside(key, value) for key, value in self.data.items()}
        self.refuse(f"{describe(self.data)} is not a mapping")
        return {}

    def items(self, *, minimum: int = 0) -> list[Spot]:
        """The values of a list."""
        if not isinstance(self.data, list):
            self.refuse(
                f"{describe(self.data)} is not a list", "write a list: begin each line with `- `"
            )
            return []
        if len(self.data) < minimum:
            self.refuse("is empty", "write at least one, or take the key out")
        return [self.inside(at, value) for at, value in enumerate(self.data)]

    def text(self, *choices: str) -> str:
        """A text that is not empty; "" when it is none."""
        field = OptionField("text", "", choices=choices) if choices else _TEXT
        return self._read(field) or ""

    def name(self) -> str:
        """The name of a step."""
        return self._named(flaws_of_name)

    def filename(self) -> str:
        """The name of a file of the run."""
        return self._named(flaws_of_filename)

    def _named(self, flaws_of: Any) -> str:
        name = self.text()
        for flaw in flaws_of(name) if name else ():
            self.refuse(flaw)
        return name

    def flag(self) -> bool:
        """True or false."""
        return bool(self._read(_BOOL))

    def check_version(self) -> None:
        """The number 1, and nothing that only equals it."""
        if self.data != 1 or not isinstance(self.data, int) or isinstance(self.data, bool):
            self.refuse(f"{describe(self.data)} is not 1", "write version: 1")

    def count(self, *, minimum: int = 1) -> int:
        """A whole number; 1 when it is none. Ranges are told apart from other mistakes."""
        if isinstance(self.data, dict) or (isinstance(self.data, str) and self.data.strip()):
            self.refuse(f"{describe(self.data)} is not a whole number", _range_hint(self.data))
            return 1
        read = self._read(OptionField("int", "", minimum=minimum))
        return 1 if read is None else read

    def seconds(self) -> float | None:
        """A number of seconds, as Flux has it."""
        if isinstance(self.data, str):
            hint = "this dialect counts seconds: write a number"
            self.refuse(f"{describe(self.data)} is not a number", hint)
            return None
        return self._read(OptionField("number", "", minimum=0))

    def limit(self) -> float | None:
        """A limit in seconds, as Flux has it; 0 is no limit."""
        return self.seconds() or None

    def duration(self) -> float | None:
        """A duration with a unit; a bare number could be seconds or minutes, so it is refused."""
        if isinstance(self.data, int | float) and not isinstance(self.data, bool):
            hint = f"say what it counts: {self.data}s, {self.data}m or {self.data}h"
            self.refuse(f"{self.data} has no unit", hint)
            return None
        return self._read(_DURATION)

    def texts(self) -> list[str]:
        """A list of texts."""
        return self._read(_WORDS) or []

    def command(self) -> tuple[str, ...]:
        """A command: a list of words, or one text without anything that only a shell understands."""
        if isinstance(self.data, str):
            return self._split(self.data)
        if self.data == []:
            self.refuse("is empty", "write a command: [program, argument]")
        words = tuple(self.texts())
        if words and not words[0]:
            self.inside(0, words[0]).refuse("is empty", "begin with the name of a program")
        return words

    def _split(self, text: str) -> tuple[str, ...]:
        try:
            shell = shlex.shlex(text.replace("\\\n", ""), posix=True, punctuation_chars=True)
            shell.whitespace_split = True
            shell.commenters = ""
            plain = list(shell)
            words = shlex.split(text.replace("\\\n", ""))
        except ValueError as error:
            self.refuse(f"{describe(text)} is not a command line: {str(error).lower()}")
            return ()
        if words != plain or any(word and set(word) <= _OPERATORS for word in words):
            hint = "write a list of words; for a shell: [bash, -c, …]"
            self.refuse(
                "no shell reads this text, and it holds what only a shell understands", hint
            )
        elif not words:
            self.refuse("is empty", "write a command: [program, argument]")
        return tuple(words)

    def environment(self) -> dict[str, str | None]:
        """Variables; one without a value is taken away."""
        found: dict[str, str | None] = {}
        for name, spot in self.entries().items():
            with self.problems.at(spot.path, at_key=True):
                check_env({name: ""}, where="environment")
            if spot.data is None or spot.data == "":
                found[name] = None if spot.data is None else ""
            elif text := spot.text():
                found[name] = text
        return found

    def variable(self) -> str:
        """The name of a variable."""
        name = self.text()
        with self.problems.at(self.path):
            check_env({name: ""} if name else {}, where="name")
        return name

    def plain(self) -> Data:
        """Anything that JSON can carry."""
        return self._read(_DATA)

    def _read(self, field: OptionField) -> Any:
        return read_value(field, self.data, self.path, self.problems)


def _range_hint(data: Data) -> str:
    if isinstance(data, dict):
        return "ranges of counts are not part of version 1: give one number"
    text = str(data).strip()
    if text.isdecimal():
        return "take it out of the quotes"
    return "ranges and sets are not part of version 1: give one number"


class Places:
    """Turns places in a text into lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]

    def position(self, index: int) -> Position:
        """Line and column of a character."""
        from bisect import bisect_right

        row = bisect_right(self._starts, index) - 1
        return Position(row + 1, index - self._starts[row] + 1)
