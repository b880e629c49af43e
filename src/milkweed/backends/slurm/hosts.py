"""Asking the hosts of an allocation themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...bell import route_to
from ...control import Connection, Door
from ...errors import AccessError, BackendError, DeadlineError, UnreachableError
from ...hosts import Host
from ..credentials import ensure_client
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
    try:
        own = route_to(place.machine)
    except OSError as error:
        raise UnreachableError(f"there is no way to {place.machine}", seen=str(error)) from error
    return Door(
        machine=place.machine,
        port=place.part["port"],
        host=place.host,
        credentials=str(ensure_client(folder, own)),
        job=place.part["apply_id"],
    )


def ask_host(place: Place) -> Mapping[str, Any] | str:
    """A host's own answer, or why there is none."""
    if not place.node:
        return "it has no node yet"
    try:
        with Connection(str(make_door(place))) as connection:
            return connection.ask({"op": "status"}, "status")
    except (UnreachableError, DeadlineError, AccessError) as error:
        return error.seen or error.what


def make_host(place: Place, answer: Any) -> Host:
    """A host as its keeper described it."""
    if isinstance(answer, str):
        raise UnreachableError(f"host {place.host} does not answer", seen=answer)
    item = next(item for item in answer["hosts"] if item["host"] == place.host)
    mesh, _, rank = place.host.rpartition("/")
    return Host(
        name=place.node,
        mesh=mesh,
        rank=int(rank),
        address=item["address"],
        control=str(make_door(place)),
    )


def is_elsewhere(place: Place) -> bool:
    """Whether a host that runs keeps its log where it cannot be seen from here."""
    return bool(place.node) and not Path(place.log).exists()
