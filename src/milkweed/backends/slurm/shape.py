"""From a declaration to what is asked of Slurm: meshes of one shape share a component."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import SpecError
from ...option_tables import MESH_OPTIONS
from ...options import check_options
from ...spec import JobSpec, MeshSpec, suggest
from ...units import parse_size
from .carried import find_carried, find_unsaid
from .check import Component
from .times import parse_time_limit

_MIB = 2**20

MANAGED = {
    "-J": "job_name", "--job-name": "job_name", "-N": "meshes", "--nodes": "meshes",
    "-n": "meshes", "--ntasks": "meshes", "--ntasks-per-node": "ntasks_per_node",
    "--comment": "", "-a": "", "--array": "", "--wrap": "", "-o": "log_dir", "--output": "log_dir",
    "-e": "log_dir", "--error": "log_dir", "-i": "", "--input": "", "--parsable": "",
    "-W": "", "--wait": "", "--test-only": "", "-V": "", "--version": "", "-h": "", "--help": "",
    "-t": "time_limit", "--time": "time_limit", "-p": "partition", "--partition": "partition",
    "-A": "account", "--account": "account", "-q": "qos", "--qos": "qos", "--exclusive": "exclusive",
    "-C": "constraint", "--constraint": "constraint", "--mem": "mem", "-c": "cpus_per_task",
    "--cpus-per-task": "cpus_per_task", "--gpus-per-node": "gpus_per_node", ":": "",
    "-Q": "", "--quiet": "", "-k": "", "--no-kill": "", "-M": "", "--clusters": "", "--cluster": "", "--": "",
    "-D": "", "--chdir": "", "--export": "", "--export-file": "",
}  # fmt: skip
"""Arguments of sbatch that milkweed sets itself, and the parameter that sets them."""
FLAGS = frozenset({
    "-H", "--hold", "-I", "--immediate", "-O", "--overcommit", "-s", "--oversubscribe", "--share",
    "-v", "--verbose", "--contiguous", "--get-user-env", "--ignore-pbs", "--nice",
    "--no-requeue", "--requeue", "--propagate", "--reboot", "--resv-ports", "--spread-job",
    "--use-min-nodes",
})  # fmt: skip
"""Options of sbatch that take no word, or only with an equals sign."""
UNMANAGED = frozenset({"--gpus", "--wait-all-nodes"})
"""Options of their own, though others begin like them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one component asks of Slurm for each of its hosts."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_limit_s: float | None = None
    """Infinity for none at all; None where nothing was said, and the partition's own default holds."""
    ntasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    exclusive: bool = True
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component: a shape, and the hosts that have it, in the order of Slurm's nodes."""

    shape: Shape
    hosts: tuple[tuple[str, int], ...]
    """Mesh and rank of each."""

    @property
    def meshes(self) -> list[str]:
        """The meshes it has hosts of."""
        return list(dict.fromkeys(mesh for mesh, _rank in self.hosts))


def make_parts(spec: JobSpec) -> list[Part]:
    """Cut a job into components: one when all hosts are alike."""
    parts: dict[Shape, list[tuple[str, int]]] = {}
    for mesh in spec.meshes:
        shape = make_shape(spec, mesh)
        parts.setdefault(shape, []).extend((mesh.name, rank) for rank in range(mesh.hosts))
    made = [Part(shape=shape, hosts=tuple(hosts)) for shape, hosts in parts.items()]
    if found := find_unsaid([_carried(part.shape, parts) for part in made]):
        one, other, option = made[found[0]], made[found[1]], found[2]
        word, lacking = MANAGED.get(option, "") or option, ", ".join(other.meshes)
        raise SpecError(
            f"meshes.{', '.join(one.meshes)}: {word} is said, and for {lacking} it is not: "
            "sbatch would take it for all of them",
            hint=f"say {word} for {lacking}, too",
        )
    return made


def _carried(shape: Shape, shapes: Iterable[Shape]) -> set[str]:
    """The options by which a component would change those that do not say them."""
    said = {"--account": shape.account, "--qos": shape.qos, "--mem": fill_memory(shape, shapes)}
    own = {option for option, value in said.items() if value is not None}
    return own | find_carried(shape.arguments)


def fill_memory(shape: Shape, shapes: Iterable[Shape]) -> int | None:
    """The memory to ask for: where another component says it, whole nodes have all of theirs, and say so."""
    apart = any(word.startswith("--mem-") for word in shape.arguments)
    others = any(each.memory_mb is not None for each in shapes)
    return (
        0
        if shape.memory_mb is None and others and shape.exclusive and not apart
        else shape.memory_mb
    )


