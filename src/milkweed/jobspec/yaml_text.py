"""Plain data as YAML 1.2 that people read; scripts stay readable, everything else is one line a value."""

from __future__ import annotations

import json
import re

from ..options import Data

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
"""Texts that some reader of YAML takes for something else."""
_BLOCK = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff][^\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]*[^\s\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]\n"
)
"""Texts that can stand below their key as they are: several lines, one newline at the end."""
_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def render_yaml(document: dict[str, Data]) -> str:
    """A document as text."""
    return "\n".join([*_lines(document), ""])


def _lines(value: Data) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _under(f"{_scalar(key)}:", inner)]
    if isinstance(value, list) and value:
        return [line for inner in value for line in _element(inner)]
    return [_scalar(value)]


def _under(head: str, value: Data) -> list[str]:
    """A key with its value: below it, or beside it where it is short."""
    if isinstance(value, str) and "\n" in value and _BLOCK.fullmatch(value):
        return [f"{head} |", *("  " + line if line else "" for line in value[:-1].split("\n"))]
    if not value or not isinstance(value, dict | list) or _is_words(value):
        return [f"{head} {_flow(value)}"]
    indent = "  " if isinstance(value, dict) else ""
    return [head, *(indent + line for line in _lines(value))]


def _is_words(value: Data) -> bool:
    """Whether a list is a short one of texts, such as a command."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return False
    return sum(len(str(item)) + 2 for item in value) <= 70


def _flow(value: Data) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    return _scalar(value)


def _element(value: Data) -> list[str]:
    first, *rest = [_flow(value)] if _is_words(value) else _lines(value)
    return [f"- {first}", *(f"  {line}" if line else "" for line in rest)]


def _scalar(value: Data) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _is_word(value):
        return value
    return _UNSEEN.sub(_escape, json.dumps(value, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _is_word(value: str) -> bool:
    return value.lower().lstrip(".") in _WORDS or not re.search("[A-Za-z]", value)
