"""What a torchx AppDef says, read by its attributes: torchx itself is never imported.

What a role says and nobody could honour is an error that names it; what has no effect is in the
application's notes. A role's `port_map` is not looked at: ranks open the ports they want.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any, cast

from ..errors import SpecError
from ..spec import (
    RESERVED_MESH_NAMES,
    Resources,
    check_env,
    check_host_count,
    check_job_name,
    check_mesh_name,
)
from .fields import check_fields

RANK0_ENV = "TORCHX_RANK0_HOST"
"""What torchx's `${rank0_env}` stands for: the variable with the address of the first host."""
_UNSAID = frozenset({"<MISSING>", "<NONE>", "<UNKNOWN>"})
_MIB = 2**20
_ROLE_FIELDS = frozenset({
    "name", "image", "min_replicas", "entrypoint", "args", "env", "num_replicas",
    "max_retries", "retry_policy", "resource", "port_map", "metadata", "mounts", "workspace",
    "overrides",
})  # fmt: skip
_RESOURCE_FIELDS = frozenset({"cpu", "gpu", "memMB", "capabilities", "devices", "tags"})
_NODE_RANK = re.compile(r"--node[-_]rank[=\0]\$\{replica_id\}")

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_MODULES = ("torch.distributed.run", "torchrun")
_LOOKED_FOR = (
    "the command must have torchrun, a path that ends in /torchrun, or"
    " python -m torch.distributed.run; also in sh -c or bash -c"
)
# Put before what a shell would do more with than pass it on, and taken out again.
_FILLED, _OPERATOR = "\ue000", "\ue001"
_MACRO = r"\$\{?(?:(?:base_)?img_root|app_id|replica_id|rank0_env)\b\}?"
_IN_QUOTES = rf"(?P<kept>\\.|{_MACRO})|(?P<operator>`|\$\$?\()|(?P<filled>\$\$?)"
_DOUBLE = re.compile(_IN_QUOTES, re.DOTALL)
_SHELL = re.compile(
    r"""(?P<single>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")|"""
    rf"{_IN_QUOTES}|(?P<bare>[;&|<>()\n]|(?<!\S)\#)|(?P<home>(?<!\S)~)",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """A group of hosts that run one torchrun command."""

    name: str
    """The name of its mesh."""
    command: tuple[str, ...]
    """What stands after `torchrun`."""
    wrapper: tuple[str, ...] = ()
    """A program, with arguments, that sets up the environment and runs what follows it."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    hosts: int = 1
    min_hosts: int | None = None
    """How few hosts would do; None when nothing is said."""
    resources: Resources = field(default_factory=Resources)
    workspace: str = ""
    """The local folder that ranks start in; empty for the current one."""
    image: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    devices: Mapping[str, int] = field(default_factory=dict[str, int])
    unexpanded: tuple[str, ...] = ()
    """Words that a shell would have changed, such as `$HOME/data`; they stay as they are."""
    literal: bool = False
    """Whether all texts are meant as they are; those of an AppDef may have torchx's macros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A named program of one or more roles."""

    name: str
    roles: tuple[RoleSpec, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()
    """What was said and has no effect, a sentence each."""

    @property
    def sizes(self) -> dict[str, int]:
        """How many hosts each mesh has: a mesh for each role."""
        return {role.name: role.hosts for role in self.roles}

    @property
    def resources(self) -> dict[str, Resources]:
        """What each host of a mesh needs."""
        return {role.name: role.resources for role in self.roles}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A torchrun command among other words."""

    command: tuple[str, ...]
    wrapper: tuple[str, ...] = ()
    unexpanded: tuple[str, ...] = ()


def read_command(words: Sequence[str]) -> Application:
    """Read a torchrun command: one role on one host. Its words are meant as they are."""
    if isinstance(words, str):
        raise SpecError(f"the command {words!r} is not a list", hint=f"write {words.split()!r}")
    if not words:
        raise SpecError("the command is empty", hint='write ["torchrun", "train.py"]')
    notes: list[str] = []
    found = _find_torchrun(_words(words, "command"), "command", notes)
    role = RoleSpec(
        name="trainer",
        command=found.command,
        wrapper=found.wrapper,
        unexpanded=found.unexpanded,
        literal=True,
    )
    return Application(name="spmd", roles=(role,), notes=tuple(notes))


def read_appdef(app: Any) -> Application:
    """Read a torchx AppDef, or anything that has its attributes."""
    if not hasattr(app, "roles") or not hasattr(app, "name"):
        raise SpecError(
            f"{type(app).__name__} is not an AppDef: it has no name and roles",
            hint='give an AppDef of torchx, or a list of words: ["torchrun", "train.py"]',
        )
    notes: list[str] = []
    name = _job_name(app.name, notes)
    roles = tuple(_read_role(role, notes) for role in app.roles or ())
    if not roles:
        raise SpecError("roles: the AppDef has none", hint="give it one with a torchrun command")
    names = [role.name for role in roles]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise SpecError(f"roles: two of them would be the mesh {min(doubles)!r}")
    metadata = _mapping(app, "metadata")
    return Application(name=name, roles=roles, metadata=metadata, notes=tuple(notes))


def substitute(text: str, *, folder: str, app_id: str) -> str:
    """Fill in torchx's macros as torchx does: `$$` is a dollar, and other names stay as they are.

    `folder` is where ranks start: `${img_root}`. `${replica_id}` stays: it differs between hosts.
    """
    return Template(text).safe_substitute(
        img_root=folder, base_img_root=folder, app_id=app_id, rank0_env=RANK0_ENV
    )


def resolve(role: RoleSpec, *, folder: str, app_id: str) -> RoleSpec:
    """The role with torchx's macros filled in, once and for all."""
    if role.literal:
        return role

    def fill(text: str) -> str:
        return substitute(text, folder=folder, app_id=app_id)

    return replace(
        role,
        command=tuple(map(fill, role.command)),
        wrapper=tuple(map(fill, role.wrapper)),
        env={key: fill(value) for key, value in role.env.items()},
        unexpanded=tuple(map(fill, role.unexpanded)),
        literal=True,
    )


def _read_role(role: Any, notes: list[str]) -> RoleSpec:
    where = f"roles.{role.name}"
    _check_role(role, where)
    entry = _text(role.entrypoint)
    words = [*([entry] if entry else []), *_words(role.args, f"{where}.args")]
    found = _find_torchrun(words, where, notes)
    env = _mapping(role, "env")
    check_env(env, where=f"{where}.env")
    _check_replica([*found.wrapper, *env.values(), *found.command], where)
    check_host_count(role.num_replicas, where=f"{where}.num_replicas")
    resource = getattr(role, "resource", None)
    return RoleSpec(
        name=_mesh_name(role.name, notes),
        command=found.command,
        wrapper=found.wrapper,
        env=env,
        hosts=role.num_replicas,
        min_hosts=_amount(role, "min_replicas", where),
        resources=_resources(resource, f"{where}.resource"),
        workspace=_workspace(role, where),
        image=_text(role.image),
        metadata=_mapping(role, "metadata"),
        capabilities=_mapping(resource, "capabilities"),
        devices=_mapping(resource, "devices"),
        unexpanded=found.unexpanded,
    )


def _check_role(role: Any, where: str) -> None:
    """Refuse what a role may say and milkweed does not do."""
    check_fields(role, _ROLE_FIELDS, where)
    if getattr(role, "mounts", None):
        raise SpecError(
            f"{where}.mounts: milkweed mounts nothing into hosts",
            hint="use the paths that hosts have, and take the mounts out",
        )
    if retries := getattr(role, "max_retries", 0):
        raise SpecError(
            f"{where}.max_retries: no scheduler starts the program {retries} more times",
            hint=f"give torchrun --max-restarts={retries}, which uses the hosts that are there",
        )


def _check_replica(texts: Sequence[str], where: str) -> None:
    """Refuse `${replica_id}` but in torchrun's `--node-rank`: all hosts are told the same words."""
    if "${replica_id}" in _NODE_RANK.sub("", "\0".join(texts), count=1):
        raise SpecError(
            f"{where}: ${{replica_id}} is different on each host, and all are told the same",
            hint="read the variable GROUP_RANK in the program",
        )


def _words(words: Any, where: str) -> list[str]:
    found: list[Any] = [None] if isinstance(words, str) else list(words or ())
    if not all(isinstance(word, str) for word in found):
        raise SpecError(f"{where}: {words!r} is not a list of words")
    return [str(word) for word in found]


def _text(value: object) -> str:
    return value if isinstance(value, str) and value not in _UNSAID else ""


def _mapping(thing: Any, name: str) -> dict[str, Any]:
    return dict(getattr(thing, name, None) or {})


def _job_name(name: Any, notes: list[str]) -> str:
    text = _text(name)
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")
    check_job_name(made or text)
    if made != text:
        notes.append(f"name: {text!r} is no name of a job; it is called {made!r}")
    return made


def _mesh_name(name: Any, notes: list[str]) -> str:
    text = _text(name)
    made = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    if made in RESERVED_MESH_NAMES or (made and not made[0].isalpha()):
        made = f"role_{made}"
    check_mesh_name(made)
    if made != text:
        notes.append(f"roles.{text}: is no name of a mesh; it is called {made!r}")
    return made


def _resources(resource: Any, where: str) -> Resources:
    check_fields(resource, _RESOURCE_FIELDS, where)
    memory = _amount(resource, "memMB", where)
    return Resources(
        cpus=_amount(resource, "cpu", where),
        gpus=_amount(resource, "gpu", where),
        memory_bytes=None if memory is None else memory * _MIB,
    )


def _amount(thing: Any, name: str, where: str) -> int | None:
    """A number that torchx may leave unsaid: as None, 0 or -1."""
    value = getattr(thing, name, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{where}.{name}: {value!r} is not a whole number")
    return value if value > 0 else None


def _workspace(role: Any, where: str) -> str:
    """The folder that ranks start in: the workspace's, or the image where that is a folder."""
    given = getattr(role, "workspace", None)
    projects = {given: ""} if isinstance(given, str) else getattr(given, "projects", given)
    if not given or not projects:
        image = _text(role.image)
        return os.path.abspath(image) if os.path.isdir(image) else ""
    if not isinstance(projects, Mapping):
        raise SpecError(f"{where}.workspace: {given!r} is not a folder")
    found = cast("Mapping[str, str | None]", projects)
    root, *others = {_root(local, target or "") for local, target in found.items()}
    if others or not root:
        raise SpecError(
            f"{where}.workspace: milkweed cannot bring its projects to the hosts yet",
            seen=", ".join(f"{local} to {target or '.'}" for local, target in found.items()),
            hint="give one folder that has everything, such as Workspace({'.': ''})",
        )
    if not os.path.isdir(root):
        raise SpecError(f"{where}.workspace: there is no folder {root!r}")
    return root


def _root(local: str, target: str) -> str:
    """The folder in which a project is at its target already; empty when there is none."""
    path, end = os.path.abspath(os.path.expanduser(local)), os.path.normpath(target)
    if end == ".":
        return path
    return path.removesuffix(f"/{end}") if path.endswith(f"/{end}") else ""


def _find_torchrun(words: Sequence[str], where: str, notes: list[str]) -> _Found:
    """The torchrun command among the words; what stands before it is a program that runs it."""
    for at in range(len(words)):
        found = _spelled(words[at:], where, notes)
        if found is not None:
            return replace(found, wrapper=(*words[:at], *found.wrapper))
    raise SpecError(f"{where}: no torchrun command", seen=shlex.join(words), hint=_LOOKED_FOR)


def _spelled(words: Sequence[str], where: str, notes: list[str]) -> _Found | None:
    """The torchrun command that starts with the first of the words, however it is spelled."""
    name = os.path.basename(words[0])
    if name in {"sh", "bash"}:
        return _after_shell(words, where, notes)
    if name == "torchrun":
        command = words[1:]
    else:
        command = _after_python(words[1:], where) if _PYTHON.fullmatch(name) else None
    if command is not None and "/" in words[0]:
        notes.append(f"{where}: {words[0]!r} is not used: ranks run with the Python of their hosts")
    return None if command is None else _Found(command=tuple(command))


def _after_python(words: Sequence[str], where: str) -> Sequence[str] | None:
    rest = words[1:] if words[:1] == ["-u"] else words
    if rest[:2] == ["-m", "torch.distributed.launch"]:
        raise SpecError(
            f"{where}: torch.distributed.launch is not supported",
            hint="use torchrun; it tells the local rank by LOCAL_RANK, not by --local-rank",
        )
    if rest[:1] == ["-m"]:
        return rest[2:] if rest[1:2] and rest[1] in _MODULES else None
    return rest[1:] if rest and os.path.basename(rest[0]) == "torchrun" else None


def _after_shell(words: Sequence[str], where: str, notes: list[str]) -> _Found | None:
    """The command of `bash -c "torchrun …"`; a shell with more options than -c is kept."""
    if len(words) < 3 or not re.fullmatch(r"-[a-z]*c", words[1]):
        return None
    if len(words) > 3:
        raise SpecError(f"{where}: {words[3]!r} follows the shell's command", hint=_LOOKED_FOR)
    inner, unexpanded = _split_shell(words[2], where)
    found = _find_torchrun(inner, where, notes)
    shell = () if words[1] == "-c" else (words[0], words[1], 'exec "$@"', words[0])
    notes += [f"{where}.args: no shell fills in {word!r}; it stays as it is" for word in unexpanded]
    return replace(found, wrapper=(*shell, *found.wrapper), unexpanded=unexpanded)


def _split_shell(text: str, where: str) -> tuple[list[str], tuple[str, ...]]:
    """The words of a shell's command, and those of them that the shell would change."""
    marked = _SHELL.sub(_mark, text.replace("\\\n", "").strip())
    try:
        words = shlex.split(marked)
    except ValueError as error:
        raise SpecError(f"{where}: {text!r} is no command", seen=str(error)) from error
    words = words[1:] if words[:1] == ["exec"] else words
    if _OPERATOR in marked or (words and _ASSIGNMENT.match(words[0])):
        raise SpecError(
            f"{where}: the shell does more than to run torchrun",
            seen=text,
            hint='put the rest into a script that ends with exec "$@", and make it the entrypoint',
        )
    plain = [word.replace(_FILLED, "") for word in words]
    changed = (new for new, word in zip(plain, words, strict=True) if new != word)
    return plain, tuple(word for word in changed if "rank0_env" not in word)


def _mark(match: re.Match[str]) -> str:
    """Mark what a shell would do more with; torchx's macros are no concern of a shell."""
    kind, text = match.lastgroup, match[0]
    if kind == "double":
        return f'"{_DOUBLE.sub(_mark, text[1:-1])}"'
    if kind in {"operator", "bare"}:
        return _OPERATOR + text
    return _FILLED + text if kind in {"filled", "home"} else text