def make_shape(spec: JobSpec, mesh: MeshSpec) -> Shape:
    """What a host of a mesh needs: the mesh's own words, then the job's."""
    said = {**spec.options, **mesh_options(spec).get(mesh.name, {})}
    wants = mesh.resources
    tasks = said.get("ntasks_per_node", 1)
    memory = wants.memory_bytes if wants.memory_bytes is not None else _memory(said.get("mem"))
    gpus = wants.gpus if wants.gpus is not None else said.get("gpus_per_node")
    if wants.gpu_type and not gpus:
        raise SpecError(
            f"meshes.{mesh.name}.gpu_type: {wants.gpu_type!r}, but no GPUs are asked for",
            hint="say how many each host has, with gpus, or take it out",
        )
    return Shape(
        partition=said.get("partition"),
        account=said.get("account"),
        qos=said.get("qos"),
        constraint=said.get("constraint"),
        time_limit_s=_time_limit(spec, said),
        ntasks_per_node=tasks,
        cpus_per_task=said.get("cpus_per_task") if wants.cpus is None else -(-wants.cpus // tasks),
        gpus=gpus,
        gpu_type=wants.gpu_type,
        memory_mb=None if memory is None else -(-memory // _MIB),
        disk_mb=None if wants.disk_bytes is None else -(-wants.disk_bytes // _MIB),
        exclusive=said.get("exclusive", True),
        arguments=_arguments(said.get("slurm_args", ())),
    )


def mesh_options(spec: JobSpec) -> dict[str, dict[str, Any]]:
    """The block's own words for single meshes, checked."""
    given: Any = spec.options.get("meshes") or {}
    found: dict[str, dict[str, Any]] = {}
    _check_mapping(given, "slurm.meshes")
    for name, words in given.items():
        _check_mapping(words, f"slurm.meshes.{name}")
        if name not in spec.sizes:
            raise SpecError(
                f"slurm.meshes: {name!r} is not a mesh of this job", hint=suggest(name, spec.sizes)
            )
        check_options(MESH_OPTIONS, words, where=f"slurm.meshes.{name}")
        # As it was said: a default, too, may differ from what the job says.
        found[name] = {key: value for key, value in words.items() if value is not None}
    return found


def _check_mapping(value: object, where: str) -> None:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: {value!r} is not a mapping", hint="write {partition: cpu}")


def _time_limit(spec: JobSpec, said: Mapping[str, Any]) -> float | None:
    if (text := said.get("time_limit")) is not None:
        limit_s = parse_time_limit(text, field="time_limit")
        return math.inf if limit_s is None else limit_s
    return spec.lifetime.time_limit_s


def _memory(text: str | int | None) -> int | None:
    """Bytes of `64G`; Slurm reads a bare number as megabytes, and its G is 2**30."""
    if text is None:
        return None
    word = str(text).strip()
    if word.isdecimal():
        return int(word) * _MIB
    short = word.upper().removesuffix("B").removesuffix("I")
    return parse_size(f"{short}i" if short[-1:] in set("KMGT") else word, field="mem")


def _arguments(given: Sequence[str]) -> tuple[str, ...]:
    """Refuse what would be lost, or would change what milkweed sets; nothing is dropped silently."""
    for word in given:
        if "\0" in word or "\n" in word:
            raise SpecError(
                f"slurm_args: {word!r} has a character that no argument may have",
                hint="give each option as a text of its own, in one line",
            )
        name = word.partition("=")[0]
        managed = [each for each in (_complete(name), *_letters(name)) if each in MANAGED]
        if managed:
            parameter = MANAGED[managed[0]]
            hint = f"use the parameter {parameter}" if parameter else "milkweed sets it itself"
            raise SpecError(f"slurm_args: {word!r} cannot be given here", hint=hint)
    for before, word in itertools.pairwise(["", *given]):
        if not word.startswith("-") and not _wants_word(before):
            # sbatch would take it for the script, and drop ours.
            raise SpecError(
                f"slurm_args: {word!r} is not an option of sbatch, nor the word of one",
                hint='write options as sbatch has them: ["--reservation=mine", "--mail-type=END"]',
            )
    return tuple(given)


def _wants_word(option: str) -> bool:
    """Whether what follows an option is its own: it has no word yet, and takes one."""
    if option.startswith("--"):
        return "=" not in option and not any(flag.startswith(option) for flag in FLAGS)
    return len(option) == 2 and option[0] == "-" and option not in FLAGS


def _letters(name: str) -> list[str]:
    """The options in `-HQ`: letters may follow one that takes no word."""
    if not name.startswith("-") or name.startswith("--"):
        return []
    found = [f"-{name[1:2]}"]
    for letter in name[2:]:
        if found[-1] not in FLAGS or found[-1] == "-I":
            break
        found.append(f"-{letter}")
    return found


def _complete(name: str) -> str:
    """The option that a word means: sbatch takes any beginning of a name for the name."""
    if name in MANAGED or name in UNMANAGED or not name.startswith("--"):
        return name
    return next((option for option in MANAGED if option.startswith(name)), name)


def make_components(parts: Sequence[Part]) -> list[Component]:
    """The parts as they are compared with what the cluster has."""
    return [
        Component(
            hosts=len(part.hosts),
            partition=part.shape.partition,
            ntasks_per_node=part.shape.ntasks_per_node,
            cpus_per_task=part.shape.cpus_per_task,
            gpus_per_node=part.shape.gpus,
            memory_mb=part.shape.memory_mb,
            gpu_type=part.shape.gpu_type,
            disk_mb=part.shape.disk_mb,
            time_limit_s=part.shape.time_limit_s,
            constraint=part.shape.constraint,
            qos=part.shape.qos,
            field="meshes." + ", ".join(part.meshes),
        )
        for part in parts
    ]
