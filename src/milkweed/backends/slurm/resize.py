"""Changing the size of meshes: hosts are added as components of their own, and released one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from ...control import Door
from ...errors import BackendError, UnreachableError
from ...spec import JobSpec
from ...status import Liveness
from ..hostlist import fold_hostlist
from ..keepers import stop_keeper
from ..parts import save_part_data
from . import commands
from .places import (
    PartData,
    Place,
    component_of,
    ensure_note,
    is_certain,
    is_noted,
    make_places,
    place_nodes,
    standing_rows,
)
from .shape import Part, Shape, make_shape
from .start import save_note
from .text import JobRow

_CHANGES = frozenset({Liveness.PENDING, Liveness.RUNNING})
"""In which Slurm changes a job."""
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
    standing = standing_rows(rows, parts)
    for component, part in parts.items():
        gone = set(part["released"]) | _gone(part, standing.get(component))
        if gone != set(part["released"]):
            save_part_data(folder, {**part, "released": sorted(gone)})


def _gone(part: PartData, row: JobRow | None) -> set[int]:
    if row is None or row.liveness is Liveness.ENDED:
        return set(range(len(part["hosts"])))
    if not row.nodes or not is_noted(part, row):
        return set()  # it waits, or it is not certain which of its hosts has no node any more
    return {int(index) for index, node in part["nodes"].items() if node not in row.nodes}


def check_release(places: Sequence[Place]) -> None:
    """Refuse, while nothing is changed yet, what Slurm would refuse; hosts of one component."""
    part, row = places[0].part, places[0].row
    if row is None or row.liveness not in _CHANGES:
        return
    gone = {place.index for place in places} | set(part["released"])
    if row.offset == 0:
        raise BackendError(
            f"Slurm takes no nodes from the first component of a heterogeneous job, such as {row.job_id}",
            seen=f"{', '.join(place.host for place in places)} would be given back; none was released",
            hint="end the job with kill(), and ask for a smaller one",
        )
    if row.liveness is Liveness.RUNNING and len(gone) < len(part["hosts"]):
        _check_certain(part, row)
        _check_nodes(part, row, gone)
        commands.check_shrinking()


def _check_certain(part: PartData, row: JobRow) -> None:
    if not is_certain(part, row):
        raise BackendError(
            f"it is not known which of its hosts the nodes of Slurm job {row.job_id} are, so none was released",
            seen=f"{len(row.nodes)} nodes for {len(part['hosts']) - len(part['released'])} hosts",
            hint="connect once with state() while all are there, or end the job and ask for a smaller one",
        )


def _check_nodes(part: PartData, row: JobRow, gone: AbstractSet[int]) -> None:
    """A job must keep a node, and Slurm wants the one that its script was started on among those."""
    names = _names_left(part, row, gone)
    if not names:
        raise BackendError(
            f"the hosts that would be left of Slurm job {row.job_id} have lost their nodes, so none was released",
            seen=f"of {len(part['hosts']) - len(gone)} hosts that would be left, none has a node",
            hint="end the job with kill(), and ask for a smaller one",
        )
    if row.batch_host and row.batch_host not in names:
        raise BackendError(
            f"Slurm takes no nodes from job {row.job_id} any more, so none was released",
            seen=f"its first node was {row.batch_host}, which is lost",
            hint="end the job with kill(), and ask for a smaller one",
        )


def _names_left(part: PartData, row: JobRow, gone: AbstractSet[int]) -> list[str]:
    return [node for index, node in sorted(place_nodes(part, row).items()) if index not in gone]


def release(
    spec: JobSpec, folder: Path, places: Sequence[Place], door: Callable[[Place], Door]
) -> None:
    """Give the nodes of some hosts of one component back to Slurm, and touch no other.

    What is released is written down first: a crash in between leaves nodes that the next change gives back.
    """
    part, row = places[0].part, places[0].row
    gone = {place.index for place in places} | set(part["released"])
    if row is not None and row.liveness is Liveness.RUNNING and is_certain(part, row):
        # From now on the number of nodes does not tell any more which host is where.
        note = ensure_note(part, row)
        part = {**part, **note}
        save_note(folder, part["part"], note)
    after = {**part, "released": sorted(gone)}
    save_part_data(folder, after)
    for place in places:
        if place.node:
            stop_keeper(functools.partial(door, place), reason="it was released", timeout_s=STOP_S)
    try:
        _ask(spec, row, after)
    except UnreachableError:
        raise
    except BackendError:
        if row is not None and row.liveness is Liveness.PENDING:  # so no host was stopped either
            save_part_data(folder, part)
        raise


def drop_lost(
    spec: JobSpec, folder: Path, places: Sequence[Place], door: Callable[[Place], Door]
) -> None:
    """Write down that hosts are gone; whether Slurm takes their nodes, too, is its own affair."""
    try:
        release(spec, folder, places, door)
    except UnreachableError:
        raise
    except BackendError:
        return


def _ask(spec: JobSpec, row: JobRow | None, part: PartData) -> bool:
    """Have Slurm take back what a component has beyond its hosts; whether there was anything."""
    command = row and _make_change(spec, row, part)
    if command:
        # Slurm writes scripts for the job's shell into the current folder; here nobody would read them.
        commands.run(command, cwd="/")
        commands.queue.wake()
    return bool(command)


def _make_change(spec: JobSpec, row: JobRow, part: PartData) -> list[str] | None:
    """What brings a component to the hosts it has left; None where it has just these, or has ended."""
    gone = set(part["released"])
    left = len(part["hosts"]) - len(gone)
    if row.liveness not in _CHANGES or row.offset == 0:
        return None
    if not left:
        return ["scancel", str(row.job_id)]
    if row.liveness is Liveness.PENDING:
        return _make_update(row, *_count(spec, part, left)) if gone else None
    names = _names_left(part, row, gone)
    if not names or len(names) == len(row.nodes):
        return None
    return _make_update(row, f"NodeList={fold_hostlist(names)}")


def _make_update(row: JobRow, *changes: str) -> list[str]:
    return ["scontrol", "update", f"JobId={row.job_id}", *changes]


def _count(spec: JobSpec, part: PartData, hosts: int) -> list[str]:
    """A size in all the ways that Slurm counts it: as long as one of them says more, that holds."""
    [mesh, *_] = [each for each in spec.meshes if each.name == part["hosts"][0]["mesh"]]
    shape = make_shape(spec, mesh)
    tasks = hosts * shape.ntasks_per_node
    cpus = tasks * (shape.cpus_per_task or 1)
    return [f"NumNodes={hosts}-{hosts}", f"NumTasks={tasks}", f"NumCPUs={cpus}"]


def finish(spec: JobSpec, rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> bool:
    """Give back what an earlier change could not; whether there was anything. What Slurm refuses stays."""
    standing = standing_rows(rows, parts)
    asked = False
    for component, part in parts.items():
        row = standing.get(component)
        if row is None or not is_certain(part, row):
            continue
        try:
            asked = _ask(spec, row, part) or asked
        except UnreachableError:
            raise
        except BackendError:
            continue
    return asked


def next_component(parts: Mapping[int, PartData]) -> int:
    """The number of the next component."""
    return max(parts, default=-1) + 1


def places_of(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> list[Place]:
    """The hosts that live or will live."""
    alive = [row for row in rows if row.liveness is not Liveness.ENDED]
    components = {component_of(row) for row in alive}
    return [place for place in make_places(alive, parts) if place.component in components]
