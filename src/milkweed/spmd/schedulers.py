"""Which backend a scheduler of torchx is, and what its settings are called there."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..backends import GROUP
from ..errors import SpecError, UnknownBackendError
from ..option_tables import BUILTIN_OPTIONS
from ..spec import suggest
from .appdef import Application, RoleSpec

BARE = frozenset({"fake", "flux", "local", "process", "slurm"})
"""Backends whose hosts are machines as they are: with all devices, and without images."""

_NO_COPY = "milkweed copies no code; ranks start in the workspace's folder, or the current one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend, and its block of settings."""

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By milkweed's names, as they were said: `check_options` reads them."""
    notes: tuple[str, ...] = ()
    """What was said and has no effect, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """How torchx calls the settings of a scheduler, words joined by `_`."""

    backend: str
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names that differ, and milkweed's."""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that become an option of sbatch."""
    kept: tuple[str, ...] = ()
    """Names that are the same, besides those of the backend's table."""
    idle: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings without effect, and their defaults, which nobody needs to be told about."""
    refused: Mapping[str, tuple[Any, str]] = field(default_factory=dict[str, tuple[Any, str]])
    """Settings that cannot be honoured: their defaults, and what to do instead."""
    convert: Mapping[str, Callable[[Any], Any]] = field(
        default_factory=dict[str, Callable[[Any], Any]]
    )

    @property
    def names(self) -> set[str]:
        """What people may say; torchx's names and milkweed's."""
        own = (self.renamed, self.arguments, self.kept, self.idle, self.refused)
        return {name for part in (*own, BUILTIN_OPTIONS.get(self.backend, ())) for name in part}


_LOCAL = _Dialect(
    backend="process",
    refused={
        "prepend_cwd": (False, "set PATH in the role's env"),
        "auto_set_cuda_visible_devices": (
            False,
            "set CUDA_VISIBLE_DEVICES in the role's env, or give torchrun --virtual-local-rank",
        ),
    },
)
_SLURM = _Dialect(
    backend="slurm",
    renamed={"time": "time_limit"},
    arguments={"mail_type": "--mail-type", "mail_user": "--mail-user"},
    idle={"quiet": False},
    convert={"time_limit": str},
    refused={
        "comment": (None, "milkweed keeps its own mark there; use the AppDef's name"),
        "nomem": (False, "give the roles memMB=-1, and no memory is asked for"),
        "job_dir": (None, f"{_NO_COPY}; log_dir is the folder for logs"),
        "workspace_type": ("dir", _NO_COPY),
        "image_repo": (None, "milkweed makes no images"),
    },
)
_IN_TEMPLATE = 'say it in a template of pods: {"meshes": {"<role>": {"pod_template": {…}}}}'
_KUBERNETES = _Dialect(
    backend="kubernetes",
    idle={"quiet": False, "validate_spec": True},
    refused={
        "queue": (None, _IN_TEMPLATE),
        "service_account": (None, _IN_TEMPLATE),
        "priority_class": (None, _IN_TEMPLATE),
        "image_repo": (None, "milkweed makes no images"),
        "reserved_millicpu": (100, "ask for as much less in the role's resource"),
        "reserved_memmb": (1024, "ask for as much less in the role's resource"),
        "efa_device_count": (None, "milkweed cannot ask for devices yet"),
    },
)
DIALECTS: Mapping[str, _Dialect] = {
    "kubernetes": _KUBERNETES,
    "local": _LOCAL,
    "local_cwd": _LOCAL,
    "slurm": _SLURM,
}


def choose_backend(
    scheduler: str, cfg: Mapping[str, Any] | None, app: Application, known: Collection[str]
) -> Chosen:
    """The backend that a scheduler's name means, with its settings; `known` are all there are."""
    said = _said(cfg)
    dialect = DIALECTS.get(scheduler)
    if dialect is not None:
        options, notes = _translate(dialect, said, scheduler)
    else:
        _check_known(scheduler, known)
        options, notes = said, []
    backend = dialect.backend if dialect else scheduler
    _check_places(app, backend)
    if backend == "kubernetes":
        options = _add_roles(options, app)
    return Chosen(
        backend=backend, options=options, notes=(*notes, *_notes(app, backend, scheduler))
    )


_PODS = frozenset({"image", "pod_template", "label_selector"})
"""Settings of a mesh that say where its pods come from."""


def _add_roles(options: Mapping[str, Any], app: Application) -> dict[str, Any]:
    """Pods are made of the roles' images, and get their workspaces, unless the settings say otherwise."""
    added = dict(options)
    meshes: Any = options.get("meshes", {})
    if isinstance(meshes, Mapping) and "image" not in options:
        added["meshes"] = _add_images(cast("Mapping[str, Any]", meshes), app)
    folders = sorted({role.workspace for role in app.roles if role.workspace})
    if folders:
        added.setdefault("sync_dirs", folders)
    return {key: value for key, value in added.items() if key != "meshes" or value}


