"""What an instance has: its nodes, their cores, GPUs and properties, and its queues."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import BackendError, UnreachableError
from ..hostlist import expand_hostlist
from ..programs import read_answer
from . import commands

NODES_AGE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of an instance, which is one of its brokers."""

    rank: int
    name: str
    cores: int
    gpus: int = 0
    properties: frozenset[str] = frozenset()

    @property
    def address(self) -> str:
        """By what name it is dialled."""
        return self.name

    @property
    def hostname(self) -> str:
        """What it calls itself."""
        return self.name

    def has(self, properties: Sequence[str]) -> bool:
        """Whether it is what is asked for: with every property, and without each that has a `^` before it."""
        return all(
            (word.removeprefix("^") in self.properties) != word.startswith("^")
            for word in properties
        )


def parse_idset(text: str) -> list[int]:
    """Read `0-3,7` or `[0-3,7]`: numbers as Flux writes many of them."""
    clean = text.strip().removeprefix("[").removesuffix("]")
    return [int(name) for name in expand_hostlist(f"[{clean}]")] if clean else []


def parse_resources(text: str) -> list[Node]:
    """Read what `flux resource R` prints; ValueError names what cannot be read."""
    try:
        execution: Any = json.loads(text)["execution"]
        names = [name for item in execution["nodelist"] for name in expand_hostlist(item)]
        found = {
            rank: lite["children"]
            for lite in execution["R_lite"]
            for rank in parse_idset(lite["rank"])
        }
        marked: Any = execution.get("properties") or {}
        owners = {word: frozenset(parse_idset(ranks)) for word, ranks in marked.items()}
        return [
            Node(
                rank=rank,
                name=names[at],
                cores=len(parse_idset(found[rank].get("core", ""))),
                gpus=len(parse_idset(found[rank].get("gpu", ""))),
                properties=frozenset(word for word, ranks in owners.items() if rank in ranks),
            )
            for at, rank in enumerate(sorted(found))
        ]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(f"no list of nodes: {text.strip()[:200]!r}: {error}") from error


class Inventory:
    """The nodes and queues of one instance, read seldom."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._lock = threading.Lock()
        self._nodes: list[Node] = []
        self._queues: list[str] = []
        self._read_s = float("-inf")

    def nodes(self) -> list[Node]:
        """Every node, also those that are down: they may come back."""
        self._read()
        return self._nodes

    def queues(self) -> list[str]:
        """The names of its queues; none where it has one that has no name."""
        self._read()
        return self._queues

    def _read(self) -> None:
        with self._lock:
            if time.monotonic() - self._read_s < NODES_AGE_S:
                return
            said = commands.run(["resource", "R"], uri=self._uri)
            self._nodes = read_answer("flux resource R", lambda: parse_resources(said))
            self._queues = _load_queues(self._uri)
            self._read_s = time.monotonic()


def _load_queues(uri: str) -> list[str]:
    try:
        said = commands.run(["queue", "list", "--no-header", "--format={queue}"], uri=uri)
    except UnreachableError:
        raise
    except BackendError:
        return []  # an older Flux lists them otherwise: it will refuse one that it does not have
    return said.split()


@functools.cache
def inventory(uri: str) -> Inventory:
    """What an instance has, shared by all who ask in this process."""
    return Inventory(uri)
