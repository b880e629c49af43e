"""Which host is on which node: what the job's files say, put together with what Flux says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...status import Liveness
from ..places import PartData, Place
from .text import JobRow, parse_name

FluxPlace = Place[JobRow]


def rows_of(rows: Iterable[JobRow], apply_id: str) -> list[JobRow]:
    """The jobs that carry an allocation's mark."""
    marked = [(row, parse_name(row.name)) for row in rows]
    return [row for row, mark in marked if mark and mark.apply_id == apply_id]


def component_of(row: JobRow) -> int:
    """Which component a marked job is."""
    mark = parse_name(row.name)
    return mark.component if mark else -1


def make_places(rows: Sequence[JobRow], parts: Mapping[int, PartData]) -> list[FluxPlace]:
    """Every host, with its node if it has one."""
    by_component = {component_of(row): row for row in rows}
    return [
        _make_place(component, index, part, by_component.get(component))
        for component, part in sorted(parts.items())
        for index in range(len(part["hosts"]))
    ]


def _make_place(component: int, index: int, part: PartData, row: JobRow | None) -> FluxPlace:
    """Flux counts tasks along the list of nodes, and that stays the same as long as a job runs."""
    runs = row is not None and row.liveness is Liveness.RUNNING and index < len(row.nodes)
    node = row.nodes[index] if runs and row else ""
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
