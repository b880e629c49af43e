"""Which CPUs a rank runs on by `--numa-binding`: those near its GPU, as sysfs shows the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import devices


class Share(NamedTuple):
    """The GPU whose CPUs are looked for: its NUMA node, and its turn among the GPUs there."""

    node: int
    turn: int
    among: int


class Host(NamedTuple):
    """How this host's CPUs are arranged, and which of them this process may use."""

    root: Path
    allowed: frozenset[int]

    def node_of_pci(self, address: str) -> int:
        """The NUMA node a device is at; a host with one node often says -1."""
        return max(0, int(self._read(f"bus/pci/devices/{address}/numa_node")))

    def cpus_of_node(self, node: int) -> set[int]:
        """The CPUs of a NUMA node that we may use."""
        return read_ranges(self._read(f"devices/system/node/node{node}/cpulist")) & self.allowed

    def nodes(self) -> dict[int, set[int]]:
        """The CPUs we may use, by NUMA node; a node that has none of them is left out."""
        every = sorted(read_ranges(self._read("devices/system/node/possible")))
        there = [node for node in every if self._path(f"devices/system/node/node{node}").exists()]
        cpus = {node: self.cpus_of_node(node) for node in there}
        return {node: some for node, some in cpus.items() if some}

    def socket_of_cpu(self, cpu: int) -> int:
        """The socket a CPU is in."""
        return int(self._read(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def core_of_cpu(self, cpu: int) -> int:
        """The core a CPU is a thread of, named by the first of its threads."""
        threads = f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        return min(read_ranges(self._read(threads)))

    def complex_of_cpu(self, cpu: int) -> int:
        """The core complex a CPU is in, named by the first CPU of its last data cache."""
        cache = f"devices/system/cpu/cpu{cpu}/cache"
        found = sorted(path.name for path in self._path(cache).glob("index[0-9]*"))
        data = [name for name in found if self._read(f"{cache}/{name}/type") in {"Unified", "Data"}]
        if not data:
            raise ValueError(f"this host does not say how its CPUs share caches: see /sys/{cache}")
        last = max(data, key=lambda name: int(self._read(f"{cache}/{name}/level")))
        return min(read_ranges(self._read(f"{cache}/{last}/shared_cpu_list")))

    def _path(self, name: str) -> Path:
        return self.root / "sys" / name

    def _read(self, name: str) -> str:
        try:
            return self._path(name).read_text("utf-8").strip()
        except OSError as error:
            why = f"/sys/{name}: {error.strerror}"
            raise ValueError(f"this host does not say how its CPUs are arranged: {why}") from None


def cpus_for(
    mode: str,
    gpu_index: int,
    *,
    root: Path = devices.ROOT,
    allowed: Collection[int],
    env: Mapping[str, str],
    addresses: Sequence[str] | None = None,
) -> set[int]:
    """The CPUs that the rank with this GPU runs on; `allowed` are those that this process may use.

    Who asks for many ranks gives the `addresses`, so that the driver is asked once.
    """
    if mode not in _RULES:
        raise ValueError(f"{mode!r} is no way to bind ranks to CPUs: they are {', '.join(MODES)}")
    if addresses is None:
        addresses = gpu_addresses(env, root=root)
    host = Host(root, frozenset(allowed))
    share = _find_share(host, gpu_index, addresses, alone=mode in {"node", "socket"})
    cpus = host.cpus_of_node(share.node)
    if not cpus:
        near = f"GPU {gpu_index} is at NUMA node {share.node}"
        raise ValueError(f"{near}, and this process may use none of the CPUs there")
    return _RULES[mode](host, share, cpus)


def gpu_addresses(env: Mapping[str, str], *, root: Path = devices.ROOT) -> list[str]:
    """Where on the PCI bus the GPUs are that a program with these variables sees, in its order."""
    return [gpu.pci for gpu in devices.visible_gpus(env, root=root, located=True)]


def read_ranges(text: str) -> set[int]:
    """The numbers in a list as the kernel writes it: `0-2,4,6-7`."""
    found: set[int] = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _find_share(host: Host, index: int, addresses: Sequence[str], *, alone: bool) -> Share:
    """Where a GPU is, and which others are there, unless it is looked at `alone`."""
    if not 0 <= index < len(addresses):
        raise ValueError(f"there is no GPU {index} to be near to: {len(addresses)} can be seen")
    node = _node_of_gpu(host, index, addresses)
    if alone:
        return Share(node, 0, 1)
    every = range(len(addresses))
    peers = [each for each in every if _node_of_gpu(host, each, addresses) == node]
    return Share(node, peers.index(index), len(peers))


def _node_of_gpu(host: Host, index: int, addresses: Sequence[str]) -> int:
    if not addresses[index]:
        raise ValueError(f"nvidia-smi does not say where on the PCI bus GPU {index} is")
    return host.node_of_pci(addresses[index])


def _node(_host: Host, _share: Share, cpus: set[int]) -> set[int]:
    """All of the GPU's NUMA node."""
    return cpus


def _socket(host: Host, _share: Share, cpus: set[int]) -> set[int]:
    """All NUMA nodes of the GPU's socket; the first CPU of a node says which socket it is in."""
    socket = host.socket_of_cpu(min(cpus))
    nodes = host.nodes().values()
    return set[int]().union(*(some for some in nodes if host.socket_of_cpu(min(some)) == socket))


def _exclusive(host: Host, share: Share, cpus: set[int]) -> set[int]:
    """The GPU's part of the node's cores; what is left over goes to the first GPUs, one each."""
    cores = [core for _, core in sorted(_group(cpus, host.core_of_cpu).items())]
    each, left_over = divmod(len(cores), share.among)
    if not each:
        there = f"NUMA node {share.node} has {share.among} GPUs"
        raise ValueError(f"{there}, and only {len(cores)} cores that this process may use")
    start = share.turn * each + min(share.turn, left_over)
    return set[int]().union(*cores[start : start + each + (share.turn < left_over)])


def _core_complex(host: Host, share: Share, cpus: set[int]) -> set[int]:
    """One core complex of the node: the largest for the first GPU, and so on, round and round."""
    groups = _group(cpus, host.complex_of_cpu).items()
    order = sorted(groups, key=lambda item: (-len(item[1]), item[0]))
    return order[share.turn % len(order)][1]


def _group(cpus: Iterable[int], name: Callable[[int], int]) -> dict[int, set[int]]:
    """The CPUs by what they share."""
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for cpu in cpus:
        groups[name(cpu)].add(cpu)
    return groups


_RULES: Mapping[str, Callable[[Host, Share, set[int]], set[int]]] = {
    "node": _node,
    "socket": _socket,
    "exclusive": _exclusive,
    "core-complex": _core_complex,
}

MODES = tuple(_RULES)
"""What `--numa-binding` may say."""
