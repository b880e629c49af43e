"""What is asked at the endpoint, and what is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .admission import Violation
from .reading import mapping

LARGEST = 2 * 1024 * 1024
"""The largest request, in bytes: a mesh, and Secrets of a mebibyte in base64."""


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks."""

    method: str
    path: str
    token: str = field(default="", repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Answer:
    """What they are told, and what is written down of it."""

    status: int
    document: Mapping[str, Any] = field(repr=False)
    audit: dict[str, Any] = field(default_factory=dict[str, Any])


class Deny(Exception):  # noqa: N818  an answer, not an accident
    """The answer is no."""

    def __init__(self, status: int, error: str, violations: Sequence[Violation] = ()) -> None:
        super().__init__(error)
        self.status = status
        self.document: dict[str, Any] = {"error": error}
        if violations:
            self.document["violations"] = [
                {"rule": one.rule, "field": one.field, "text": one.text} for one in violations
            ]


class Missing(Deny):
    """There is no such thing that the caller asked for; said in so many words, as proxies say 404 of anything."""

    def __init__(self, error: str) -> None:
        super().__init__(404, error)
        self.document["missing"] = True


def parse_body(body: bytes) -> dict[str, Any]:
    """The object that a request carries."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Deny(400, "the body is no JSON object")
    return mapping(found)
