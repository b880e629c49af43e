"""Whether an object is as it should be, though the cluster has filled in what nobody said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

from ..errors import SpecError
from ..quantities import parse_quantity

_NAMES = ("name", "containerPort", "mountPath", "key", "topologyKey", "devicePath", "ip")
"""What tells the elements of a list apart, the surest first."""


def find_differences(seen: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """The places where something wanted is not there; what others added does not count."""
    if isinstance(wanted, Mapping):
        yield from _in_mapping(seen, cast("Mapping[str, Any]", wanted), path)
    elif isinstance(wanted, list):
        yield from _in_list(seen, cast("list[Any]", wanted), path)
    elif not _is_same(seen, wanted):
        yield path


def _in_mapping(seen: Any, wanted: Mapping[str, Any], path: str) -> Iterator[str]:
    if not isinstance(seen, Mapping):
        seen = {}
    known = cast("Mapping[str, Any]", seen)
    for key, value in wanted.items():
        yield from find_differences(known.get(key), value, f"{path}.{key}" if path else key)


def _in_list(seen: Any, wanted: Sequence[Any], path: str) -> Iterator[str]:
    known = cast("list[Any]", seen) if isinstance(seen, list) else []
    if name := _naming_key([*known, *wanted]):
        by_name = {element[name]: element for element in known}
        for element in wanted:
            word = element[name]
            yield from find_differences(by_name.get(word), element, f"{path}[{word}]")
    elif len(known) != len(wanted):
        yield path
    else:
        for index, element in enumerate(wanted):
            yield from find_differences(known[index], element, f"{path}[{index}]")


def _naming_key(elements: Sequence[Any]) -> str:
    """The key that all elements have, each with another value; empty when there is none."""
    if not elements or not all(isinstance(element, Mapping) for element in elements):
        return ""
    for name in _NAMES:
        if all(isinstance(element.get(name), str | int) for element in elements):
            return name
    return ""


def _is_same(seen: Any, wanted: Any) -> bool:
    """The cluster leaves out what is empty, and writes amounts in its own way."""
    if seen == wanted and isinstance(seen, bool) == isinstance(wanted, bool):
        return True
    if seen is None:
        return wanted in (None, "", 0, False)
    one, other = parse_amount(seen), parse_amount(wanted)
    return one is not None and one == other


def parse_amount(value: Any) -> Fraction | None:
    """An amount as Kubernetes writes it: `500m`, `1Gi`, `2e3`; None when it is something else."""
    try:
        return parse_quantity(value, field="amount")
    except SpecError:
        return None
