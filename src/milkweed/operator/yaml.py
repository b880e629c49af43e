"""Objects as YAML that people read and kubectl takes; as little of YAML as that needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

_PLAIN = re.compile(r"[A-Za-z_/.][A-Za-z0-9_./-]*(?:[:=][A-Za-z0-9_./-]+)*")
_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
"""Texts that some reader of YAML takes for something else."""


def render_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Objects one after the other, as `kubectl apply -f -` takes them."""
    return "".join("\n".join(["---", *_lines(found), ""]) for found in objects)


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        pairs = cast("Mapping[str, Any]", value).items()
        return [line for key, inner in pairs for line in _under(f"{_scalar(key)}:", inner)]
    if isinstance(value, list) and value:
        return [line for inner in cast("list[Any]", value) for line in _element(inner)]
    return [_scalar(value)]


def _under(head: str, value: Any) -> list[str]:
    """A key with its value: below it, or beside it where it is a word."""
    lines = _lines(value)
    if not value or not isinstance(value, Mapping | list):
        return [f"{head} {lines[0]}"]
    indent = "  " if isinstance(value, Mapping) else ""
    return [head, *(indent + line for line in lines)]


def _element(value: Any) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _is_word(value):
        return value
    return _UNSEEN.sub(_escape, json.dumps(value, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _is_word(value: str) -> bool:
    return value.lower().lstrip(".") in _WORDS or not re.search("[A-Za-z]", value)
