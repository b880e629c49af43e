"""Which keys a declaration may have, and how their values are read: all problems at once, each with its path.

A backend declares the keys of its own block as `OPTIONS: Mapping[str, OptionField]`; the job
file's own keys are declared the same way. Values come in as plain data and go out checked.
"""

from __future__ import annotations

import difflib
import math
import os
import shlex
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

from .errors import SpecError
from .spec import check_env, suggest
from .units import parse_duration, parse_size

Data: TypeAlias = "str | int | float | bool | list[Data] | dict[str, Data] | None"
"""Plain data, as a job file or JSON carries it."""

Path: TypeAlias = "tuple[str | int, ...]"
"""Where a value stands in a declaration: `("meshes", "trainers", "hosts")`."""

OptionType = Literal[
    "text", "folder", "int", "number", "bool", "size", "duration", "texts", "words", "env", "data"
]

MAX_INT = 2**63 - 1
_MAX_UNIT_TEXT = 40


@dataclass(frozen=True, slots=True)
class OptionField:
    """One key: what its value is, and what it means."""

    type: OptionType
    """text, int, number, bool; folder: one of this machine, by its whole path; size: `64Gi` → bytes;
    duration: `1h30m` → seconds; texts: a list of text; words: a command line; env: variables; data:
    anything that JSON can carry."""
    help: str
    choices: tuple[str, ...] = ()
    default: Any = None
    """What not saying it means; saying the default is the same as saying nothing."""
    client: bool = False
    """True when only this client cares, so that a change never touches an allocation."""
    minimum: int | None = None
    required: bool = False


