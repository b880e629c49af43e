"""Which host is on which node: what the job's files say, put together with what Slurm says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...status import Liveness
from .. import places
from ..places import PartData
from .script import part_log
from .text import JobRow, parse_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(places.Place[JobRow]):
    """One host of an allocation."""

    @property
    def noted_node(self) -> str:
        """The node it was on when that was noted; Slurm may have taken it out of the job since."""
        return self.part.get("nodes", {}).get(str(self.index), "")

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self.index in self.part["released"]

    @property
    def task_log(self) -> str:
        """The file for what Slurm says of the tasks of this host's part."""
        return f"{self.part['logs']}/{part_log(self.part['part'])}"


def rows_of(rows: Sequence[JobRow], apply_id: str, generation: int | None = None) -> list[JobRow]:
    """The jobs that carry an allocation's mark, of one generation or of all."""
    found: list[JobRow] = []
    for row in rows:
        mark = parse_mark(row.comment)
        if mark and mark.apply_id == apply_id and generation in {None, mark.generation}:
            found.append(row)
    return found


def component_of(row: JobRow) -> int:
    """Which component a marked job is."""
    mark = parse_mark(row.comment)
    return mark.component if mark else -1


def make_places(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> list[Place]:
    """Every host that was not released, with its node if it has one."""
    by_component = {component_of(row): row for row in sorted(rows, key=_standing)}
    return [
        place
        for component, part in sorted(parts.items())
        for place in _part_places(component, part, by_component.get(component))
    ]


def _standing(row: JobRow) -> tuple[bool, int]:
    """Which of two jobs with one mark is meant: one that has not ended, else the later one."""
    return row.liveness is not Liveness.ENDED, row.job_id


def _part_places(component: int, part: PartData, row: JobRow | None) -> list[Place]:
    nodes = place_nodes(part, row)
    return [
        _make_place(component, part, index, row, nodes.get(index, ""))
        for index in range(len(part["hosts"]))
        if index not in part["released"]
    ]


def _make_place(component: int, part: PartData, index: int, row: JobRow | None, node: str) -> Place:
    host = part["hosts"][index]
    return Place(
        host=f"{host['mesh']}/{host['rank']}",
        component=component,
        index=index,
        node=node,
        machine=part["addresses"].get(node, node),
        row=row,
        part=part,
    )


def fit_places(
    places: Sequence[Place], parts: Mapping[int, PartData], sizes: Mapping[str, int] | None
) -> list[Place]:
    """The hosts of an allocation whose meshes have these sizes, as far as that was answered.

    A change of sizes that was cut off leaves hosts that were asked for, and are not there, and others that
    were given back, and are still declared.
    """
    if sizes is None:
        return list(places)
    labels = [f"{mesh}/{rank}" for mesh, hosts in sizes.items() for rank in range(hosts)]
    found = [place for place in places if place.row is not None or place.host in labels]
    there = {place.host for place in found}
    released = {
        place.host: place
        for component, part in sorted(parts.items())
        for index in part["released"]
        if (place := _make_place(component, part, index, None, "")).host not in there
    }
    return [*found, *(released[label] for label in labels if label in released)]


def missing_jobs(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> list[int]:
    """The numbers of jobs that Slurm has taken, that have hosts, and that it does not tell of."""
    there = {component_of(row) for row in rows}
    return [
        part["job"]
        for component, part in parts.items()
        if part["job"] is not None
        and component not in there
        and len(part["released"]) < len(part["hosts"])
    ]


def is_certain(part: PartData, row: JobRow) -> bool:
    """Whether it is known which host is on which node: it was noted, or none has gone yet."""
    whole = len(part["hosts"]) - len(part["released"])
    running = row.liveness is Liveness.RUNNING
    return not running or is_noted(part, row) or len(row.nodes) >= whole


def is_noted(part: PartData, row: JobRow) -> bool:
    """Whether it was noted in this run of the job which host is on which node."""
    nodes = set(part.get("nodes", {}).values())
    return bool(nodes) and part.get("nodes_start") == row.start and set(row.nodes) <= nodes


def make_note(part: PartData, row: JobRow | None) -> dict[str, Any] | None:
    """Which host is on which node, as long as that is certain; None when there is nothing new to note."""
    count = len(part["hosts"]) - len(part["released"])
    if row is None or row.liveness is not Liveness.RUNNING or len(row.nodes) != count:
        return None
    return None if part.get("nodes_start") == row.start else ensure_note(part, row)


def ensure_note(part: PartData, row: JobRow) -> dict[str, Any]:
    """Which host is on which node: what was noted in this run of the job, else what is so now."""
    if is_noted(part, row):
        return {key: part[key] for key in ("nodes_start", "nodes")}
    return {
        "nodes_start": row.start,
        "nodes": {str(i): n for i, n in place_nodes(part, row).items()},
    }


def place_nodes(part: PartData, row: JobRow | None) -> dict[int, str]:
    """Nodes by the number of their task: Slurm counts tasks along the list of nodes.

    Once hosts were released, or a node failed, the list has gaps, so the nodes were noted when all were there.
    A job that started after hosts were released gives its nodes to those that are left, as its keepers do;
    when Slurm has not heard of the release, some nodes are left over.
    """
    if row is None or row.liveness is not Liveness.RUNNING:
        return {}
    noted = {int(index): node for index, node in part.get("nodes", {}).items()}
    if is_noted(part, row):
        return {index: node for index, node in noted.items() if node in row.nodes}
    left = [index for index in range(len(part["hosts"])) if index not in part["released"]]
    return dict(zip(left, row.nodes, strict=False))
