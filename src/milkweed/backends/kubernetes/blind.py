"""Hosts without a look at the cluster: a program in a pod that has no rights dials them by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ... import registry
from ...control import BY_HOST, Connection, Door
from ...errors import AccessError, DeadlineError, MilkweedError, UnreachableError
from ...hosts import Host
from ...status import HostState, HostStatus, Liveness, Status
from ..base import Handle
from ..credentials import KEY_FOLDER
from .start import Place

CLIENT_FOLDER = "client-by-host"
"""The certificate of a client that hosts never dial: it need not carry an address."""
_AT_ONCE = 32
_END_S = 10.0


def is_blind(handle: Handle) -> bool:
    """Whether this client knows nothing but names."""
    return bool(handle.get("blind"))


def doors(handle: Handle) -> list[Door]:
    """Where keepers take orders."""
    shown = registry.folder_of(handle["apply_id"]) / KEY_FOLDER / CLIENT_FOLDER
    return [
        Door(
            machine=_place(handle, mesh).address(rank),
            port=mesh["port"],
            host=f"{name}/{rank}",
            credentials=str(shown),
            job=handle["apply_id"],
            via=BY_HOST,
        )
        for name, mesh in handle["meshes"].items()
        for rank in range(mesh["hosts"])
        if mesh["kept"]
    ]


def _place(handle: Handle, mesh: Mapping[str, Any]) -> Place:
    return Place(namespace=handle["namespace"], name=mesh["name"], port=mesh["port"])


def _ask(door: Door) -> Mapping[str, Any] | str:
    try:
        with Connection(str(door)) as connection:
            return connection.ask({"op": "status"}, "status")
    except (UnreachableError, DeadlineError, AccessError) as error:
        return error.seen or error.what
    except MilkweedError as error:
        return error.what


def _ask_all(handle: Handle) -> list[tuple[Door, Mapping[str, Any] | str]]:
    found = doors(handle)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(zip(found, pool.map(_ask, found), strict=True))


def look() -> Status:
    """Nobody tells whether it has ended: it has not, as long as this client is there."""
    return Status(liveness=Liveness.RUNNING)


def poll(handle: Handle) -> Status:
    """What the hosts' keepers say."""
    hosts = tuple(_judge(door, answer) for door, answer in _ask_all(handle))
    return Status(liveness=Liveness.RUNNING, hosts=hosts)


def explain_silence(host: str) -> HostStatus:
    """A host that does not answer may still come: nobody can tell."""
    words = "its keeper does not answer"
    return HostStatus(host=host, state=HostState.STARTING, reason=words)


def _judge(door: Door, answer: Mapping[str, Any] | str) -> HostStatus:
    if isinstance(answer, str):
        return HostStatus(host=door.host, state=HostState.STARTING, reason=answer)
    item = next(item for item in answer["hosts"] if item["host"] == door.host)
    return HostStatus(
        host=door.host,
        state=HostState(item["state"]),
        reason="\n".join([item["reason"], *item.get("tail", ())]).strip(),
        exit_code=item.get("exit_code"),
    )


def hosts(handle: Handle) -> Sequence[Host]:
    """The hosts, with the addresses their workers serve."""
    found: list[Host] = []
    for door, answer in _ask_all(handle):
        if isinstance(answer, str):
            raise UnreachableError(f"host {door.host} does not answer", seen=answer)
        item = next(item for item in answer["hosts"] if item["host"] == door.host)
        mesh, _, rank = door.host.rpartition("/")
        found.append(
            Host(
                name=door.machine,
                mesh=mesh,
                rank=int(rank),
                address=item["address"],
                control=str(door),
            )
        )
    return found


def end(handle: Handle) -> None:
    """Tell all hosts that nobody wants them any more; the operator then ends their meshes."""
    found = doors(handle)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        list(pool.map(_end, found))


def _end(door: Door) -> None:
    order = {"op": "stop", "reason": "its client has ended", "for_good": True}
    with (
        contextlib.suppress(UnreachableError, DeadlineError, AccessError),
        Connection(str(door)) as connection,
    ):
        connection.send(order)
        while connection.receive(_END_S) is not None:
            pass