OptionTable: TypeAlias = Mapping[str, OptionField]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a declaration."""

    path: Path
    message: str
    hint: str = ""
    at_key: bool = False
    """True when the key is wrong, rather than its value."""

    def __str__(self) -> str:
        return f"{render_path(self.path)}: {self.message}" if self.path else self.message


class Problems(list[Problem]):
    """All that is wrong, in the order it was found."""

    def add(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> None:
        """Note one problem and go on."""
        self.append(Problem(path, message, hint, at_key))

    @contextmanager
    def at(self, path: Path, *, at_key: bool = False) -> Generator[None]:
        """Note what a check inside raises as a problem of this path.

        The check must have been given a `where` without a colon: its text starts with it.
        """
        try:
            yield
        except SpecError as error:
            where, colon, message = error.what.partition(": ")
            self.add(path, message if colon else where, error.hint, at_key=at_key)


@dataclass(frozen=True, slots=True)
class _Site:
    """The place of one value while it is read."""

    field: OptionField
    path: Path
    problems: Problems
    base: str = ""
    """What relative folders are seen from; else it is the current one."""

    def refuse(self, message: str, hint: str) -> None:
        self.problems.add(self.path, message, hint)

    def inside(self, part: str | int) -> _Site:
        return _Site(self.field, (*self.path, part), self.problems, self.base)


def render_path(path: Path) -> str:
    """Write a path as `meshes.trainers.hosts` or `code.include[2]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_cut(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}…"


def describe(value: Data) -> str:
    """Name a value in an error: short, on one line, as it would be written."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return _cut(repr(value))


def read_table(
    table: OptionTable, values: Data, path: Path, problems: Problems, *, base: str = ""
) -> dict[str, Any]:
    """Read a mapping whose keys the table declares; None is an empty one. Folders are seen from `base`."""
    if not isinstance(values, dict):
        if values is not None:
            problems.add(path, f"{describe(values)} is not a mapping", _mapping_hint(table))
            return {}
        values = {}
    found: dict[str, Any] = {}
    for key, value in values.items():
        at = (*path, key)
        if key not in table:
            problems.add(at, "unknown key", suggest_key(key, table), at_key=True)
        elif (read := read_value(table[key], value, at, problems, base=base)) is not None:
            found[key] = read
    for key, field in table.items():
        if field.required and key not in values:
            problems.add((*path, key), "is missing", f"add `{key}: …`: {field.help}", at_key=True)
    return found


def _mapping_hint(table: OptionTable) -> str:
    return f"write keys and values; known: {', '.join(sorted(table))}" if table else ""


def suggest_key(key: str, known: Mapping[str, object]) -> str:
    """What to do about a key nobody knows."""
    if key == "<<":
        return "merge keys are not part of YAML 1.2; write the keys out"
    return suggest(key, known) if known else "nothing can be set here"


def read_value(
    field: OptionField, value: Data, path: Path, problems: Problems, *, base: str = ""
) -> Any:
    """Read one value as its field says; None when there was a problem."""
    site = _Site(field, path, problems, base)
    if value is None and field.type not in ("env", "data"):
        return site.refuse("has no value", "give it one, or take the key out")
    return _READERS[field.type](value, site)


def _read_text(value: Data, site: _Site) -> str | None:
    text = _read_any_text(value, site)
    if text is None:
        return None
    if not text:
        return site.refuse("is empty", "give it one, or take the key out")
    if site.field.choices and text not in site.field.choices:
        near = difflib.get_close_matches(text, site.field.choices, n=1)
        return site.refuse(
            f"{describe(text)} is not one of: {', '.join(site.field.choices)}",
            f"did you mean {near[0]!r}?" if near else f"write {' or '.join(site.field.choices)}",
        )
    return text


def _read_any_text(value: Data, site: _Site) -> str | None:
    if not isinstance(value, str):
        quotable = isinstance(value, int | float)
        return site.refuse(
            f"{describe(value)} is not text", "put it in quotes" if quotable else "write text"
        )
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        return site.refuse(
            f"{describe(value)} has a character that no program can be given", "leave it out"
        )
    return value


def _read_folder(value: Any, site: _Site) -> str | None:
    """The same folder from anywhere: `~` is a home, and a relative one is meant from where it was said."""
    text = _read_text(os.fsdecode(value) if isinstance(value, os.PathLike) else value, site)  # pyright: ignore[reportUnknownArgumentType] users pass anything
    if text is None:
        return None
    if (known := os.path.expanduser(text)).startswith("~"):
        return site.refuse(
            f"{describe(text)} begins with the home of somebody who is not known here",
            "give the whole path",
        )
    try:
        return os.path.abspath(os.path.join(site.base, known))
    except OSError:
        return site.refuse(
            f"{describe(text)} lies in the current folder, and that is gone",
            "give the whole path, or go to a folder that is there",
        )


def _read_int(value: Data, site: _Site) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return site.refuse(f"{describe(value)} is not a whole number", _number_hint(value))
    return value if _in_range(value, site) else None


def _read_number(value: Data, site: _Site) -> float | None:
    is_nan = isinstance(value, float) and math.isnan(value)
    if is_nan or isinstance(value, bool) or not isinstance(value, int | float):
        return site.refuse(f"{describe(value)} is not a number", _number_hint(value))
    return float(value) if _in_range(value, site) else None


def _number_hint(value: Data) -> str:
    is_quoted = isinstance(value, str) and value.strip().isdecimal()
    return "take it out of the quotes" if is_quoted else "write one, such as 2"


def _in_range(value: float, site: _Site) -> bool:
    if abs(value) > MAX_INT:
        site.refuse(f"{describe(value)} is too large", "give a smaller number")
        return False
    if site.field.minimum is not None and value < site.field.minimum:
        site.refuse(f"{value} is too small", f"give at least {site.field.minimum}")
        return False
    return True


def _read_bool(value: Data, site: _Site) -> bool | None:
    if not isinstance(value, bool):
        return site.refuse(f"{describe(value)} is not true or false", "write true or false")
    return value


def _read_size(value: Data, site: _Site) -> int | None:
    if _has_unit_form(value) and not isinstance(value, float):
        with site.problems.at(site.path):
            return parse_size(value, field="size")
        return None
    return site.refuse(
        f"{describe(value)} is not a size",
        "write a number with a unit, such as 512Mi, 16Gi or 200GB",
    )


def _read_duration(value: Data, site: _Site) -> float | None:
    if _has_unit_form(value):
        with site.problems.at(site.path):
            return parse_duration(value, field="duration")
        return None
    return site.refuse(
        f"{describe(value)} is not a duration",
        "write a number with a unit, such as 90s, 5m or 1h30m, or a time such as 12:00:00",
    )


def _has_unit_form(value: Data) -> TypeGuard[str | int | float]:
    if isinstance(value, str):
        return len(value) <= _MAX_UNIT_TEXT
    return isinstance(value, int | float) and _is_small_number(value)


def _is_small_number(value: float) -> bool:
    return not isinstance(value, bool) and abs(value) <= MAX_INT  # false for nan, too


def _read_texts(value: Data, site: _Site) -> list[str] | None:
    if not isinstance(value, list):
        return site.refuse(f"{describe(value)} is not a list", "write a list: [first, second]")
    texts = [_read_any_text(item, site.inside(at)) for at, item in enumerate(value)]
    return [text for text in texts if text is not None]


def _read_words(value: Data, site: _Site) -> list[str] | None:
    if isinstance(value, list):
        words = _read_texts(value, site)
    elif (text := _read_any_text(value, site)) is not None:
        words = _split_words(text, site)
    else:
        return None
    if words == [] and not value:
        return site.refuse("is empty", "write a command, or take the key out")
    return words


def _split_words(text: str, site: _Site) -> list[str] | None:
    try:
        return shlex.split(text.replace("\\\n", ""))  # a shell joins such lines, too
    except ValueError as error:
        return site.refuse(
            f"{describe(text)} is not a command line: {str(error).lower()}",
            "close what is quoted, or give a list of words",
        )


def _read_env(value: Data, site: _Site) -> dict[str, str] | None:
    if value is None:
        return {}
    if not isinstance(value, dict):
        return site.refuse(f"{describe(value)} is not a mapping", 'write variables: {NAME: "text"}')
    found: dict[str, str] = {}
    for name, item in value.items():
        here = site.inside(name)
        with site.problems.at(here.path, at_key=True):
            check_env({name: ""}, where="env")
        if item is None:
            here.refuse("has no value", 'write "" for an empty text')
        elif (text := _read_any_text(item, here)) is not None:
            found[name] = text
    return found


def _read_data(value: Data, site: _Site) -> Data:
    if isinstance(value, list):
        return [_read_data(item, site.inside(at)) for at, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _read_data(item, site.inside(key)) for key, item in value.items()}
    if isinstance(value, str):
        return _read_any_text(value, site)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            value
            if _is_small_number(value)
            else site.refuse(f"{describe(value)} is too large", "give a smaller number")
        )
    return value


_READERS: dict[OptionType, Callable[[Data, _Site], Any]] = {
    "text": _read_text,
    "folder": _read_folder,
    "int": _read_int,
    "number": _read_number,
    "bool": _read_bool,
    "size": _read_size,
    "duration": _read_duration,
    "texts": _read_texts,
    "words": _read_words,
    "env": _read_env,
    "data": _read_data,
}


def split_options(
    table: OptionTable, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cut checked values into (what defines the allocation, what only this client cares about).

    Defaults are left out: saying one is the same as not saying it, and a default that a later
    milkweed adds must not make an allocation that exists look changed.
    """
    said = {key: value for key, value in values.items() if value != table[key].default}
    options = {key: value for key, value in said.items() if not table[key].client}
    return options, {key: value for key, value in said.items() if table[key].client}


def with_defaults(table: OptionTable, *given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option that has a value: the given ones, and the defaults of the others."""
    found = {key: field.default for key, field in table.items() if field.default is not None}
    for values in given:
        found.update(values)
    return found


def check_options(
    table: OptionTable, values: Mapping[str, Any], *, where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check plain values against a table and split them; SpecError lists all that is wrong.

    A value of None is one that was not said.
    """
    problems = Problems()
    said = {key: value for key, value in values.items() if value is not None}
    found = read_table(table, said, (where,), problems)
    if problems:
        raise SpecError(
            "\n".join(str(problem) for problem in problems),
            hint="\n".join(problem.hint for problem in problems if problem.hint),
        )
    return split_options(table, found)
