"""Which host is on which node: what the job's files say, put together with what Slurm says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...status import Liveness
from .. import places
from ..places import PartData
from ..traces import where_up
from .script import part_log
from .text import JobRow, parse_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(places.Place[JobRow]):
    """One host of an allocation."""

    certain: bool = True
    """Whether one without a node has none: where nodes were lost, it may not be known whose are left."""

    @property
    def noted_node(self) -> str:
        """The node it was on in this run of its job, as was noted; Slurm may have taken it away since."""
        start = self.row.start if self.row else None
        if self.part.get("nodes_start") == start and (
            node := self.part.get("nodes", {}).get(str(self.index))
        ):
            return node
        return where_up(self.part, self.index, start)

    @property
    def last_node(self) -> str:
        """Its node, or the one that Slurm has taken out of the job while that runs."""
        running = self.row is not None and self.row.liveness is Liveness.RUNNING
        return self.node or (self.noted_node if running and self.certain else "")

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self.index in self.part["released"]

    @property
    def task_log(self) -> str:
        """The file for what Slurm says of the tasks of this host's part."""
        return task_log(self.part)


def task_log(part: PartData) -> str:
    """The file for what Slurm says of the tasks of a part."""
    return f"{part['logs']}/{part_log(part['part'])}"


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
    by_component = standing_rows(rows, parts)
    return [
        place
        for component, part in sorted(parts.items())
        for place in _part_places(component, part, by_component.get(component))
    ]


def standing_rows(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> dict[int, JobRow]:
    """The job that is meant, by component, where several have one mark.

    It is one that lives, or else has not ended: what hangs in its end is no reason to give up what runs.
    Before others it is the one whose number was answered, and else the later one. One that lives no more, and is
    older than the one whose number was answered, is not meant: that one is looked for.
    """
    answered = {part.get("job") for part in parts.values()}

    def standing(row: JobRow) -> tuple[bool, bool, bool, int]:
        live = row.liveness
        return live.alive, live is not Liveness.ENDED, row.leader in answered, row.job_id

    meant = [row for row in rows if not _is_past(row, parts.get(component_of(row), {}))]
    return {component_of(row): row for row in sorted(meant, key=standing)}


def _is_past(row: JobRow, part: PartData) -> bool:
    job = part.get("job")
    return not row.liveness.alive and job is not None and row.leader < job


def _part_places(component: int, part: PartData, row: JobRow | None) -> list[Place]:
    nodes = place_nodes(part, row)
    certain = row is None or is_certain(part, row)
    return [
        replace(_make_place(component, part, index, row, nodes.get(index, "")), certain=certain)
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
    labels = label_hosts(sizes)
    found = [place for place in places if place.row is not None or place.host in labels]
    there = {place.host for place in found}
    released = {
        place.host: place
        for component, part in sorted(parts.items())
        for index in part["released"]
        if (place := _make_place(component, part, index, None, "")).host not in there
    }
    return [*found, *(released[label] for label in labels if label in released)]


def label_hosts(sizes: Mapping[str, int]) -> list[str]:
    """The hosts of meshes of these sizes: `trainers/3`."""
    return [f"{mesh}/{rank}" for mesh, hosts in sizes.items() for rank in range(hosts)]


def declared_places(places: Sequence[Place], sizes: Mapping[str, int] | None) -> list[Place]:
    """Those of the hosts that were declared; others are left of a change of sizes that was cut off."""
    labels = None if sizes is None else label_hosts(sizes)
    return [place for place in places if labels is None or place.host in labels]


def missing_jobs(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> list[int]:
    """The numbers of jobs that Slurm has taken, that have hosts, and that it does not tell of."""
    there = standing_rows(rows, parts)
    return [
        part["job"]
        for component, part in parts.items()
        if part["job"] is not None
        and component not in there
        and len(part["released"]) < len(part["hosts"])
    ]


def is_certain(part: PartData, row: JobRow) -> bool:
    """Whether it is known which host is on which node: it was noted, none has gone yet, or keepers say so."""
    running = row.liveness is Liveness.RUNNING
    return not running or is_noted(part, row) or _is_counted(part, row) or _is_told(part, row)


def _is_counted(part: PartData, row: JobRow) -> bool:
    """Whether hosts stand along the list of nodes: no node has gone, as far as anybody can tell.

    Where hosts were given back there may be more nodes than hosts, so that their number does not tell; but then no
    keeper may say that it is elsewhere.
    """
    if len(row.nodes) < len(_left(part)):
        return False
    counted = _count_nodes(part, row) if part["released"] else {}
    return not counted or all(
        node in {"", counted[index]} for index, node in _load_told(part, row).items()
    )


def _count_nodes(part: PartData, row: JobRow) -> dict[int, str]:
    return dict(zip(_left(part), row.nodes, strict=False))


def _is_told(part: PartData, row: JobRow) -> bool:
    """Whether every host has said where it is, or every node is some host's."""
    told = _load_told(part, row)
    return all(told.values()) or set(row.nodes) <= set(_place_told(told, row).values())


def _left(part: PartData) -> list[int]:
    """The hosts that were not released."""
    return [index for index in range(len(part["hosts"])) if index not in part["released"]]


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

    Once hosts were released, or a node failed, the list has gaps, so the nodes were noted when all were there;
    where nobody did so, keepers that see the job's folder have said where they are.
    A job that started after hosts were released gives its nodes to those that are left, as its keepers do;
    when Slurm has not heard of the release, some nodes are left over.
    """
    if row is None or row.liveness is not Liveness.RUNNING:
        return {}
    noted = {int(index): node for index, node in part.get("nodes", {}).items()}
    if is_noted(part, row):
        return {index: node for index, node in noted.items() if node in row.nodes}
    return (
        _count_nodes(part, row)
        if _is_counted(part, row)
        else _place_told(_load_told(part, row), row)
    )


def _load_told(part: PartData, row: JobRow) -> dict[int, str]:
    """Where the keepers of hosts that were not released said they are; empty for those that said nothing."""
    return {index: where_up(part, index, row.start) for index in _left(part)}


def _place_told(told: Mapping[int, str], row: JobRow) -> dict[int, str]:
    """Those that said where they are; the others have what is left, if there is one for each."""
    found = {index: node for index, node in told.items() if node in row.nodes}
    silent = [index for index, node in told.items() if not node]
    spare = [node for node in row.nodes if node not in found.values()]
    return (
        {**found, **dict(zip(silent, spare, strict=True))} if len(silent) == len(spare) else found
    )
