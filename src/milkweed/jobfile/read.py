"""From the plain data of a job file to a job, with all problems noted on the way."""

from __future__ import annotations

from typing import Any

from ..errors import MilkweedError, SpecError
from ..options import (
    Data,
    OptionTable,
    Path,
    Problems,
    describe,
    read_table,
    read_value,
    split_options,
    suggest_key,
)
from ..spec import (
    CodeSpec,
    JobSpec,
    Lifetime,
    MeshSpec,
    Resources,
    check_job_name,
    check_mesh_name,
    suggest,
)
from .keys import BLOCKS, CODE, LIFETIME, MESH, TOP, Backends

_MESHES_HINT = "write meshes: {workers: 2}"


def read_job(
    data: dict[str, Data], backends: Backends, problems: Problems, base: str
) -> tuple[JobSpec | None, str | None]:
    """Read a job and its `on_change`; the job is None when there were problems.

    Folders are seen from `base`.
    """
    found = read_table(TOP, {key: data[key] for key in data if key in TOP}, (), problems)
    parts: dict[str, Any] = {
        "meshes": _read_meshes(data.get("meshes"), problems),
        "code": _read_code(data.get("code"), problems, base),
        "lifetime": _read_lifetime(data.get("lifetime"), problems),
        "env": found.get("env", {}),
        "run": tuple(found.get("run", ())),
    }
    if "name" in found:
        with problems.at(("name",)):
            check_job_name(found["name"])
    if "on" in found:
        block = _read_block(found["on"], data, backends, problems, base)
        parts["options"], parts["client"] = block
    _check_other_blocks(data, found.get("on"), backends, problems)
    if problems:
        return None, None
    return _make_spec(found["name"], found["on"], parts, problems), found.get("on_change")


def _make_spec(
    name: str, backend: str, parts: dict[str, Any], problems: Problems
) -> JobSpec | None:
    """Make the job; what its own checks still find gets the place that their text names."""
    try:
        return JobSpec(name=name, backend=backend, **parts)
    except SpecError as error:
        where, _, message = error.what.partition(": ")
        problems.add(tuple(where.split(".")), message or where, error.hint)
        return None


def _read_meshes(data: Data, problems: Problems) -> tuple[MeshSpec, ...]:
    if data is None or data == {}:
        problems.add(("meshes",), "a job needs at least one mesh", _MESHES_HINT, at_key=True)
    elif not isinstance(data, dict):
        problems.add(("meshes",), f"{describe(data)} is not a mapping", _MESHES_HINT)
    else:
        found = [_read_mesh(name, value, problems) for name, value in data.items()]
        return tuple(mesh for mesh in found if mesh is not None)
    return ()


def _read_mesh(name: str, data: Data, problems: Problems) -> MeshSpec | None:
    path: Path = ("meshes", name)
    with problems.at(path, at_key=True):
        check_mesh_name(name)
    if isinstance(data, dict):
        found = read_table(MESH, data, path, problems)
    elif isinstance(data, int) and not isinstance(data, bool):
        found = {"hosts": read_value(MESH["hosts"], data, path, problems)}
    else:
        message = f"{describe(data)} is neither a number of hosts nor a mapping"
        hint = "write a number, or {hosts: 2, gpus: 8}"
        problems.add(path, "has no value" if data is None else message, hint)
        return None
    return _make_mesh(name, found)


def _make_mesh(name: str, found: dict[str, Any]) -> MeshSpec:
    return MeshSpec(
        name=name,
        hosts=found.get("hosts") or 1,  # missing or wrong: noted, so the mesh is never used
        resources=Resources(
            cpus=found.get("cpus"),
            gpus=found.get("gpus"),
            gpu_type=found.get("gpu_type"),
            memory_bytes=found.get("memory"),
            disk_bytes=found.get("disk"),
        ),
        env=found.get("env", {}),
    )


def _read_code(data: Data, problems: Problems, base: str) -> CodeSpec:
    found = read_table(CODE, data, ("code",), problems, base=base)
    return CodeSpec(
        workdir=found.get("workdir"),
        include=tuple(found.get("include", ())),
        exclude=tuple(found.get("exclude", ())),
    )


def _read_lifetime(data: Data, problems: Problems) -> Lifetime:
    found = read_table(LIFETIME, data, ("lifetime",), problems)
    return Lifetime(**{f"{key}_s": value for key, value in found.items()})


def _read_block(
    name: str, data: dict[str, Data], backends: Backends, problems: Problems, base: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    table = _find_table(name, backends, problems)
    if table is None:
        return {}, {}
    return split_options(table, read_table(table, data.get(name), (name,), problems, base=base))


def _find_table(name: str, backends: Backends, problems: Problems) -> OptionTable | None:
    try:
        table = backends.options_of(name)
    except MilkweedError as error:  # a backend that cannot be imported
        seen = f" ({error.seen})" if error.seen else ""
        problems.add(("on",), error.what + seen, error.hint)
        return None
    if table is None:
        hint = suggest(name, backends.names)
        problems.add(("on",), f"no backend is named {describe(name)}", hint)
    return table


def _check_other_blocks(
    data: dict[str, Data], on: str | None, backends: Backends, problems: Problems
) -> None:
    """Blocks of other backends wait for the day `on` names them: only their names are checked."""
    for key, value in data.items():
        if key in TOP or key in BLOCKS or key == on:
            continue
        if not backends.knows(key):
            known = dict.fromkeys([*TOP, *BLOCKS, *backends.names])
            problems.add((key,), "unknown key", suggest_key(key, known), at_key=True)
        elif not (value is None or isinstance(value, dict)):
            problems.add((key,), f"{describe(value)} is not a mapping")
