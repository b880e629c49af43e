"""What Slurm says of the nodes of hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...errors import BackendError
from . import commands
from .nodes import NodeRow
from .places import Place

NODES_AGE_S = 3.0
"""How old Slurm's word on a node may be when it explains why a host does not answer."""


def load_nodes_of(places: Iterable[Place]) -> Mapping[str, NodeRow]:
    """Slurm's view of the nodes of some hosts; nothing is asked when there are none."""
    wanted = {place.node for place in places if place.node}
    if not wanted:
        return {}
    try:
        return {row.name: row for row in commands.load_nodes(NODES_AGE_S) if row.name in wanted}
    except BackendError:
        return {}
