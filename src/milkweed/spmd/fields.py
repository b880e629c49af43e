"""What a class of torchx says besides what milkweed knows."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import SpecError


def check_fields(thing: Any, known: frozenset[str], where: str) -> None:
    """Refuse what a later torchx, or a class of somebody's own, may say besides; a default is said by nobody."""
    defaults = find_defaults(thing)
    for name, value in getattr(thing, "__dict__", {}).items():
        unsaid = not value or name.startswith("_") or (name in defaults and value == defaults[name])
        if name not in known and not unsaid:
            raise SpecError(f"{where}.{name}: milkweed does not know what it means")


def find_defaults(thing: Any) -> dict[str, Any]:
    """What the fields of a dataclass are when nothing is said."""
    if not dataclasses.is_dataclass(thing):
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(thing):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found
