"""Which CPUs ranks run on, on hosts that are drawn as sysfs trees."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from milkweed.worker.affinity import MODES, cpus_for, gpu_addresses, read_ranges

CACHES = [(1, "Data"), (1, "Instruction"), (2, "Unified"), (3, "Unified")]


@dataclass
class Machine:
    """A machine with equal sockets, NUMA nodes, cores and threads, and a GPU for each of `gpus`.

    CPUs are numbered as Linux does: the first threads of all cores, then the second ones.
    """

    sockets: int
    nodes: int
    cores: int
    threads: int
    complex_cores: int
    gpus: list[int]

    @property
    def core_count(self) -> int:
        """The cores of all sockets."""
        return self.sockets * self.nodes * self.cores

    def cpus(self, cores: Iterable[int]) -> set[int]:
        """All threads of these cores."""
        threads = range(self.threads)
        return {core + thread * self.core_count for core in cores for thread in threads}

    def all_cpus(self) -> set[int]:
        """All threads of all cores."""
        return self.cpus(range(self.core_count))

    def draw(self, root: Path) -> None:
        """Write what its kernel would say."""
        node_count = self.sockets * self.nodes
        write(root, "devices/system/node/possible", f"0-{node_count - 1}")
        for node in range(node_count):
            cores = range(node * self.cores, (node + 1) * self.cores)
            write(root, f"devices/system/node/node{node}/cpulist", listed(self.cpus(cores)))
        for cpu in self.all_cpus():
            self._draw_cpu(root, cpu)
        for at, node in enumerate(self.gpus):
            write(root, f"bus/pci/devices/{address(at)}/numa_node", str(node))

    def _draw_cpu(self, root: Path, cpu: int) -> None:
        place, core = f"devices/system/cpu/cpu{cpu}", cpu % self.core_count
        siblings = listed(self.cpus([core]))
        first = core - core % self.complex_cores
        sharing = listed(self.cpus(range(first, first + self.complex_cores)))
        socket = core // (self.nodes * self.cores)
        write(root, f"{place}/topology/physical_package_id", str(socket))
        write(root, f"{place}/topology/thread_siblings_list", siblings)
        for at, (level, kind) in enumerate(CACHES):
            cache = f"{place}/cache/index{at}"
            write(root, f"{cache}/level", str(level))
            write(root, f"{cache}/type", kind)
            write(root, f"{cache}/shared_cpu_list", sharing if level == 3 else siblings)


# 2 sockets with 2 nodes each; node n has the CPUs 4n to 4n+3, and their second threads 16 above.
XEON = Machine(2, 2, 4, 2, 4, gpus=[0, 0, 1, 1, 2, 3, 3, 3])
# 1 socket, 1 node, and as VMs often say, GPUs at no node; 3 core complexes of 4 cores.
EPYC = Machine(1, 1, 12, 1, 4, gpus=[-1, -1, -1, -1, -1])
# 2 sockets, each one node with 2 core complexes of 3 cores; the GPUs are not in the nodes' order.
MILAN = Machine(2, 1, 6, 2, 3, gpus=[1, 0, 1, 0])


def write(root: Path, name: str, text: str) -> None:
    path = root / "sys" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def address(at: int) -> str:
    return f"0000:{0x1A + at:02x}:00.0"


def listed(cpus: Iterable[int]) -> str:
    return ",".join(str(cpu) for cpu in sorted(cpus))


def ask(
    root: Path, machine: Machine, mode: str, gpu: int, allowed: Collection[int] | None = None
) -> set[int]:
    """Asks with the places of the GPUs known."""
    places = [address(at) for at in range(len(machine.gpus))]
    some = machine.all_cpus() if allowed is None else allowed
    return cpus_for(mode, gpu, root=root, allowed=some, env={}, addresses=places)


def make_smi(folder: Path, machine: Machine) -> dict[str, str]:
    """Puts an nvidia-smi for the machine on a PATH of its own."""
    count = range(len(machine.gpus))
    listing = "".join(f"echo 'GPU {at}: Fake (UUID: GPU-{at}000)'\n" for at in count)
    ids = "".join(f"echo 0000{address(at).upper()}\n" for at in count)
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nif [ $1 = -L ]; then\n{listing}else\n{ids}fi\n")
    script.chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("3", {3}), ("0-2,4,6-7\n", {0, 1, 2, 4, 6, 7}), (" 1 , 3-3,", {1, 3})],
)
def test_lists_of_the_kernel(text: str, numbers: set[int]) -> None:
    """Numbers and ranges, in any mixture."""
    assert read_ranges(text) == numbers


@pytest.mark.parametrize(
    ("machine", "gpu", "cpus"),
    [
        (XEON, 0, "0-3,16-19"),
        (XEON, 3, "4-7,20-23"),
        (XEON, 4, "8-11,24-27"),
        (XEON, 7, "12-15,28-31"),
        (EPYC, 4, "0-11"),
        (MILAN, 0, "6-11,18-23"),
        (MILAN, 1, "0-5,12-17"),
    ],
)
def test_node(tmp_path: Path, machine: Machine, gpu: int, cpus: str) -> None:
    """All CPUs of the GPU's NUMA node; no node means the first."""
    machine.draw(tmp_path)
    assert ask(tmp_path, machine, "node", gpu) == read_ranges(cpus)


