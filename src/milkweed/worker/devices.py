"""What `--nproc-per-node` means here: the CPUs and the GPUs of this host, asked without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
PATIENCE_S = 10
NVIDIA_MASK = "CUDA_VISIBLE_DEVICES"
AMD_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", NVIDIA_MASK)
XPU_MASK = "ZE_AFFINITY_MASK"
INTEGRATED_AT = "0000:00:02.0"
"""Where Intel's processors have the GPU that is a part of them."""


class NoDeviceError(ValueError):
    """This host has no device of the kind that was asked for."""


class Gpu(NamedTuple):
    """A GPU, as far as it is known; `parts` are the UUIDs of the MIG devices it is cut into."""

    uuid: str = ""
    pci: str = ""
    parts: tuple[str, ...] = ()


def count_procs(word: str, env: Mapping[str, str], *, root: Path = ROOT) -> int:
    """How many ranks a host gets by this word: auto, cpu, gpu, xpu, or a number."""
    if word == "cpu":
        return count_cpus()
    if word == "gpu":
        return len(visible_gpus(env, root=root))
    if word == "xpu":
        return _count_xpus_or_fail(env, root)
    if word == "auto":
        return count_gpus(env, root=root) or count_xpus(env, root=root, own=True) or count_cpus()
    try:
        return int(word)
    except ValueError:
        known = "a number, auto, cpu, gpu or xpu"
        raise ValueError(f"{word!r} does not say how many processes: it is {known}") from None


def count_cpus() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def count_gpus(env: Mapping[str, str], *, root: Path = ROOT) -> int:
    """The GPUs that a program with these variables sees; 0 where there is none."""
    try:
        return len(visible_gpus(env, root=root))
    except NoDeviceError:
        return 0


def visible_gpus(env: Mapping[str, str], *, root: Path = ROOT, located: bool = False) -> list[Gpu]:
    """The GPUs that a program with these variables sees, in its order; `located`: and where."""
    gpus, reason = _list_nvidia(env, root)
    masks: Sequence[str] = (NVIDIA_MASK,)
    if gpus:
        left = _visible_nvidia(env.get(NVIDIA_MASK), _locate(env, gpus) if located else gpus)
    else:
        gpus, masks = _list_amd(root), AMD_MASKS
        left = _visible_amd(env, gpus)
    if left:
        return left
    if gpus:
        reason = _hidden(env, masks, len(gpus))
    raise NoDeviceError(f"this host has no GPU that can be seen: {reason}")


def _hidden(env: Mapping[str, str], masks: Sequence[str], count: int) -> str:
    """Which variables leave no device."""
    said = " and ".join(f"{name}={env[name]!r}" for name in masks if name in env)
    return f"{said} leaves none of {count}"


def _list_nvidia(env: Mapping[str, str], root: Path) -> tuple[list[Gpu], str]:
    """The NVIDIA GPUs of this host, or why there are none."""
    lines = _ask_nvidia(env, "-L")
    if lines is None:
        there = [re.fullmatch(r"nvidia\d+", path.name) for path in root.glob("dev/nvidia*")]
        reason = "nvidia-smi does not answer, and there is no /dev/nvidia0 or /dev/kfd"
        return [Gpu() for each in there if each], reason
    said = next((line.strip() for line in lines if line.strip()), "nothing")
    return _read_listing(lines), f"nvidia-smi says «{said}»"


def find_driver(env: Mapping[str, str]) -> str | None:
    """The command that answers for NVIDIA's driver; None where it is not there."""
    return shutil.which("nvidia-smi", path=env.get("PATH", os.defpath))


def _ask_nvidia(env: Mapping[str, str], *words: str) -> list[str] | None:
    """The lines nvidia-smi prints; None where it is not there, or does not answer in time.

    Its exit code is not looked at: a keeper may have taken it already.
    """
    program = find_driver(env)
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  the driver's own command
            [program, *words],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr).decode(errors="replace").splitlines()


def _read_listing(lines: Sequence[str]) -> list[Gpu]:
    """The GPUs in what `nvidia-smi -L` prints; MIG devices stand indented below theirs."""
    gpus: list[Gpu] = []
    for line in lines:
        uuid = re.search(r"\(UUID: ([^)\s]+)\)", line)
        name = uuid[1] if uuid else ""
        if re.match(r"GPU \d+:", line):
            gpus.append(Gpu(name))
        elif gpus and name.startswith("MIG-"):
            gpus[-1] = gpus[-1]._replace(parts=(*gpus[-1].parts, name))
    return gpus


def _locate(env: Mapping[str, str], gpus: list[Gpu]) -> list[Gpu]:
    """The same GPUs with their places on the PCI bus, if nvidia-smi names as many."""
    lines = _ask_nvidia(env, "--query-gpu=pci.bus_id", "--format=csv,noheader") or []
    if len(lines) != len(gpus):
        return gpus
    return [gpu._replace(pci=_sysfs_address(line)) for gpu, line in zip(gpus, lines, strict=True)]


def _sysfs_address(bus_id: str) -> str:
    """A PCI address as sysfs writes it: NVIDIA writes more zeros, and capitals."""
    parts = re.fullmatch(r"([0-9A-Fa-f]+):([0-9A-Fa-f]+):([0-9A-Fa-f]+)\.\d", bus_id.strip())
    return _address(*(int(part, 16) for part in parts.groups())) if parts else ""


