"""How hosts are: their own answers, put together with what Slurm says of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...errors import BackendError
from ...status import HostStatus
from .. import keepers
from . import commands
from .nodes import NodeRow
from .places import Place
from .status import judge_host

NODES_AGE_S = 3.0
"""How old Slurm's word on a node may be when it explains why a host does not answer."""


def load_nodes_of(places: Iterable[Place], max_age_s: float = NODES_AGE_S) -> Mapping[str, NodeRow]:
    """Slurm's view of the nodes of some hosts; nothing is asked when there are none."""
    wanted = {place.last_node for place in places if place.last_node}
    if not wanted:
        return {}
    try:
        return {row.name: row for row in commands.load_nodes(max_age_s) if row.name in wanted}
    except BackendError:
        return {}


def judge_hosts(
    asked: Sequence[tuple[Place, keepers.Answer | str]], nodes_age_s: float = NODES_AGE_S
) -> list[tuple[Place, HostStatus]]:
    """How each host is, by its own answer or by why there is none."""
    silent = (place for place, answer in asked if isinstance(answer, str))
    nodes = load_nodes_of(silent, nodes_age_s)
    return [
        (
            place,
            judge_host(place, answer, nodes)
            if isinstance(answer, str)
            else keepers.make_status(answer),
        )
        for place, answer in asked
    ]