@pytest.mark.parametrize(
    ("machine", "gpu", "cpus"),
    [
        (XEON, 1, "0-7,16-23"),
        (XEON, 2, "0-7,16-23"),
        (XEON, 4, "8-15,24-31"),
        (XEON, 7, "8-15,24-31"),
        (EPYC, 0, "0-11"),
        (MILAN, 2, "6-11,18-23"),
    ],
)
def test_socket(tmp_path: Path, machine: Machine, gpu: int, cpus: str) -> None:
    """All CPUs of all NUMA nodes of the GPU's socket."""
    machine.draw(tmp_path)
    assert ask(tmp_path, machine, "socket", gpu) == read_ranges(cpus)


@pytest.mark.parametrize(
    ("machine", "parts"),
    [
        # Three GPUs and four cores at node 3: the first one gets the core that is left over.
        (
            XEON,
            [
                "0-1,16-17",
                "2-3,18-19",
                "4-5,20-21",
                "6-7,22-23",
                "8-11,24-27",
                "12-13,28-29",
                "14,30",
                "15,31",
            ],
        ),
        # Twelve cores for five GPUs: two are left over.
        (EPYC, ["0-2", "3-5", "6-7", "8-9", "10-11"]),
        (MILAN, ["6-8,18-20", "0-2,12-14", "9-11,21-23", "3-5,15-17"]),
    ],
)
def test_exclusive(tmp_path: Path, machine: Machine, parts: list[str]) -> None:
    """The node's cores are dealt out with all their threads, each to one of its GPUs."""
    machine.draw(tmp_path)
    found = [ask(tmp_path, machine, "exclusive", gpu) for gpu in range(len(machine.gpus))]
    assert found == [read_ranges(part) for part in parts]


@pytest.mark.parametrize(
    ("machine", "parts"),
    [
        (
            XEON,
            ["0-3,16-19"] * 2 + ["4-7,20-23"] * 2 + ["8-11,24-27"] + ["12-15,28-31"] * 3,
        ),
        # Three complexes for five GPUs: after the last one comes the first again.
        (EPYC, ["0-3", "4-7", "8-11", "0-3", "4-7"]),
        (MILAN, ["6-8,18-20", "0-2,12-14", "9-11,21-23", "3-5,15-17"]),
    ],
)
def test_core_complex(tmp_path: Path, machine: Machine, parts: list[str]) -> None:
    """Each GPU of a node gets the next complex there, in the order of their first CPUs."""
    machine.draw(tmp_path)
    found = [ask(tmp_path, machine, "core-complex", gpu) for gpu in range(len(machine.gpus))]
    assert found == [read_ranges(part) for part in parts]


@pytest.mark.parametrize(
    ("machine", "rank", "allowed", "cpus"),
    [
        (XEON, ("node", 0), "1-20", "1-3,16-19"),
        (XEON, ("socket", 0), "3-5", "3-5"),
        # Cores whose threads are not all ours: 0 by its second thread only, and 2.
        (XEON, ("exclusive", 0), "2,16", "16"),
        (XEON, ("exclusive", 1), "2,16", "2"),
        # 3, 4 and 2 CPUs are left of the complexes: the largest is first.
        (EPYC, ("core-complex", 0), "1-7,8-9", "4-7"),
        (EPYC, ("core-complex", 1), "1-7,8-9", "1-3"),
        (EPYC, ("core-complex", 2), "1-7,8-9", "8-9"),
        (EPYC, ("core-complex", 3), "1-7,8-9", "4-7"),
        # Of equal ones the first is first, also where its first CPU is not ours.
        (EPYC, ("core-complex", 0), "2-3,4-5,9", "2-3"),
        (EPYC, ("core-complex", 1), "2-3,4-5,9", "4-5"),
    ],
)
def test_only_cpus_that_may_be_used(
    tmp_path: Path, machine: Machine, rank: tuple[str, int], allowed: str, cpus: str
) -> None:
    """Of a part of the machine, shares are made of what is in it."""
    machine.draw(tmp_path)
    assert ask(tmp_path, machine, *rank, read_ranges(allowed)) == read_ranges(cpus)


def test_socket_passes_over_nodes_without_cpus_of_ours(tmp_path: Path) -> None:
    """Memory alone, nodes that may come later, and nodes of other jobs are no obstacle."""
    XEON.draw(tmp_path)
    write(tmp_path, "devices/system/node/possible", "0-9")
    write(tmp_path, "devices/system/node/node4/cpulist", "")
    assert ask(tmp_path, XEON, "socket", 0, range(8)) == set(range(8))


