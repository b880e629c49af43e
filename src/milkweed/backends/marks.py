"""What milkweed writes into a scheduler's job, to find it again without any file."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(
    r"milkweed:1:([A-Za-z0-9_.-]+):(\d{1,9}):(\d{1,9}):([^|:\x00-\x1f\x7f]+)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose a scheduler's job is, and which component of it."""

    apply_id: str
    generation: int
    component: int
    name: str


def render_sign(apply_id: str) -> str:
    """What the marks of an allocation begin with."""
    return f"milkweed:1:{apply_id}"


def render_mark(mark: Mark) -> str:
    """Write a mark as text."""
    text = f"{render_sign(mark.apply_id)}:{mark.generation}:{mark.component}:{mark.name}"
    if parse_mark(text) != mark:
        raise ValueError(f"{mark!r} cannot be written as a mark")
    return text


def parse_mark(comment: str) -> Mark | None:
    """Read a mark; None when a text is not one of milkweed's."""
    match = _MARK.fullmatch(comment)
    if match is None:
        return None
    return Mark(match[1], int(match[2]), int(match[3]), match[4])