def _add_images(meshes: Mapping[str, Any], app: Application) -> dict[str, Any]:
    images = {role.name: role.image for role in app.roles if role.image}
    added: dict[str, Any] = {**meshes}
    for name, image in images.items():
        own: Any = meshes.get(name, {})
        if isinstance(own, Mapping) and not _PODS & own.keys() and not os.path.isdir(image):
            added[name] = {**own, "image": image}
    return added


def _said(cfg: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings that have a value; torchx's None is nothing said."""
    if cfg is not None and not isinstance(cfg, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] users pass anything
        raise SpecError(
            f"scheduler_cfg: {cfg!r} is not a mapping", hint='write {"partition": "gpu"}'
        )
    return {key: value for key, value in dict(cfg or {}).items() if value is not None}


def _check_known(scheduler: Any, known: Collection[str]) -> None:
    if scheduler == "local_docker":
        raise SpecError(
            "scheduler: milkweed starts no containers, so there is no 'local_docker'",
            hint="use 'local_cwd': hosts are processes of this machine",
        )
    if scheduler in known:
        return
    names = {"local_cwd", *known}
    raise UnknownBackendError(
        f"scheduler: there is none called {scheduler!r}",
        hint=f"{suggest(str(scheduler), names)}\n"
        f"a package can bring more backends, by entry points of the group {GROUP}",
    )


def _translate(
    dialect: _Dialect, said: Mapping[str, Any], scheduler: str
) -> tuple[dict[str, Any], list[str]]:
    """Settings by milkweed's names, and notes about those without effect."""
    options: dict[str, Any] = {}
    arguments: list[str] = []
    notes: list[str] = []
    for key, value in said.items():
        name, where = key.replace("-", "_"), f"scheduler_cfg.{key}"
        if name in dialect.refused:
            _check_default(value, *dialect.refused[name], where)
        elif name in dialect.idle:
            notes += [] if value == dialect.idle[name] else [f"{where}: has no effect"]
        elif name in dialect.arguments:
            arguments.append(f"{dialect.arguments[name]}={value}")
        else:
            _check_name(name, dialect, where, scheduler)
            _put(options, dialect.renamed.get(name, name), value, where)
    if arguments:
        options["slurm_args"] = [*_texts(options.get("slurm_args")), *arguments]
    return {key: dialect.convert.get(key, _same)(value) for key, value in options.items()}, notes


def _same(value: Any) -> Any:
    return value


def _check_default(value: Any, default: Any, hint: str, where: str) -> None:
    if value != default:
        raise SpecError(f"{where}: {value!r} cannot be honoured", hint=hint)


def _check_name(name: str, dialect: _Dialect, where: str, scheduler: str) -> None:
    """Refuse names nobody knows; a backend that may not be installed is asked later."""
    if dialect.backend in BUILTIN_OPTIONS and name not in dialect.names:
        raise SpecError(
            f"{where}: {scheduler} has no such setting", hint=suggest(name, dialect.names)
        )


def _put(options: dict[str, Any], name: str, value: Any, where: str) -> None:
    if name in options:
        raise SpecError(f"{where}: is said twice, also as {name}")
    options[name] = value


def _texts(value: Any) -> list[Any]:
    if isinstance(value, str):
        raise SpecError("scheduler_cfg.slurm_args: is not a list", hint=f"write [{value!r}]")
    return list(value or ())


def _check_places(app: Application, backend: str) -> None:
    """Refuse what only the wrong machines could be given for."""
    if backend in BARE:
        return
    for role in app.roles:
        for name, value in (("capabilities", role.capabilities), ("devices", role.devices)):
            if value:
                raise SpecError(
                    f"roles.{role.name}.resource.{name}: cannot be asked of {backend}",
                    seen=_listed(value),
                    hint="take them out of the resource, or use a setting of the backend",
                )


def _notes(app: Application, backend: str, scheduler: str) -> list[str]:
    """What an AppDef may say that has no effect with this backend."""
    found = [note for role in app.roles for note in _role_notes(role, backend, scheduler)]
    if app.metadata:
        found.append(f"metadata: {_listed(app.metadata)} has no effect on {scheduler}")
    return found


def _role_notes(role: RoleSpec, backend: str, scheduler: str) -> list[str]:
    where, end = f"roles.{role.name}", f"has no effect on {scheduler}"
    found: list[str] = []
    if backend in BARE and role.image and not os.path.isdir(role.image):
        found.append(
            f"{where}.image: {role.image!r} {end}: hosts have the software of their machine"
        )
    if backend in BARE and role.capabilities:
        found.append(f"{where}.resource.capabilities: {_listed(role.capabilities)} {end}")
    if backend in BARE and role.devices:
        found.append(f"{where}.resource.devices: {_listed(role.devices)} {end}: hosts see all")
    if role.metadata:
        found.append(f"{where}.metadata: {_listed(role.metadata)} {end}")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
