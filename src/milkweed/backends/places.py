"""Where the hosts of a scheduler's job are, how their keepers are asked, and what follows from the answers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..control import Door, RemoteLog
from ..errors import UnreachableError
from ..hosts import Host
from ..logs import read_file
from ..status import Liveness, Status
from . import keepers
from .base import Handle, LogLine
from .credentials import ensure_client
from .keepers import (
    Answer,
    ask_all,
    ask_keeper,
    check_running,
    follow_hosts,
    own_address,
    read_tails,
)
from .parts import keep_parts
from .traces import CLIENT_LOG, note_up

Row_co = TypeVar("Row_co", covariant=True)

PartData = Mapping[str, Any]
"""A part's file: its hosts in the order of the scheduler's tasks, those that were released, folders and ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Generic[Row_co]):
    """One host of an allocation."""

    host: str
    component: int
    index: int
    """Its number in the component: that of its task, as long as no host before it was given back."""
    node: str
    """Empty while the scheduler has not given one."""
    machine: str
    """By what name the node is dialled."""
    row: Row_co | None
    """The scheduler's job."""
    part: PartData

    @property
    def log(self) -> str:
        """The host's log file, where its node sees the folder."""
        return f"{self.part['logs']}/{self.host.replace('/', '.')}.log"


def make_door(place: Place[object]) -> Door:
    """Where the keeper of a host takes orders."""
    folder = Path(place.part["record_folder"])
    return Door(
        machine=place.machine,
        port=place.part["port"],
        host=place.host,
        credentials=str(ensure_client(folder, own_address(place.machine))),
        job=place.part["apply_id"],
    )


def ask_host(place: Place[object]) -> Answer | str:
    """A host's own answer, or why there is none."""
    if not place.node:
        return "it has no node yet"
    return ask_keeper(lambda: make_door(place))


def make_host(place: Place[object], answer: Answer | str) -> Host:
    """A host as its keeper described it."""
    control = "" if isinstance(answer, str) else str(make_door(place))
    return keepers.make_host(place.host, answer, name=place.node, control=control)


def is_elsewhere(place: Place[object]) -> bool:
    """Whether a host that runs keeps its log where it cannot be seen from here."""
    return bool(place.node) and not Path(place.log).exists()


class Kept(ABC):
    """What backends have in common whose hosts are on nodes of a scheduler, each with a keeper."""

    @abstractmethod
    def glance(self, handle: Handle, *, fresh: bool = False) -> Status:
        """What the scheduler alone says; asked of it no more often than it is worth."""

    @abstractmethod
    def places(self, handle: Handle, *, note: bool = False) -> Sequence[Place[object]]:
        """Every host and its node; who connects while all nodes are there may `note` which is whose."""

    @abstractmethod
    def told_places(self, handle: Handle) -> Sequence[Place[object]]:
        """Every host as the job's own files have it."""

    def keep(self, handle: Handle) -> None:
        """Write it where keepers read it when they start; who sees no files is told from there."""
        keep_parts(Path(handle["folder"]))

    def controls(self, handle: Handle) -> Sequence[str]:
        """Where the keepers take orders."""
        return [str(make_door(place)) for place in self.places(handle, note=True) if place.node]

    def joined(self, handle: Handle, hosts: Sequence[str]) -> None:
        """Note that the keepers of hosts were there, so that one that is not any more is known to be gone."""
        for place in self.told_places(handle):
            if place.host in hosts:
                note_up(place.part, place.index)

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """The hosts, with the addresses their workers serve."""
        check_running(self.glance(handle, fresh=True))
        asked = ask_all(self.places(handle), ask_host)
        return [make_host(place, answer) for place, answer in asked]

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """Read each host's file, or ask its keeper where it is not seen; `client` is the one of a batch client."""
        files = self._log_files(handle)

        def alive() -> bool:
            return self.glance(handle).liveness is not Liveness.ENDED

        remote = RemoteLog()

        def read(path: str, offset: int) -> bytes:
            return (read_file if path.startswith("/") else remote.read)(path, offset)

        with contextlib.closing(remote):
            yield from follow_hosts(files, host, follow=follow, alive=alive, read=read)

    def last_lines(self, handle: Handle, hosts: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The end of each host's log, where its node has written it into a folder that is seen here."""
        logs = {place.host: place.log for place in self.told_places(handle)}
        return read_tails({host: logs[host] for host in hosts if host in logs})

    def _log_files(self, handle: Handle) -> dict[str, str]:
        """Where the log of every host is: a path, or the door of its keeper."""
        try:
            places = self.places(handle)
        except UnreachableError:
            places = self.told_places(handle)
        files = {
            place.host: str(make_door(place)) if is_elsewhere(place) else place.log
            for place in places
        }
        for place in places:
            files["client"] = f"{place.part['logs']}/{CLIENT_LOG}"
        return files
