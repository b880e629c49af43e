"""Changing the size of meshes: hosts are added as components of their own, and released one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...control import Door
from ...errors import BackendError
from ...spec import JobSpec
from ...status import Liveness
from ..hostlist import fold_hostlist
from ..keepers import stop_keeper
from ..parts import save_part_data
from . import commands
from .places import PartData, Place, component_of, is_certain, is_noted, make_places, place_nodes
from .shape import Part, Shape, make_shape
from .text import JobRow

STOP_S = 5.0
"""How long a released host may take to end in order; Slurm would end it a moment later anyway."""


def make_growth(spec: JobSpec, places: Sequence[Place]) -> list[Part]:
    """The hosts that are wanted and not there, by shape."""
    there = {place.host for place in places}
    missing: dict[Shape, list[tuple[str, int]]] = {}
    for mesh in spec.meshes:
        ranks = [rank for rank in range(mesh.hosts) if f"{mesh.name}/{rank}" not in there]
        if ranks:
            missing.setdefault(make_shape(spec, mesh), []).extend((mesh.name, r) for r in ranks)
    return [Part(shape=shape, hosts=tuple(hosts)) for shape, hosts in missing.items()]


def limit_growth(parts: Sequence[Part], rows: Sequence[JobRow]) -> list[Part]:
    """Added hosts end with those they join: their time limit is what is left of it."""
    left = [row.time_left_s for row in rows if row.liveness is Liveness.RUNNING and row.time_left_s]
    if not left:
        return list(parts)
    return [replace(part, shape=replace(part.shape, time_limit_s=min(left))) for part in parts]


def surplus(spec: JobSpec, places: Sequence[Place]) -> dict[int, list[Place]]:
    """The hosts that are there and not wanted, by component."""
    return group(place for place in places if _is_beyond(place, spec))


def _is_beyond(place: Place, spec: JobSpec) -> bool:
    mesh, _, rank = place.host.rpartition("/")
    return int(rank) >= spec.sizes.get(mesh, 0)


def group(places: Iterable[Place]) -> dict[int, list[Place]]:
    """Hosts by their component."""
    found: dict[int, list[Place]] = {}
    for place in places:
        found.setdefault(place.component, []).append(place)
    return found


def drop_gone(folder: Path, parts: Mapping[int, PartData], rows: Sequence[JobRow]) -> None:
    """Hosts of components that are over, or whose node has left the job, are not there: their ranks are free."""
    alive = {component_of(row): row for row in rows if row.liveness is not Liveness.ENDED}
    for component, part in parts.items():
        gone = set(part["released"]) | _gone(part, alive.get(component))
        if gone != set(part["released"]):
            save_part_data(folder, {**part, "released": sorted(gone)})


def _gone(part: PartData, row: JobRow | None) -> set[int]:
    if row is None:
        return set(range(len(part["hosts"])))
    if not row.nodes or not is_noted(part, row):
        return set()  # it waits, or it is not certain which of its hosts has no node any more
    return {int(index) for index, node in part["nodes"].items() if node not in row.nodes}


def release(folder: Path, places: Sequence[Place], door: Callable[[Place], Door]) -> None:
    """Give the nodes of some hosts of one component back to Slurm, and touch no other.

    What is released is written down first: a crash in between leaves nodes that the next call gives back.
    """
    part, row = places[0].part, places[0].row
    nodes = place_nodes(part, row)
    if row is not None and not is_certain(part, row):
        raise BackendError(
            f"it is not known which of its hosts the nodes of Slurm job {row.job_id} are, so none was released",
            seen=f"{len(row.nodes)} nodes for {len(part['hosts']) - len(part['released'])} hosts",
            hint="connect once with state() while all are there, or end the job and ask for a smaller one",
        )
    gone = {place.index for place in places} | set(part["released"])
    names = [node for index, node in sorted(nodes.items()) if index not in gone]
    left = len(part["hosts"]) - len(gone)
    if row is not None and row.liveness is Liveness.RUNNING and left and not names:
        # Slurm ends a job whose last node is taken away.
        raise BackendError(
            f"the hosts that would be left of Slurm job {row.job_id} have lost their nodes, so none was released",
            seen=f"of {left} hosts that would be left, none has a node",
            hint="end the job with kill(), and ask for a smaller one",
        )
    save_part_data(folder, {**part, "released": sorted(gone)})
    for place in places:
        if place.node:
            stop_keeper(functools.partial(door, place), reason="it was released", timeout_s=STOP_S)
    if row is None or row.liveness is Liveness.ENDED:
        return
    if left == 0:
        commands.run(["scancel", str(row.job_id)])
    elif row.liveness is Liveness.RUNNING:
        _update(row, f"NodeList={fold_hostlist(names)}")
    else:
        _update(row, f"NumNodes={left}")
    commands.queue.wake()


def _update(row: JobRow, change: str) -> None:
    # Slurm writes scripts for the job's shell into the current folder; here nobody would read them.
    commands.run(["scontrol", "update", f"JobId={row.job_id}", change], cwd="/")


def next_component(parts: Mapping[int, PartData]) -> int:
    """The number of the next component."""
    return max(parts, default=-1) + 1


def places_of(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> list[Place]:
    """The hosts that live or will live."""
    alive = [row for row in rows if row.liveness is not Liveness.ENDED]
    components = {component_of(row) for row in alive}
    return [place for place in make_places(alive, parts) if place.component in components]
