"""Reading objects of the cluster: what is missing is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

Object = Mapping[str, Any]
"""An object of the cluster, as JSON has it."""
Key = tuple[str, str]
"""The namespace and the name of a mesh."""


def pick(found: Any, *path: str) -> Any:
    """What lies at a path; None when there is nothing."""
    for word in path:
        if not isinstance(found, Mapping):
            return None
        found = cast("Object", found).get(word)
    return found


def mapping(found: Any, *path: str) -> dict[str, Any]:
    """The mapping at a path, to read or to change at will; empty when there is none."""
    value = pick(found, *path)
    return dict(cast("Object", value)) if isinstance(value, Mapping) else {}


def items(found: Any, *path: str) -> list[Any]:
    """The list at a path; empty when there is none."""
    value = pick(found, *path)
    return list(cast("list[Any]", value)) if isinstance(value, list) else []


def text(found: Any, *path: str) -> str:
    """The text at a path; empty when there is none."""
    value = pick(found, *path)
    return "" if value is None else str(value)


def number(found: Any, *path: str) -> int:
    """The number at a path; 0 when there is none."""
    value = pick(found, *path)
    return value if isinstance(value, int) else 0


def name_of(found: Object) -> str:
    """An object's name."""
    return text(found, "metadata", "name")


def namespace_of(found: Object) -> str:
    """The namespace an object is in."""
    return text(found, "metadata", "namespace")


def uid_of(found: Object) -> str:
    """What tells an object from an earlier one of the same name."""
    return text(found, "metadata", "uid")


def key_of(found: Object) -> Key:
    """Where an object is."""
    return namespace_of(found), name_of(found)


def is_leaving(found: Object) -> bool:
    """Whether an object is being deleted."""
    return bool(text(found, "metadata", "deletionTimestamp"))
