"""The allocation that a program runs on, and whether it can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..backends.base import Adopts, Backend, Connects, Controls, Handle
from ..errors import SpecError, UnsupportedError
from ..hosts import natural_key
from ..spec import JobSpec, suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The allocation that a program runs on."""

    backend: Backend
    handle: Handle
    spec: JobSpec
    mesh: str

    @property
    def labels(self) -> list[str]:
        """The mesh's hosts as they were asked for, in order."""
        return self.pick(self.spec.labels)

    def pick(self, labels: Iterable[str]) -> list[str]:
        """Those of the hosts that belong to the mesh, in order."""
        return sorted((label for label in labels if self.has(label)), key=natural_key)

    def has(self, label: str) -> bool:
        """Whether a host belongs to the mesh."""
        return label.rpartition("/")[0] == self.mesh


def choose_mesh(spec: JobSpec, word: str | None) -> str:
    """The mesh that a person named, or the only one."""
    names = [mesh.name for mesh in spec.meshes]
    if word is not None and word not in names:
        raise SpecError(f"job {spec.name!r} has no mesh {word!r}", hint=suggest(word, names))
    if word is None and len(names) > 1:
        raise SpecError(
            f"job {spec.name!r} has several meshes, and none was named",
            seen=", ".join(names),
            hint=f"say which: --mesh {names[0]}",
        )
    return word or names[0]


def check_backend(backend: Backend) -> None:
    """Ranks are started by keepers, and not all hosts have one."""
    if not isinstance(backend, Controls) or isinstance(backend, Connects):
        raise UnsupportedError(
            f"{backend.name} hosts cannot run torchrun programs",
            hint="ProcessJob gives hosts on this machine that can",
        )


def check_kept(target: Target) -> None:
    """Hosts that others made have no keeper that could start ranks."""
    backend = target.backend
    adopted = backend.adopted_labels(target.handle) if isinstance(backend, Adopts) else ()
    if target.pick(adopted):
        raise UnsupportedError(
            f"the hosts of mesh {target.mesh!r} were made by others, and have no keeper that starts ranks",
            hint="have milkweed make them: give the mesh an image",
        )


def check_size(spec: JobSpec, mesh: str, least: int) -> None:
    """More hosts than there are can never come, unless somebody else makes the job larger."""
    hosts = spec.sizes[mesh]
    if least > hosts:
        raise SpecError(
            f"--nnodes asks for {least} hosts, and mesh {mesh!r} has {hosts}",
            hint=f"say --nnodes {hosts}, or give the mesh more hosts",
        )
