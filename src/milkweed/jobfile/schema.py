"""The JSON Schema of job files, for editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import MilkweedError
from ..options import OptionField, OptionTable, OptionType
from ..spec import MAX_NAME
from .keys import BLOCKS, CODE, LIFETIME, MESH, TOP, Backends, OptionsOf, make_backends

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": MAX_NAME}
_MESH_NAME = {"pattern": "^[A-Za-z][A-Za-z0-9_-]*$", "maxLength": MAX_NAME}
_SIZE = r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTkmgt][Ii]?)?[Bb]?\s*$"
_DURATION = r"^([0-9]+(\.[0-9]+)?[smhd])+$|^([0-9]+-)?[0-9]+:[0-5]?[0-9]:[0-5]?[0-9]$"
_TEXTS = {"type": "array", "items": {"type": "string"}}

_TYPES: dict[OptionType, dict[str, Any]] = {
    "text": {"type": "string", "minLength": 1},
    "folder": {"type": "string", "minLength": 1},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "size": {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _SIZE}],
        "examples": ["512Mi", "16Gi", "200GB"],
    },
    "duration": {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "string", "pattern": _DURATION},
        ],
        "examples": ["90s", "1h30m", "12:00:00"],
    },
    "texts": _TEXTS,
    "words": {"anyOf": [{"type": "string", "minLength": 1}, {**_TEXTS, "minItems": 1}]},
    "env": {
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
        "additionalProperties": {"type": "string"},
    },
    "data": {},
}


def make_schema(
    *, options_of: OptionsOf | None = None, backends: Sequence[str] | None = None
) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of job files, with a block for every backend."""
    known = make_backends(options_of, backends)
    properties = _make_properties(TOP)
    properties["name"] |= _NAME
    if known.names:
        properties["on"]["enum"] = list(known.names)
    properties["meshes"] = _make_meshes()
    properties["code"] = _make_block(CODE, BLOCKS["code"])
    properties["lifetime"] = _make_block(LIFETIME, BLOCKS["lifetime"])
    properties |= _make_backend_blocks(known)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "milkweed job file",
        "description": "A job: named meshes of hosts, and the backend that gives them.",
        "type": "object",
        "properties": properties,
        "required": ["name", "on", "meshes"],
        "additionalProperties": False,
    }


def _make_backend_blocks(known: Backends) -> dict[str, Any]:
    names = (name for name in known.names if name not in TOP and name not in BLOCKS)
    return {name: _make_backend_block(name, known) for name in names}


def _make_backend_block(name: str, known: Backends) -> dict[str, Any]:
    try:
        table = known.options_of(name)
    except MilkweedError as error:  # one broken backend must not take the others' help away
        return {"description": error.what}
    return _make_block(table or {}, f"Used with `on: {name}`.")


def _make_meshes() -> dict[str, Any]:
    mesh = _make_block(MESH, "The hosts of one mesh.")
    count = {"type": "integer", "minimum": 1, "description": MESH["hosts"].help}
    return {
        "description": BLOCKS["meshes"],
        "type": "object",
        "minProperties": 1,
        "propertyNames": _MESH_NAME,
        "additionalProperties": {"anyOf": [count, {**mesh, "type": "object"}]},
    }


def _make_block(table: OptionTable, help_text: str) -> dict[str, Any]:
    block: dict[str, Any] = {
        "description": help_text,
        "type": ["object", "null"],
        "properties": _make_properties(table),
        "additionalProperties": False,
    }
    if required := [key for key, field in table.items() if field.required]:
        block["required"] = required
    return block


def _make_properties(table: OptionTable) -> dict[str, Any]:
    return {key: _make_property(field) for key, field in table.items()}


def _make_property(field: OptionField) -> dict[str, Any]:
    found: dict[str, Any] = {"description": field.help, **_TYPES[field.type]}
    if field.choices:
        found["enum"] = list(field.choices)
    if field.default is not None:
        found["default"] = field.default
    if field.minimum is not None:
        found["minimum"] = field.minimum
    return found