def test_the_driver_says_where_gpus_are(tmp_path: Path) -> None:
    """A rank's GPU is the one of its number in CUDA_VISIBLE_DEVICES, and shares are among those."""
    XEON.draw(tmp_path)
    env = make_smi(tmp_path / "bin", XEON) | {"CUDA_VISIBLE_DEVICES": "GPU-7,GPU-1,GPU-5"}
    assert gpu_addresses(env, root=tmp_path) == [address(7), address(1), address(5)]
    allowed = XEON.all_cpus()
    found = [
        cpus_for("exclusive", gpu, root=tmp_path, allowed=allowed, env=env) for gpu in range(3)
    ]
    assert found == [read_ranges(part) for part in ("12-13,28-29", "0-3,16-19", "14-15,30-31")]


def test_amd_gpus_are_where_their_driver_says(tmp_path: Path) -> None:
    """No program is asked for them."""
    MILAN.draw(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    for at in range(4):
        facts = f"simd_count 416\nlocation_id {(0x1A + at) << 8}\ndomain 0"
        write(tmp_path, f"class/kfd/kfd/topology/nodes/{at + 2}/properties", facts)
    env = {"PATH": "/nowhere", "HIP_VISIBLE_DEVICES": "1,2"}
    found = cpus_for("node", 0, root=tmp_path, allowed=MILAN.all_cpus(), env=env)
    assert found == read_ranges("0-5,12-17")


@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_without_cpus(tmp_path: Path, mode: str) -> None:
    """To run on no CPU at all is an error in every mode."""
    XEON.draw(tmp_path)
    text = "GPU 4 is at NUMA node 2, and this process may use none of the CPUs there"
    with pytest.raises(ValueError, match=text):
        ask(tmp_path, XEON, mode, 4, range(4))


def test_more_gpus_than_cores(tmp_path: Path) -> None:
    """Threads do not help: a core has one rank."""
    XEON.draw(tmp_path)
    text = "NUMA node 3 has 3 GPUs, and only 2 cores that this process may use"
    with pytest.raises(ValueError, match=text):
        ask(tmp_path, XEON, "exclusive", 5, [12, 28, 13, 29])


@pytest.mark.parametrize("gpu", [-1, 5])
def test_more_ranks_than_gpus(tmp_path: Path, gpu: int) -> None:
    """A rank without a GPU has nothing to be near to."""
    EPYC.draw(tmp_path)
    with pytest.raises(ValueError, match=f"there is no GPU {gpu} to be near to: 5 can be seen"):
        ask(tmp_path, EPYC, "node", gpu)


def test_a_host_without_gpus_and_a_driver_without_places(tmp_path: Path) -> None:
    """Both are said plainly."""
    env = {"PATH": "/nowhere"}
    with pytest.raises(ValueError, match="this host has no GPU that can be seen"):
        cpus_for("node", 0, root=tmp_path, allowed=[0], env=env)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    with pytest.raises(ValueError, match="nvidia-smi does not say where on the PCI bus GPU 0 is"):
        cpus_for("node", 0, root=tmp_path, allowed=[0], env=env)


def test_an_unknown_mode(tmp_path: Path) -> None:
    """The known ones are named."""
    text = "to CPUs: they are node, socket, exclusive, core-complex"
    with pytest.raises(ValueError, match=text):
        ask(tmp_path, EPYC, "core", 0)


@pytest.mark.parametrize(
    ("mode", "gone"),
    [
        ("node", "bus/pci/devices/0000:1a:00.0/numa_node"),
        ("node", "devices/system/node/node0/cpulist"),
        ("socket", "devices/system/node/possible"),
        ("socket", "devices/system/cpu/cpu0/topology/physical_package_id"),
        ("exclusive", "bus/pci/devices/0000:1d:00.0/numa_node"),
        ("exclusive", "devices/system/cpu/cpu5/topology/thread_siblings_list"),
        ("core-complex", "devices/system/cpu/cpu5/cache/index3/level"),
        ("core-complex", "devices/system/cpu/cpu5/cache/index3/shared_cpu_list"),
    ],
)
def test_a_kernel_that_does_not_say(tmp_path: Path, mode: str, gone: str) -> None:
    """The error has the file that is missing."""
    EPYC.draw(tmp_path)
    (tmp_path / "sys" / gone).unlink()
    text = f"this host does not say how its CPUs are arranged: /sys/{gone}: No such file"
    with pytest.raises(ValueError, match=text):
        ask(tmp_path, EPYC, mode, 0)


def test_a_kernel_that_knows_no_caches(tmp_path: Path) -> None:
    """Instruction caches are not what complexes are made of."""
    EPYC.draw(tmp_path)
    for at in (0, 2, 3):
        write(tmp_path, f"devices/system/cpu/cpu7/cache/index{at}/type", "Instruction")
    text = "does not say how its CPUs share caches: see /sys/devices/system/cpu/cpu7/cache"
    with pytest.raises(ValueError, match=text):
        ask(tmp_path, EPYC, "core-complex", 0)
