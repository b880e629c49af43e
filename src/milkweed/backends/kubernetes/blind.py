"""Hosts without a look at the cluster: a program in a pod that has no rights dials them by their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import registry
from ...control import BY_HOST, Door
from ...hosts import Host
from ...status import HostState, HostStatus, Liveness, Status
from .. import keepers
from ..base import Handle
from ..credentials import KEY_FOLDER
from ..keepers import Answer, ask_all, ask_keeper, stop_keeper
from .renewal import describe_time
from .start import Place

END_PATIENCE_S = 120.0
"""How long a client that has ended waits for hosts to which it could not say so."""
AGAIN_S = 2.0
CLIENT_FOLDER = "client-by-host"
"""The certificate of a client that hosts never dial: it need not carry an address."""


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


def _ask_all(handle: Handle) -> list[tuple[Door, Answer | str]]:
    return ask_all(doors(handle), lambda door: ask_keeper(lambda: door))


def look() -> Status:
    """Nobody tells whether it has ended: it has not, as long as this client is there."""
    return Status(liveness=Liveness.RUNNING)


def poll(handle: Handle) -> Status:
    """What the hosts' keepers say."""
    asked = _ask_all(handle)
    hosts = tuple(_judge(door, answer) for door, answer in asked)
    times = describe_time([answer for _door, answer in asked])
    return Status(liveness=Liveness.RUNNING, hosts=hosts, details=times)


def explain_silence(host: str) -> HostStatus:
    """A host that does not answer may still come: nobody can tell."""
    words = "its keeper does not answer"
    return HostStatus(host=host, state=HostState.STARTING, reason=words)


def _judge(door: Door, answer: Answer | str) -> HostStatus:
    if isinstance(answer, str):
        return HostStatus(host=door.host, state=HostState.STARTING, reason=answer)
    return keepers.make_status(answer)


def hosts(handle: Handle) -> Sequence[Host]:
    """The hosts, with the addresses their workers serve."""
    return [
        keepers.make_host(door.host, answer, name=door.machine, control=str(door))
        for door, answer in _ask_all(handle)
    ]


def end(
    handle: Handle,
    *,
    patience_s: float = 0.0,
    hurried: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Tell all hosts that nobody wants them any more; the operator then ends their meshes.

    One that does not answer may be about to come anew, and would then wait for a client that never comes. Who
    is `hurried` tells all of them once.
    """
    left, deadline_s = doors(handle), clock() + patience_s
    while left := [door for door, heard in ask_all(left, _end) if not heard]:
        if hurried() or clock() >= deadline_s:
            return
        sleep(AGAIN_S)


def _end(door: Door) -> bool:
    """Whether it was heard."""
    heard = not isinstance(ask_keeper(lambda: door), str)
    stop_keeper(lambda: door, reason="its client has ended", for_good=True)
    return heard
