"""The JSON Schema of job files: what editors are told agrees with what milkweed reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from milkweed.errors import BackendError
from milkweed.jobfile import make_schema
from milkweed.jobfile.keys import CODE, LIFETIME, MESH, TOP
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.options import OptionField

SCHEMA = make_schema(options_of=BUILTIN_OPTIONS.get, backends=sorted(BUILTIN_OPTIONS))
SMALL: dict[str, Any] = {"name": "demo", "on": "process", "meshes": {"workers": 2}}
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def is_kind(value: Any, kind: str) -> bool:
    is_number_for_bool = isinstance(value, bool) and kind in ("integer", "number")
    return isinstance(value, KINDS[kind]) and not is_number_for_bool


def accepts(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value fits, for the few keywords of JSON Schema that job files need."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    checks = [not kinds or any(is_kind(value, kind) for kind in kinds)]
    checks.append("enum" not in schema or value in schema["enum"])
    if "anyOf" in schema:
        checks.append(any(accepts(option, value) for option in schema["anyOf"]))
    if isinstance(value, str):
        checks.append(re.search(schema.get("pattern", ""), value) is not None)
        checks.append(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1e9))
    if is_kind(value, "number"):
        checks.append(value >= schema.get("minimum", value))
        checks.append(value > schema.get("exclusiveMinimum", value - 1))
    if isinstance(value, list):
        checks.append(len(value) >= schema.get("minItems", 0))
        checks += [accepts(schema.get("items", {}), item) for item in value]
    if isinstance(value, dict):
        checks.append(accepts_mapping(schema, value))
    return all(checks)


def accepts_mapping(schema: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    checks = [len(value) >= schema.get("minProperties", 0)]
    checks += [key in value for key in schema.get("required", [])]
    for key, item in value.items():
        checks.append(accepts(schema.get("propertyNames", {}), key))
        rule = properties.get(key, others)
        checks.append(rule is not False and accepts(rule, item))
    return all(checks)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"meshes": {"a": {"hosts": 1, "cpus": 1, "gpus": 0, "memory": "64Gi", "disk": 10}}},
        {"env": {"A": "1"}, "code": {"workdir": ".", "include": ["*"]}},
        {"env": None, "code": None, "lifetime": None, "process": None},
        {"lifetime": {"idle_timeout": "1h30m", "time_limit": "1-12:00:00"}},
        {"lifetime": {"idle_timeout": 0.5}},
        {"run": "python x.py", "on_change": "replace"},
        {"run": ["python", "x.py"], "process": {"transport": "tls", "stream_logs": False}},
    ],
)
def test_the_schema_accepts_good_jobs(more: dict[str, Any]) -> None:
    """An editor marks nothing in a file that milkweed reads."""
    assert accepts(SCHEMA, SMALL | more)


@pytest.mark.parametrize(
    "more",
    [
        {"name": "a b"},
        {"name": "x" * 64},
        {"on": "procss"},
        {"meshes": {}},
        {"meshes": {"a": 0}},
        {"meshes": {"a": {}}},
        {"meshes": {"1a": 1}},
        {"meshes": {"a": {"hosts": 1, "cpu": 1}}},
        {"meshes": {"a": {"hosts": True}}},
        {"meshes": {"a": {"hosts": 1, "memory": "64Q"}}},
        {"env": {"A": 1}},
        {"env": {"1A": "x"}},
        {"lifetime": {"time_limit": "soon"}},
        {"lifetime": {"time_limit": 0}},
        {"run": []},
        {"on_change": "asq"},
        {"process": {"transport": "tcp"}},
        {"process": {"no_such": 1}},
        {"no_such": 1},
    ],
)
def test_the_schema_refuses_bad_jobs(more: dict[str, Any]) -> None:
    """An editor marks what milkweed would refuse."""
    assert not accepts(SCHEMA, SMALL | more)


def test_the_schema_is_json_of_the_newest_draft() -> None:
    """The schema can be written to a file and names the draft it follows."""
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["required"] == ["name", "on", "meshes"]


def test_every_key_is_described() -> None:
    """An editor can explain every key of every block."""

    def walk(schema: Mapping[str, Any]) -> None:
        for key, inner in schema.get("properties", {}).items():
            assert inner["description"], key
            walk(inner)

    walk(SCHEMA)
    mesh = SCHEMA["properties"]["meshes"]["additionalProperties"]["anyOf"][1]
    walk(mesh)
    assert set(mesh["properties"]) == set(MESH)
    assert set(SCHEMA["properties"]) == {*TOP, "meshes", "code", "lifetime", *BUILTIN_OPTIONS}
    assert set(SCHEMA["properties"]["code"]["properties"]) == set(CODE)
    assert set(SCHEMA["properties"]["lifetime"]["properties"]) == set(LIFETIME)


def test_defaults_and_choices_are_told() -> None:
    """An editor offers the choices of a key and shows its default."""
    transport = SCHEMA["properties"]["process"]["properties"]["transport"]
    assert (transport["enum"], transport["default"]) == (["ipc", "tls"], "ipc")
    known = ["fake", "flux", "kubernetes", "local", "process", "slurm"]
    assert SCHEMA["properties"]["on"]["enum"] == known
    assert SCHEMA["properties"]["lifetime"]["properties"]["idle_timeout"]["default"] == 3600.0


def test_a_backend_cannot_take_a_key_of_the_file() -> None:
    """A plugin that is called like a key of job files does not change what the key means."""
    tables = {"env": {"x": OptionField("int", "X.")}, "other": {}}
    schema = make_schema(options_of=tables.get, backends=["env", "other"])
    assert schema["properties"]["env"] == SCHEMA["properties"]["env"]
    assert "other" in schema["properties"]


def test_a_broken_backend_leaves_the_others_described() -> None:
    """A backend that cannot be loaded is said to be so; the schema is made all the same."""

    def options_of(name: str) -> Mapping[str, OptionField] | None:
        if name == "broken":
            raise BackendError("the backend 'broken' is broken")
        return BUILTIN_OPTIONS.get(name)

    schema = make_schema(options_of=options_of, backends=["broken", *sorted(BUILTIN_OPTIONS)])
    assert schema["properties"].pop("broken") == {"description": "the backend 'broken' is broken"}
    assert schema["properties"]["process"] == SCHEMA["properties"]["process"]
