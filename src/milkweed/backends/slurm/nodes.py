"""What `sinfo` tells about partitions and their nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .records import make_format, or_empty, parse_records
from .times import parse_clock

_FIELDS = ("%N", "%n", "%o", "%P", "%a", "%l", "%s", "%T", "%c", "%m", "%G", "%f", "%E")
SINFO_FORMAT = make_format("node", *_FIELDS)

DISK_FORMAT = make_format("disk", "%N", "%P", "%d")

_GPU = re.compile(r"gpu(?::([^:()]+))?:(\d+)(?:\(.*\))?", re.ASCII)
_GRES_COMMA = re.compile(r",(?![^(]*\))")
_USABLE = frozenset({"allocated", "completing", "idle", "mixed", "planned", "reserved"})
_GONE = frozenset({"down", "drained", "error", "fail", "future", "powered_down"})
"""What a node is that has no job; of one that is being drained, repaired or restarted the jobs may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node in one partition; a node of two partitions has two rows."""

    name: str
    hostname: str
    address: str
    partition: str
    partition_up: bool
    default: bool
    """Whether jobs without a partition go to this one."""
    max_time_s: float | None
    """None when the partition has no limit."""
    min_nodes: int
    max_nodes: int | None
    state: str
    """As Slurm writes it, with its marks: `idle`, `down*`, `drained`."""
    cpus: int
    memory_mb: int
    gpus: int
    gres: str
    features: tuple[str, ...]
    reason: str
    disk_mb: int | None = None
    """None as long as nobody has asked for it."""

    def gpus_of(self, kind: str) -> int:
        """How many GPUs of one type it has; Slurm makes no difference between upper and lower case."""
        return self.gpu_types.get(kind.lower(), 0)

    @property
    def gpu_types(self) -> dict[str, int]:
        """How many GPUs it has of each type that was given one."""
        return {kind: count for kind, count in _list_gpus(self.gres).items() if kind}

    @property
    def usable(self) -> bool:
        """Whether the node can be given to a job without an administrator's help."""
        return self._word in _USABLE and "*" not in self.state

    @property
    def gone(self) -> bool:
        """Whether no job can be running on it any more."""
        return self._word in _GONE

    @property
    def unheard(self) -> bool:
        """Whether it does not answer Slurm, which has not given it up yet.

        A controller that has just started has not heard of any node: their state is `unknown` then.
        """
        return self._word == "unknown" or ("*" in self.state and not self.gone)

    @property
    def _word(self) -> str:
        return self.state.rstrip("*~#!%$@^-+").lower()


def make_sinfo() -> list[str]:
    """The command that prints one record for each node and partition, hidden ones too."""
    return ["sinfo", "-N", "-a", "--noconvert", "-o", SINFO_FORMAT]


def parse_sinfo(text: str) -> list[NodeRow]:
    """Read what `make_sinfo` prints; ValueError names what cannot be read."""
    return [_parse_node(fields) for fields in parse_records(text, "node", len(_FIELDS))]


def _parse_node(fields: list[str]) -> NodeRow:
    (name, hostname, address, partition, available, limit, size, state, cpus, memory, gres) = (
        fields[:11]
    )
    features, reason = fields[11:]
    try:
        low, high = _parse_size(size)
        return NodeRow(
            name=name,
            hostname=hostname,
            address=address,
            partition=partition.removesuffix("*"),
            partition_up=available == "up",
            default=partition.endswith("*"),
            max_time_s=parse_clock(limit),
            min_nodes=low,
            max_nodes=high,
            state=state,
            cpus=int(cpus.rstrip("+")),
            memory_mb=int(memory.rstrip("+")),
            gpus=_count_gpus(gres),
            gres=or_empty(gres),
            features=tuple(feature for feature in or_empty(features).split(",") if feature),
            reason=or_empty(reason),
        )
    except ValueError as error:
        raise ValueError(f"a node that cannot be read: {'|'.join(fields)!r}: {error}") from error


def _parse_size(text: str) -> tuple[int, int | None]:
    """`1-infinite`, `2-8`, `1`, `1-4K`: how many nodes a job of the partition may have."""
    low, _, high = text.partition("-")
    if high:
        return _parse_count(low), None if high == "infinite" else _parse_count(high)
    return (1, None) if low == "infinite" else (_parse_count(low), _parse_count(low))


def _parse_count(text: str) -> int:
    """`4096`, or `4K` from an `sinfo` that shortens it all the same."""
    power = " KMG".find(text[-1:].upper())
    return int(text[:-1]) * 1024**power if power > 0 else int(text)


def _count_gpus(gres: str) -> int:
    """How many GPUs `gpu:a100:4(S:0-1),gpu:2` has in all."""
    return sum(_list_gpus(gres).values())


def _list_gpus(gres: str) -> dict[str, int]:
    """GPUs by type; those without one have an empty type."""
    found: dict[str, int] = {}
    for match in map(_GPU.fullmatch, _GRES_COMMA.split(gres)):
        if match:
            kind = (match[1] or "").lower()
            found[kind] = found.get(kind, 0) + int(match[2])
    return found


def make_sinfo_disks() -> list[str]:
    """The command that prints the disk of each node, which few jobs ask for."""
    return ["sinfo", "-N", "-a", "--noconvert", "-o", DISK_FORMAT]


def add_disks(rows: Sequence[NodeRow], text: str) -> list[NodeRow]:
    """Nodes with their disks, from what `make_sinfo_disks` prints; ValueError names what cannot be read."""
    disks = {
        (name, partition.removesuffix("*")): int(size.rstrip("+"))
        for name, partition, size in parse_records(text, "disk", 3)
    }
    return [replace(row, disk_mb=disks.get((row.name, row.partition))) for row in rows]
