"""The short form in which schedulers write the names of many hosts: `r[1-2]n[01-03],login`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

MAX_NAMES = 100_000
"""More names than any cluster has; a text that stands for more is refused."""

_MAX_DEPTH = 8
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.ASCII)
_PLAIN = re.compile(r"[^\s,\[\]]+")


def expand_hostlist(text: str) -> list[str]:
    """All names that a list stands for, in its order; ValueError when it is not such a list."""
    clean = text.strip()
    if not clean:
        return []
    return _gather((_expand_item(item, text) for item in _split(clean, text)), text)


def _gather(lists: Iterable[list[str]], whole: str) -> list[str]:
    names = list[str]()
    for found in lists:
        names += found
        if len(names) > MAX_NAMES:
            raise _too_many(whole)
    return names


def _split(text: str, whole: str) -> list[str]:
    """Cut at the commas that are not inside brackets."""
    items, depth, begin = list[str](), 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth < 0:
            raise _malformed(whole, "closes a bracket that was not opened")
        if depth > _MAX_DEPTH:
            raise _malformed(whole, "has too many brackets inside brackets")
        if char == "," and depth == 0:
            items.append(text[begin:at])
            begin = at + 1
    if depth:
        raise _malformed(whole, "leaves a bracket open")
    items.append(text[begin:])
    if not all(items):
        raise _malformed(whole, "has an empty name")
    return items


def _expand_item(item: str, whole: str) -> list[str]:
    """One item: plain text and brackets, one after the other; the last bracket turns fastest."""
    choices = [_expand_part(part, whole) for part in _parts(item)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MAX_NAMES:
        raise _too_many(whole)
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def _parts(item: str) -> Iterator[str]:
    """Cut `r[1-2]n[1,3]` into `r`, `[1-2]`, `n`, `[1,3]`; brackets inside brackets stay together."""
    depth, begin = 0, 0
    for at, char in enumerate(item):
        if char == "[":
            if depth == 0 and at > begin:
                yield item[begin:at]
                begin = at
            depth += 1
        elif char == "]":
            depth -= 1
            if depth == 0:
                yield item[begin : at + 1]
                begin = at + 1
    if begin < len(item):
        yield item[begin:]


def _expand_part(part: str, whole: str) -> list[str]:
    if part.startswith("["):
        inside = part[1:-1]
        return _gather((_expand_inner(item, whole) for item in _split(inside, whole)), whole)
    if not _PLAIN.fullmatch(part):
        raise _malformed(whole, "has a space in a name")
    return [part]


def _expand_inner(item: str, whole: str) -> list[str]:
    """What stands between the commas of a bracket: a number, a range, or a list of its own."""
    if match := _RANGE.fullmatch(item):
        return _expand_range(match[1], match[2], whole)
    if "[" in item:
        return _expand_item(item, whole)
    if "-" in item or not _PLAIN.fullmatch(item):
        raise _malformed(whole, f"has {item!r} where a range belongs")
    return [item]


def _expand_range(first: str, last: str, whole: str) -> list[str]:
    """`08-11` counts with the zeros of its first number."""
    begin, end, width = int(first), int(last), len(first)
    if end < begin:
        raise _malformed(whole, f"has a range that ends before it begins: {first}-{last}")
    if end - begin >= MAX_NAMES:
        raise _too_many(whole)
    return [str(number).zfill(width) for number in range(begin, end + 1)]


def _too_many(text: str) -> ValueError:
    return _malformed(text, f"stands for more than {MAX_NAMES} names")


def _malformed(text: str, why: str) -> ValueError:
    shown = text if len(text) <= 80 else f"{text[:79]}…"
    return ValueError(f"{shown!r} is not a list of hosts: it {why}")


def fold_hostlist(names: Iterable[str]) -> str:
    """Write names in the short form; expanding it gives the same names in the same order."""
    split = [_number_of(name) for name in names]
    groups = itertools.groupby(split, key=lambda pair: (pair[0], bool(pair[1])))
    return ",".join(
        _fold_group(prefix, [digits for _, digits in group]) for (prefix, _), group in groups
    )


def _number_of(name: str) -> tuple[str, str]:
    if not _PLAIN.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a host")
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _fold_group(prefix: str, numbers: list[str]) -> str:
    if not numbers[0] or len(numbers) == 1:
        return ",".join(prefix + digits for digits in numbers)
    ranges = [first if first == last else f"{first}-{last}" for first, last in _fold_runs(numbers)]
    return f"{prefix}[{','.join(ranges)}]"


def _fold_runs(numbers: list[str]) -> list[tuple[str, str]]:
    """Neighbours that count up by one, with the zeros of the first, become one range."""
    runs: list[tuple[str, str]] = []
    for digits in numbers:
        if runs:
            first, last = runs[-1]
            if digits == str(int(last) + 1).zfill(len(first)):
                runs[-1] = (first, digits)
                continue
        runs.append((digits, digits))
    return runs