def _address(domain: int, bus: int, device: int) -> str:
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _visible_nvidia(mask: str | None, gpus: list[Gpu]) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES leaves; UUIDs that cannot be looked up are believed."""
    if mask is None:
        return gpus
    named = read_mask(mask)
    if mask.startswith(("GPU-", "MIG-")) and not any(gpu.uuid for gpu in gpus):
        return [Gpu()] * len(named)
    if mask.startswith("MIG-"):
        gpus = [gpu._replace(uuid=part) for gpu in gpus for part in gpu.parts]
    return [gpus[at] for at in pick(named, [gpu.uuid for gpu in gpus])]


def read_mask(mask: str) -> Sequence[int | str]:
    """The devices CUDA_VISIBLE_DEVICES names, up to the first word of another kind.

    The first word says which kind: numbers, or UUIDs of GPUs, or of MIG devices. One that is
    named twice makes the whole list void.
    """
    kind, words = mask[:4], mask.split(",")
    named: list[int] | list[str]
    if kind in {"GPU-", "MIG-"}:
        named = list(takewhile(lambda word: word.startswith(kind), words))
    else:
        named = list(takewhile(lambda number: number >= 0, map(_leading_number, words)))
    return named if len(set(named)) == len(named) else []


def _leading_number(word: str) -> int:
    """The number that a word begins with; -1 if none."""
    number = re.match(r"[+-]?[0-9]+", word.strip())
    return int(number[0]) if number else -1


def pick(named: Sequence[int | str], uuids: Sequence[str]) -> list[int]:
    """Where the named devices are in the list of all; the first that is not there is the end."""
    found: list[int] = []
    for each in named:
        at = each if isinstance(each, int) else _begins_with(each, uuids)
        if not 0 <= at < len(uuids):
            break
        found.append(at)
    return found if len(set(found)) == len(found) else []


def _begins_with(beginning: str, uuids: Sequence[str]) -> int:
    """Where the only UUID that begins so is; -1 if there is none, or several."""
    found = [at for at, uuid in enumerate(uuids) if uuid.startswith(beginning)]
    return found[0] if len(found) == 1 else -1


def _list_amd(root: Path) -> list[Gpu]:
    """The AMD GPUs of this host; one that our cgroup does not give us cannot be read."""
    if not (root / "dev/kfd").exists():
        return []
    nodes = root.glob("sys/class/kfd/kfd/topology/nodes/*")
    every = [_read_kfd(node) for node in sorted(nodes, key=lambda node: _leading_number(node.name))]
    return [_amd_gpu(facts) for facts in every if facts.get("simd_count", 0) > 0]


def _read_kfd(node: Path) -> dict[str, int]:
    """What the driver says of one node of its topology: a name and a number a line."""
    lines = _read(node / "properties").splitlines()
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _amd_gpu(facts: Mapping[str, int]) -> Gpu:
    unique, place = facts.get("unique_id", 0), facts.get("location_id", 0)
    pci = _address(facts.get("domain", 0), place >> 8 & 0xFF, place >> 3 & 0x1F)
    return Gpu(f"GPU-{unique:016X}" if unique else "", pci)


def _visible_amd(env: Mapping[str, str], gpus: list[Gpu]) -> list[Gpu]:
    """What is left by ROCR's list, and of that by HIP's; CUDA's counts where HIP has none."""
    rocr, hip, cuda = (env.get(name) for name in AMD_MASKS)
    for mask in (rocr, cuda if hip is None else hip):
        if mask is not None:
            words = mask.upper().split(",")
            named = [word if word.startswith("GPU-") else _leading_number(word) for word in words]
            gpus = [gpus[at] for at in pick(named, [gpu.uuid for gpu in gpus])]
    return gpus


def _count_xpus_or_fail(env: Mapping[str, str], root: Path) -> int:
    count = count_xpus(env, root=root)
    if count:
        return count
    there = len(_list_xpus(env, root))
    reason = _hidden(env, (XPU_MASK,), there) if there else "no Intel GPU is in /dev/dri"
    raise NoDeviceError(f"this host has no XPU that can be seen: {reason}")


def count_xpus(env: Mapping[str, str], *, root: Path = ROOT, own: bool = False) -> int:
    """Intel's GPUs that a program with these variables sees.

    One that is part of the processor counts only where there is no other, and never if they must be
    their `own` devices.
    """
    seen = _list_xpus(env, root)
    mask = env.get(XPU_MASK)
    if mask:
        wanted = {_leading_number(word) for word in mask.split(",")}
        seen = [integrated for at, integrated in enumerate(seen) if at in wanted]
    return seen.count(False) or (0 if own else seen.count(True))


def _list_xpus(env: Mapping[str, str], root: Path) -> list[bool]:
    """For each of Intel's GPUs, whether it is part of the processor; those come last.

    A card is as many devices as it has tiles, unless the variables say that it is one.
    """
    nodes = [node for node in root.glob("sys/class/drm/render*") if _is_xpu(node, root)]
    places = {(node / "device").resolve() for node in nodes}
    whole = env.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE"
    cards = [place for place in places if place.name != INTEGRATED_AT]
    slots = sum(1 if whole else _count_tiles(card) for card in cards)
    return [False] * slots + [True] * (len(places) - len(cards))


def _is_xpu(node: Path, root: Path) -> bool:
    """Whether it is Intel's, and this process has its device: /sys also shows those of others."""
    return _read(node / "device/vendor") == "0x8086" and (root / "dev/dri" / node.name).exists()


def _count_tiles(card: Path) -> int:
    """The tiles of a card: the driver xe shows them as such, i915 as engines."""
    shown = (list(card.glob("tile[0-9]*")), list(card.glob("drm/card*/gt/gt[0-9]*")))
    return max(1, *map(len, shown))


def _read(path: Path) -> str:
    """What a file of the kernel says; nothing if it cannot be read."""
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
