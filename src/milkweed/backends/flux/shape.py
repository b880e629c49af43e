"""From a declaration to what is asked of Flux: meshes of one shape share a component, which is one job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SpecError
from ...option_tables import FLUX_MESH_OPTIONS
from ...options import check_options
from ...spec import JobSpec, MeshSpec, suggest
from ...units import parse_duration

_NO_LIMIT = frozenset({"unlimited", "inf", "infinity"})
_MAX_LIMIT_S = 100.0 * 365 * 86400
_NAME = re.compile(r"[\w.@:/+-]+", re.ASCII)
_PROPERTY = re.compile(r"\^?[^!&'\"^`|()\s\x00-\x1f\x7f]+")
"""What may be in the name of a property; `^` before it means that nodes must not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one component asks of Flux for each of its hosts."""

    queue: str | None = None
    bank: str | None = None
    properties: tuple[str, ...] = ()
    time_limit_s: float | None = None
    cores: int | None = None
    gpus: int | None = None
    exclusive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component: a shape, and the hosts that have it, in the order of Flux's tasks."""

    shape: Shape
    hosts: tuple[tuple[str, int], ...]
    """Mesh and rank of each."""

    @property
    def field(self) -> str:
        """What the user wrote for it, such as `meshes.trainers`."""
        return f"meshes.{'+'.join(dict.fromkeys(mesh for mesh, _rank in self.hosts))}"


def make_parts(spec: JobSpec) -> list[Part]:
    """Cut a job into components: one when all hosts are alike."""
    own = mesh_options(spec)
    parts: dict[Shape, list[tuple[str, int]]] = {}
    for mesh in spec.meshes:
        shape = _make_shape(spec, mesh, {**spec.options, **own.get(mesh.name, {})})
        parts.setdefault(shape, []).extend((mesh.name, rank) for rank in range(mesh.hosts))
    return [Part(shape=shape, hosts=tuple(hosts)) for shape, hosts in parts.items()]


def _make_shape(spec: JobSpec, mesh: MeshSpec, said: Mapping[str, Any]) -> Shape:
    """What a host of a mesh needs: the mesh's own words, then the job's."""
    wants = mesh.resources
    _refuse_unknown_wants(mesh)
    return Shape(
        queue=_name(said.get("queue"), "flux.queue"),
        bank=_name(said.get("bank"), "flux.bank"),
        properties=_properties(said.get("properties") or ()),
        time_limit_s=_time_limit(spec),
        cores=wants.cpus if wants.cpus is not None else said.get("cpus_per_host"),
        gpus=wants.gpus if wants.gpus is not None else said.get("gpus_per_host"),
        exclusive=said.get("exclusive", True),
    )


def _refuse_unknown_wants(mesh: MeshSpec) -> None:
    """A jobspec of Flux has cores and GPUs; nothing that was asked for is dropped silently."""
    wants = mesh.resources
    said = {"memory": wants.memory_bytes, "disk": wants.disk_bytes, "gpu_type": wants.gpu_type}
    for key, value in said.items():
        if value is not None:
            raise SpecError(
                f"meshes.{mesh.name}.{key}: Flux gives cores and GPUs, and cannot be asked for this",
                hint="take it out; choose nodes by their properties, or by a queue",
            )


def mesh_options(spec: JobSpec) -> dict[str, dict[str, Any]]:
    """The block's own words for single meshes, checked."""
    given: Any = spec.options.get("meshes") or {}
    _check_mapping(given, "flux.meshes")
    for name, words in given.items():
        where = f"flux.meshes.{name}"
        _check_mapping(words, where)
        if name not in spec.sizes:
            hint = suggest(name, spec.sizes)
            raise SpecError(f"flux.meshes: {name!r} is not a mesh of this job", hint=hint)
        check_options(FLUX_MESH_OPTIONS, words, where=where)
    return {
        name: {key: value for key, value in words.items() if value is not None}
        for name, words in given.items()
    }


def _check_mapping(value: object, where: str) -> None:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: {value!r} is not a mapping", hint="write {queue: debug}")


def _name(text: str | None, field: str) -> str | None:
    if text is not None and not _NAME.fullmatch(text):
        raise SpecError(f"{field}: {text!r} is not a name", hint="letters, digits and .@:/+- are")
    return text


def _properties(given: Any) -> tuple[str, ...]:
    for word in given:
        if not _PROPERTY.fullmatch(word):
            raise SpecError(
                f"flux.properties: {word!r} is not the name of a property",
                hint="write names, or ^name for nodes that do not have it",
            )
    return tuple(given)


def _time_limit(spec: JobSpec) -> float | None:
    text = spec.options.get("time_limit")
    return spec.lifetime.time_limit_s if text is None else parse_time_limit(text)


def parse_time_limit(text: str) -> float | None:
    """Read a time limit in seconds; None for `unlimited`. A number alone is minutes, as for `flux submit`."""
    clean = text.strip().lower()
    if clean in _NO_LIMIT:
        return None
    try:
        seconds = float(clean) * 60 if _is_number(clean) else parse_duration(text, field="limit")
    except SpecError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_LIMIT_S:
        shown = repr(text)
        raise SpecError(
            f"flux.time_limit: {shown if len(shown) <= 60 else shown[:59] + '…'} is not a time limit",
            hint="write minutes as a number, or 90m, 12h, 2d, 1:30:00 or unlimited",
        )
    return seconds


def _is_number(text: str) -> bool:
    return text.isascii() and len(text) < 20 and text.replace(".", "", 1).isdecimal()
