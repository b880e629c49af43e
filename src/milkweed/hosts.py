"""Hosts, and cutting what a scheduler gave into named meshes in a stable rank order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .errors import AllocationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine, container or local process of a mesh, and how to reach its worker."""

    name: str
    """What the scheduler calls it; for local processes `<mesh>/<rank>`."""
    mesh: str = ""
    rank: int = -1
    address: str = ""
    """Where the engine serves, such as `ipc:///…` or `tls://n1:40123`."""
    control: str = ""
    """Where its worker takes orders, such as `unix:///…`."""
    via: str = ""
    """By which way it is reached where its address cannot be dialled; empty for directly."""

    @property
    def label(self) -> str:
        """How people name it: `trainers/3`."""
        return f"{self.mesh}/{self.rank}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for state files and `--json`."""
        return asdict(self)


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort `n2` before `n10`, whatever order a scheduler lists them in."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


def _order(host: Host) -> tuple[object, ...]:
    """Names first by their numbers, then by their letters: `n1` and `n01` have an order, too."""
    return natural_key(host.name), host.name


def cut_hosts(sizes: Mapping[str, int], hosts: Iterable[Host]) -> dict[str, tuple[Host, ...]]:
    """Cut hosts into meshes: those that know their mesh and rank keep it, the others fill up in name order."""
    cut: dict[str, list[Host]] = {mesh: [] for mesh in sizes}
    loose: list[Host] = []
    for host in hosts:
        if host.mesh in cut:
            cut[host.mesh].append(host)
        elif host.mesh:
            raise AllocationError(
                f"host {host.name!r} belongs to mesh {host.mesh!r}, which this job does not have",
                seen=f"the job's meshes: {', '.join(sizes)}",
            )
        else:
            loose.append(host)
    loose.sort(key=_order, reverse=True)
    for mesh, size in sizes.items():
        while len(cut[mesh]) < size and loose:
            cut[mesh].append(replace(loose.pop(), mesh=mesh))
    return {mesh: _ranked(mesh, size, cut[mesh]) for mesh, size in sizes.items()}


def _ranked(mesh: str, size: int, hosts: Sequence[Host]) -> tuple[Host, ...]:
    if len(hosts) != size:
        raise AllocationError(
            f"mesh {mesh!r} needs {size} hosts and {len(hosts)} are there",
            seen=", ".join(host.name for host in hosts) or "no host",
        )
    free = sorted(set(range(size)) - {host.rank for host in hosts}, reverse=True)
    unranked = sorted((host for host in hosts if host.rank < 0), key=_order)
    known = [host for host in hosts if host.rank >= 0]
    if len(free) == len(unranked):
        known += [replace(host, rank=free.pop()) for host in unranked]
    if sorted(host.rank for host in known) != list(range(size)):
        raise AllocationError(
            f"the hosts of mesh {mesh!r} do not have the ranks 0 to {size - 1}",
            seen=", ".join(f"{host.name}={host.rank}" for host in hosts),
        )
    return tuple(sorted(known, key=lambda host: host.rank))
