"""What a person declares: a job of named meshes, as frozen values with an explicit fingerprint."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .errors import SpecError

MAX_NAME = 63
_MESH_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

RESERVED_MESH_NAMES = frozenset(
    {
        # attributes of JobState: a mesh of that name could not be reached by attribute
        *("keys", "values", "items", "get"),
        *("query_engine", "query_engine_client", "telemetry_url", "dashboard_url", "admin_url"),
        *keyword.kwlist,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one host of a mesh needs; None means «not said»."""

    cpus: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSpec:
    """A named group of equal hosts."""

    name: str
    hosts: int
    resources: Resources = Resources()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSpec:
    """Which local code the hosts should have."""

    workdir: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """How long an allocation may live; client-side, so never a reason to replace it."""

    idle_timeout_s: float = 3600.0
    """With nobody connected for this long, a kept allocation ends itself."""
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The telemetry service of a job."""

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """The admin service of a job."""

    admin_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMount:
    """A local folder to be seen on the hosts."""

    source: str
    mntpoint: str
    meshes: tuple[str, ...] | None = None
    python_exe: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherMount:
    """A folder of the hosts to be seen locally."""

    remote_mount_point: str
    local_mount_point: str
    meshes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What runs beside the hosts; never part of what defines an allocation."""

    telemetry: Telemetry | None = None
    admin: Admin | None = None
    remote_mounts: tuple[RemoteMount, ...] = ()
    gather_mounts: tuple[GatherMount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Everything a person declares about a job."""

    name: str
    backend: str
    meshes: tuple[MeshSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The backend's own block, as far as it defines the allocation."""
    client: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The backend's own block, as far as only this client cares: time-outs, output."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    code: CodeSpec = CodeSpec()
    lifetime: Lifetime = Lifetime()
    services: Services = Services()
    run: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_job_name(self.name)
        check_meshes(self.meshes)
        check_env(self.env, where="env")
        check_plain(self.options, where=self.backend)
        check_plain(self.client, where=self.backend)

    @property
    def sizes(self) -> dict[str, int]:
        """How many hosts each mesh has, in the order they were declared."""
        return {mesh.name: mesh.hosts for mesh in self.meshes}

    @property
    def labels(self) -> list[str]:
        """How people name its hosts: `trainers/3`."""
        return [f"{mesh.name}/{rank}" for mesh in self.meshes for rank in range(mesh.hosts)]

    @property
    def host_count(self) -> int:
        """How many hosts the job has in all."""
        return sum(mesh.hosts for mesh in self.meshes)

    def mesh_env(self, mesh: MeshSpec) -> dict[str, str]:
        """The environment of a mesh's hosts: the job's, then the mesh's own."""
        return {**self.env, **mesh.env}

    def identity(self) -> dict[str, Any]:
        """What defines an allocation, as flat `field: value` pairs; the order of meshes does not matter."""
        found: dict[str, Any] = {"backend": self.backend}
        for mesh in self.meshes:
            at = f"meshes.{mesh.name}"
            found[f"{at}.hosts"] = mesh.hosts
            for item in fields(mesh.resources):
                if (value := getattr(mesh.resources, item.name)) is not None:
                    found[f"{at}.{item.name}"] = value
            for key, value in self.mesh_env(mesh).items():
                found[f"{at}.env.{key}"] = value
        for key, value in self.options.items():
            if value is not None:
                found[f"{self.backend}.{key}"] = value
        # As a state file gives it back: a tuple is a list there, and 60.0 is what 60 is.
        return json.loads(json.dumps(found), parse_float=_number)

    def fingerprint(self) -> str:
        """A short name for what defines the allocation: equal fingerprints can share one."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        import hashlib  # only here, and commands that need none of it must be quick

        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def resized(self, sizes: Mapping[str, int]) -> JobSpec:
        """The same job with other mesh sizes."""
        _check_known(sizes, self.sizes, "meshes")
        meshes = (replace(mesh, hosts=sizes.get(mesh.name, mesh.hosts)) for mesh in self.meshes)
        return replace(self, meshes=tuple(meshes))

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSpec:
        """Read what `to_json` wrote."""
        services = data["services"]
        return cls(
            name=data["name"],
            backend=data["backend"],
            meshes=tuple(
                replace(MeshSpec(**mesh), resources=Resources(**mesh["resources"]))
                for mesh in data["meshes"]
            ),
            options=data["options"],
            client=data["client"],
            env=data["env"],
            code=CodeSpec(**_tuples(data["code"])),
            lifetime=Lifetime(**data["lifetime"]),
            services=Services(
                telemetry=services["telemetry"] and Telemetry(**services["telemetry"]),
                admin=services["admin"] and Admin(**services["admin"]),
                remote_mounts=tuple(RemoteMount(**_tuples(m)) for m in services["remote_mounts"]),
                gather_mounts=tuple(GatherMount(**_tuples(m)) for m in services["gather_mounts"]),
            ),
            run=tuple(data["run"]),
        )


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _tuple(value) for key, value in data.items()}


def _tuple(value: Any) -> Any:
    """JSON has no tuples; a spec has no lists."""
    return tuple(value) if value.__class__ is list else value


def make_lifetime(idle_timeout_s: Any) -> Lifetime:
    """How long hosts may idle, checked: a queue later it would be too late to say what is wrong with it."""
    is_number = isinstance(idle_timeout_s, int | float) and not isinstance(idle_timeout_s, bool)
    if not is_number or not idle_timeout_s > 0:  # nor is nan
        raise SpecError(
            f"idle_timeout_s: {_shown(idle_timeout_s)} is not a number of seconds above zero",
            hint="write idle_timeout_s=3600 for an hour",
        )
    return Lifetime(idle_timeout_s=idle_timeout_s)


def make_meshes(
    sizes: Mapping[str, int],
    env: Mapping[str, Any] | None = None,
    resources: Mapping[str, Resources] | None = None,
) -> tuple[MeshSpec, ...]:
    """Make mesh values from `{"trainers": 4}`; `env` is one for all, or one per mesh name."""
    if not isinstance(sizes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] users pass anything
        raise SpecError(
            f"meshes: {sizes!r} is not a mapping of names to sizes",
            hint='write meshes={"workers": 2}',
        )
    envs = _split_env(sizes, env or {})
    wants = resources or {}
    _check_known(wants, sizes, "resources")
    return tuple(
        MeshSpec(name=name, hosts=size, env=envs[name], resources=wants.get(name, Resources()))
        for name, size in sizes.items()
    )


def is_per_mesh(env: Mapping[str, Any] | None) -> bool:
    """Whether an environment is one per mesh name, rather than one for all."""
    return any(isinstance(value, Mapping) for value in (env or {}).values())


def _split_env(sizes: Mapping[str, int], env: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    per_mesh: dict[str, Mapping[str, str]] = {
        key: value for key, value in env.items() if isinstance(value, Mapping)
    }
    if not per_mesh:
        return {name: dict(env) for name in sizes}
    if len(per_mesh) != len(env):
        raise SpecError(
            "env: holds both variables and meshes",
            hint='give one environment for all ({"A": "1"}) or one per mesh ({"trainers": {"A": "1"}})',
        )
    _check_known(per_mesh, sizes, "env")
    return {name: dict(per_mesh.get(name, {})) for name in sizes}


def _check_known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise SpecError(
                f"{where}: {name!r} is not a mesh of this job", hint=suggest(name, known)
            )


def suggest(word: str, known: Iterable[str]) -> str:
    """The nearest known word, or all of them."""
    words = sorted(known)
    import difflib  # for those who made a mistake

    if near := difflib.get_close_matches(word, words, n=1):
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(words)}" if words else "none are known"


def check_job_name(name: str) -> None:
    """Refuse job names that no scheduler or file system could carry."""
    problem = _name_problem(name, _JOB_NAME)
    if problem:
        raise SpecError(
            f"name: {_shown(name)} {problem}",
            hint=f"use letters, digits, '.', '_' and '-', at most {MAX_NAME} characters",
        )


def check_mesh_name(name: str) -> None:
    """Refuse mesh names that could not be an attribute, a file name or a label."""
    problem = _name_problem(name, _MESH_NAME)
    if not problem and name in RESERVED_MESH_NAMES:
        problem = "is a reserved word: `state.<name>` means something else"
    if problem:
        raise SpecError(
            f"meshes: the name {_shown(name)} {problem}",
            hint=f"start with a letter, use letters, digits, '_' and '-', at most {MAX_NAME} characters",
        )


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text) - 2} characters)"


def _name_problem(name: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(name, str):
        return "is not text"
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters"
    return "" if pattern.fullmatch(name) else "has characters that are not allowed"


def check_meshes(meshes: Iterable[MeshSpec]) -> None:
    """Refuse a job without hosts, and meshes nobody could give."""
    seen: set[str] = set()
    for mesh in meshes:
        check_mesh_name(mesh.name)
        if mesh.name in seen:
            raise SpecError(
                f"meshes: {mesh.name!r} is declared twice", hint="give one another name"
            )
        seen.add(mesh.name)
        check_host_count(mesh.hosts, where=f"meshes.{mesh.name}")
        check_env(mesh.env, where=f"meshes.{mesh.name}.env")
        _check_resources(mesh)
    if not seen:
        raise SpecError("meshes: a job needs at least one mesh", hint='write {"workers": 2}')


def check_host_count(hosts: object, *, where: str) -> None:
    """Refuse anything but a whole number of at least one host."""
    if isinstance(hosts, bool) or not isinstance(hosts, int):
        raise SpecError(f"{where}: {hosts!r} is not a whole number of hosts", hint="say 1 or more")
    if hosts < 1:
        raise SpecError(f"{where}: {hosts} hosts; a mesh has at least one", hint="say 1 or more")


def _check_resources(mesh: MeshSpec) -> None:
    for item in fields(mesh.resources):
        value = getattr(mesh.resources, item.name)
        if isinstance(value, int) and value < (0 if item.name == "gpus" else 1):
            raise SpecError(
                f"meshes.{mesh.name}.{item.name}: {value} is too small",
                hint="give a larger number, or leave it out",
            )


def check_plain(values: Mapping[str, Any], *, where: str) -> None:
    """Refuse what a state file could not carry."""
    for key, value in values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise SpecError(
                f"{where}.{key}: {_shown(value)} is not plain data",
                seen=str(error),
                hint="give text, numbers, true or false, and lists and mappings of them",
            ) from error


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def check_env(env: Mapping[str, str], *, where: str) -> None:
    """Refuse variables that an operating system could not carry."""
    for key, value in env.items():
        if not isinstance(key, str) or not _ENV_NAME.fullmatch(key):  # pyright: ignore[reportUnnecessaryIsInstance] users pass anything
            raise SpecError(
                f"{where}: {key!r} is not a name of a variable",
                hint="use letters, digits and _, and no digit first",
            )
        if not isinstance(value, str) or "\0" in value:  # pyright: ignore[reportUnnecessaryIsInstance] users pass anything
            raise SpecError(f"{where}.{key}: {value!r} is not text", hint="put it in quotes")
