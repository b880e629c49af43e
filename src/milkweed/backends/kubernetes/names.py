"""What things may be called in Kubernetes: meshes, namespaces, objects; and selectors of labels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...errors import SpecError
from ...labels import check_dns_label, check_label_key, check_label_value, check_labels

MAX_NAME = 63
"""The longest name that is a label, too: of services, pods' hosts and the like."""
MAX_SET_NAME = 52
"""The longest name of a StatefulSet: its pods carry it in a label, with a hash of ten characters behind it."""
_HASH = 8
_MESH_ROOM = MAX_SET_NAME - 2 * (_HASH + 1)


# Names


def check_mesh_name(name: object, *, field: str = "mesh name") -> str:
    """Refuse names of meshes that could not be hosts' names: RFC 1123, and what Monarch asks for."""
    problem = _mesh_problem(name)
    if problem:
        raise SpecError(
            f"{field}: {name!r} {problem}",
            hint="use lowercase letters and digits, a letter first, at most 63 characters",
        )
    return str(name)


def check_set_name(name: object, *, field: str) -> str:
    """Refuse names of meshes of which no pods could be made, though the object itself could have them."""
    found = check_mesh_name(name, field=field)
    if len(found) > MAX_SET_NAME:
        raise SpecError(
            f"{field}: {found!r} has {len(found)} characters, at most {MAX_SET_NAME} where pods are made of it",
            hint="a label of each pod has the name and a hash: write a shorter one, or leave it out",
        )
    return found


def _mesh_problem(name: object) -> str:
    if not isinstance(name, str):
        return "is not text"
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters: an RFC 1123 label has at most {MAX_NAME}"
    if not re.fullmatch(r"[a-z0-9]*", name):
        return "has more than lowercase letters and digits: Monarch makes a host name of it"
    return (
        "" if name[0].isalpha() else "does not start with a letter: Monarch makes a host name of it"
    )


def check_namespace(name: object, *, field: str = "namespace") -> str:
    """Refuse what can be no namespace."""
    return check_dns_label(name, field=field)


def make_object_name(name: str, *, suffix: str = "", longest: int = MAX_NAME) -> str:
    """The name of an object for a job's name; names that differ give names that differ.

    What the name of an object cannot have is replaced, what is too long is cut, and then a short hash of the
    whole is added. It starts with a letter, so that it can be a service's, too.
    """
    room = longest - len(suffix)
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"mw-{plain}".rstrip("-")
    if plain != name or len(plain) > room:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
        plain = f"{plain[: room - _HASH - 1].rstrip('-')}-{digest}"
    return check_dns_label(plain + suffix, field="name")


def make_mesh_name(name: str, apply_id: str) -> str:
    """The name of a MonarchMesh for a mesh of one job: names that differ, and jobs, give names that differ."""
    plain = re.sub(r"[^a-z0-9]+", "", name.lower()).lstrip("0123456789")[:_MESH_ROOM]
    if plain != name:
        plain += "x" + hashlib.sha256(name.encode()).hexdigest()[:_HASH]
    return check_mesh_name(f"{plain}x{apply_id[:_HASH]}")


# Selectors

Operator: TypeAlias = Literal["=", "!=", "in", "notin", "exists", "!", ">", "<"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that labels must be."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.operator in {"in", "notin"}:
            return f"{self.key} {self.operator} ({','.join(self.values)})"
        if self.operator in {"exists", "!"}:
            return self.key if self.operator == "exists" else f"!{self.key}"
        return f"{self.key}{self.operator}{self.values[0]}"


Selector: TypeAlias = tuple[Requirement, ...]

_WORD = r"[^\s=!<>(),]+"
_REQUIREMENT = re.compile(
    rf"!\s*(?P<absent>{_WORD})"
    rf"|(?P<key>{_WORD})(?:"
    rf"\s*(?P<sign>==|=|!=|>|<)\s*(?P<value>(?:{_WORD})?)"
    rf"|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*[^()\s][^()]*)\))?"
)
_COMMA = re.compile(r",(?![^()]*\))")  # not one between brackets


def parse_selector(text: object, *, field: str = "label_selector") -> Selector:
    """Read `a=b,c in (x,y),!d`; SpecError names the part that is wrong."""
    if not isinstance(text, str) or not text.strip():
        raise SpecError(
            f"{field}: {text!r} is not a label selector", hint='write "app=trainer,tier in (a,b)"'
        )
    return tuple(_parse_requirement(part.strip(), field) for part in _COMMA.split(text))


def _parse_requirement(part: str, field: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(part)
    if match is None:
        raise SpecError(
            f"{field}: {part!r} is not a requirement of a label selector",
            hint="write a=b, a!=b, a in (x,y), a notin (x,y), a, !a, a>1 or a<1, with commas between them",
        )
    made = _make_requirement(match)
    check_label_key(made.key, field=field)
    for value in made.values:
        check_label_value(value, field=field)
    if made.operator in {">", "<"} and _whole(made.values[0]) is None:
        raise SpecError(f"{field}: {part!r} does not compare with a whole number", hint="write a>1")
    return made


def _make_requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(match["absent"], "!")
    if match["set"]:
        values = dict.fromkeys(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], match["set"], tuple(values))  # pyright: ignore[reportArgumentType] the pattern has no other
    if match["sign"]:
        sign = match["sign"].replace("==", "=")
        return Requirement(match["key"], sign, (match["value"],))  # pyright: ignore[reportArgumentType] likewise
    return Requirement(match["key"], "exists")


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else None


def make_selector(labels: Mapping[str, str], *, field: str = "selector") -> str:
    """The selector of what has all of these labels: `{"app": "trainer"}`."""
    found = check_labels(labels, field=field)
    if not found:
        raise SpecError(
            f"{field}: it is empty, and would mean every pod of the namespace",
            hint="say a label that only the job's pods have",
        )
    return render_selector(tuple(Requirement(key, "=", (found[key],)) for key in sorted(found)))


def render_selector(selector: Selector) -> str:
    """Write a selector as the API takes it."""
    return ",".join(str(requirement) for requirement in selector)
