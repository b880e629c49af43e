"""Asking the hosts of an allocation themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...control import Door
from ...errors import BackendError
from ...hosts import Host
from .. import keepers
from ..credentials import ensure_client
from ..keepers import Answer, ask_keeper, own_address
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


def make_door(place: Place) -> Door:
    """Where the keeper of a host takes orders."""
    folder = Path(place.part["record_folder"])
    return Door(
        machine=place.machine,
        port=place.part["port"],
        host=place.host,
        credentials=str(ensure_client(folder, own_address(place.machine))),
        job=place.part["apply_id"],
    )


def ask_host(place: Place) -> Answer | str:
    """A host's own answer, or why there is none."""
    if not place.node:
        return "it has no node yet"
    return ask_keeper(lambda: make_door(place))


def make_host(place: Place, answer: Answer | str) -> Host:
    """A host as its keeper described it."""
    control = "" if isinstance(answer, str) else str(make_door(place))
    return keepers.make_host(place.host, answer, name=place.node, control=control)


def is_elsewhere(place: Place) -> bool:
    """Whether a host that runs keeps its log where it cannot be seen from here."""
    return bool(place.node) and not Path(place.log).exists()
