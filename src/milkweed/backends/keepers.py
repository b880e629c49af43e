"""Asking the keepers of hosts, whatever scheduler started them, and what their answers mean."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from ..bell import route_to
from ..control import Connection, Door
from ..errors import (
    AccessError,
    AllocationError,
    BackendError,
    DeadlineError,
    MilkweedError,
    UnreachableError,
)
from ..hosts import Host
from ..logs import follow_files, read_file, read_tail
from ..status import HostState, HostStatus, Liveness, Status
from .base import TAIL_LINES, LogLine

AT_ONCE = 32
"""How many keepers are asked at the same time."""
STOP_S = 10.0
_TIMES = ("time_left_s", "time_limit_s")

Answer: TypeAlias = Mapping[str, Any]
"""A host as its keeper describes it."""
MakeDoor: TypeAlias = Callable[[], Door]
"""Making a door may fail as well: a machine has no name yet, a certificate cannot be had."""
Place = TypeVar("Place")
Said = TypeVar("Said")


def own_address(machine: str, route: Callable[[str], str] = route_to) -> str:
    """The address of this machine at which another one reaches it."""
    try:
        found = route(machine)
    except OSError as error:
        raise UnreachableError(f"there is no way to {machine}", seen=str(error)) from error
    if not found:
        raise UnreachableError(f"there is no way to {machine}", seen="no address of it has a route")
    return found


def ask_keeper(make_door: MakeDoor) -> Answer | str:
    """A host's own answer, or why there is none."""
    try:
        door = make_door()
        with Connection(str(door)) as connection:
            answer = connection.ask({"op": "status"}, "status")
    except (UnreachableError, DeadlineError, AccessError) as error:
        return error.seen or error.what
    except MilkweedError as error:
        return error.what
    found = [item for item in answer["hosts"] if item["host"] == door.host]
    times = {key: answer[key] for key in _TIMES if answer.get(key) is not None}
    return {**found[0], **times} if found else "its keeper does not know it"


def ask_all(places: Sequence[Place], ask: Callable[[Place], Said]) -> list[tuple[Place, Said]]:
    """What each host says, in the order of the hosts; many are asked at once."""
    if not places:
        return []
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(places))) as pool:
        return list(zip(places, pool.map(ask, places), strict=True))


def make_status(answer: Answer) -> HostStatus:
    """How a host is, in its keeper's words: why, and the last lines that a failed one wrote."""
    return HostStatus(
        host=answer["host"],
        state=HostState(answer["state"]),
        reason="\n".join([answer["reason"], *answer["tail"]]).strip(),
        exit_code=answer["exit_code"],
    )


def make_host(label: str, answer: Answer | str, *, name: str, control: str) -> Host:
    """A host that a client can attach to; UnreachableError for one that has not answered."""
    if isinstance(answer, str):
        raise UnreachableError(f"host {label} does not answer", seen=answer)
    mesh, _, rank = label.rpartition("/")
    return Host(
        name=name,
        mesh=mesh,
        rank=int(rank),
        address=answer["address"],
        control=control,
        via=answer.get("via", ""),
    )


def stop_keeper(
    make_door: MakeDoor, *, reason: str, for_good: bool = False, timeout_s: float = STOP_S
) -> None:
    """Let a host end in order, and wait for that; one that does not answer is left to its scheduler."""
    order: dict[str, Any] = {"op": "stop", "reason": reason}
    if for_good:
        order["for_good"] = True
    deadline_s = time.monotonic() + timeout_s
    with (
        contextlib.suppress(UnreachableError, DeadlineError, AccessError),
        Connection(str(make_door())) as connection,
    ):
        connection.send(order)
        while connection.receive(max(0.0, deadline_s - time.monotonic())) is not None:
            pass


def check_running(status: Status) -> None:
    """Raise unless an allocation has hosts now."""
    if status.liveness is Liveness.UNKNOWN:
        raise UnreachableError("it is not known which hosts the job has", seen=status.reason)
    if status.liveness is not Liveness.RUNNING:
        raise AllocationError(
            "the job has no hosts now", seen=status.describe(), hint="wait for them with state()"
        )


def read_tails(logs: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """The last lines of the log of each host that has written one; `logs` says in which file it is."""
    found = {host: read_tail(path, TAIL_LINES).splitlines() for host, path in logs.items()}
    return {host: lines for host, lines in found.items() if lines}


def follow_hosts(
    logs: Mapping[str, str],
    host: str | None,
    *,
    follow: bool,
    alive: Callable[[], bool],
    read: Callable[[str, int], bytes] = read_file,
) -> Iterator[LogLine]:
    """The lines of one host's log, or of every host's; `logs` says where each is, as `read` understands it."""
    if host is not None and host not in logs:
        raise BackendError(f"there is no host {host!r}", hint=f"the hosts are {', '.join(logs)}")
    chosen = {host: logs[host]} if host else logs
    for label, text in follow_files(chosen, follow=follow, alive=alive, read=read):
        yield LogLine(host=label, text=text)
