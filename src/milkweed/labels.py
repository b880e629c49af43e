"""How Kubernetes lets things be named: names, labels and annotations, each with the rule it breaks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import SpecError

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
MAX_ANNOTATIONS = 256 * 1024

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

_LABEL_RULE = "lowercase letters, digits and '-', with a letter or a digit at both ends"
_SUBDOMAIN_RULE = f"{_LABEL_RULE}; parts are separated by '.'"
_VALUE_RULE = "letters, digits, '-', '_' and '.', with a letter or a digit at both ends"


def check_dns_label(name: object, *, field: str) -> str:
    """Refuse what is no RFC 1123 label, such as a namespace must be."""
    return _check(name, _LABEL, MAX_LABEL, "an RFC 1123 label", _LABEL_RULE, field=field)


def check_dns_subdomain(name: object, *, field: str) -> str:
    """Refuse what is no RFC 1123 subdomain, such as the names of most objects must be."""
    kind = "an RFC 1123 subdomain"
    return _check(name, _SUBDOMAIN, MAX_SUBDOMAIN, kind, _SUBDOMAIN_RULE, field=field)


def check_label_key(key: object, *, field: str) -> str:
    """Refuse what is no key of a label: `team`, or `example.com/team`."""
    text = _text(key, "a label key", field)
    prefix, slash, name = text.rpartition("/")
    if slash:
        kind = "the prefix of a label key, an RFC 1123 subdomain"
        _check(prefix, _SUBDOMAIN, MAX_SUBDOMAIN, kind, _SUBDOMAIN_RULE, field=field)
    _check(name, _VALUE, MAX_LABEL, "the name of a label key", _VALUE_RULE, field=field)
    return text


def check_annotation_key(key: object, *, field: str) -> str:
    """Refuse what is no key of an annotation; as for labels, and capitals are allowed in the prefix."""
    text = _text(key, "an annotation key", field)
    check_label_key(text.lower(), field=field)
    return text


def check_label_value(value: object, *, field: str) -> str:
    """Refuse what no label can have; an empty text is fine."""
    if value == "":
        return ""
    return _check(value, _VALUE, MAX_LABEL, "a label value", _VALUE_RULE, field=field)


def check_labels(labels: object, *, field: str) -> dict[str, str]:
    """Refuse labels that no object can have."""
    found = _mapping(labels, field)
    for key, value in found.items():
        check_label_key(key, field=field)
        check_label_value(value, field=f"{field}.{key}")
    return found


def check_annotations(annotations: object, *, field: str) -> dict[str, str]:
    """Refuse annotations that no object can have."""
    found = _mapping(annotations, field)
    for key, value in found.items():
        check_annotation_key(key, field=field)
        _text(value, "text", f"{field}.{key}")
    size = sum(len(word.encode()) for pair in found.items() for word in pair)
    if size > MAX_ANNOTATIONS:
        raise SpecError(f"{field}: {size} bytes of annotations; an object has at most 256 KiB")
    return found


def _mapping(value: object, field: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{field}: {_shown(value)} is not a mapping", hint='write {"team": "ml"}')
    return dict(value)  # pyright: ignore[reportUnknownArgumentType] the checks follow


def _text(value: object, kind: str, field: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{field}: {_shown(value)} is not {kind}", hint="put it in quotes")
    return value


def _check(
    name: object, pattern: re.Pattern[str], longest: int, kind: str, rule: str, *, field: str
) -> str:
    text = _text(name, kind, field)
    problem = _problem(text, pattern, longest)
    if problem:
        raise SpecError(
            f"{field}: {_shown(text)} is not {kind}: it {problem}",
            hint=f"use {rule}; at most {longest} characters",
        )
    return text


def _problem(text: str, pattern: re.Pattern[str], longest: int) -> str:
    if not text:
        return "is empty"
    if len(text) > longest:
        return f"has {len(text)} characters"
    return "" if pattern.fullmatch(text) else "has characters that are not allowed there"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…"
