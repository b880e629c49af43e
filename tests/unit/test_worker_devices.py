"""How many ranks `auto`, `cpu`, `gpu` and `xpu` stand for on hosts of many kinds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from milkweed.worker import devices
from milkweed.worker.devices import Gpu, count_procs, read_mask, visible_gpus

LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1aaa0000-0000-0000-0000-000000000000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1aab0000-0000-0000-0000-000000000000)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-2ccc0000-0000-0000-0000-000000000000)
GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-3ddd0000-0000-0000-0000-000000000000)
"""
MIG_LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d40000-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba60000-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-7e8f0000-0000-0000-0000-000000000000)
  MIG 7g.40gb     Device  0: (UUID: MIG-99990000-0000-0000-0000-000000000000)
"""
NO_GPU = "this host has no GPU that can be seen: "
NO_XPU = "this host has no XPU that can be seen: "
CPUS = len(os.sched_getaffinity(0))

Smi = Callable[..., Mapping[str, str]]


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    """Puts an nvidia-smi on a PATH of its own, and gives the variables that have it."""

    def make(listing: str, bus_ids: str = "", code: int = 0, **env: str) -> Mapping[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "listing").write_text(listing)
        (folder / "bus_ids").write_text(bus_ids)
        script = folder / "nvidia-smi"
        script.write_text(
            "#!/bin/sh\n"
            'case "$*" in\n'
            f"-L) /bin/cat {folder}/listing ;;\n"
            f"'--query-gpu=pci.bus_id --format=csv,noheader') /bin/cat {folder}/bus_ids ;;\n"
            f"esac\nexit {code}\n"
        )
        script.chmod(0o755)
        return {"PATH": str(folder), **env}

    return make


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_amd(root: Path, node: int, simds: int, **facts: int) -> None:
    write(root / "dev/kfd")
    lines = {"cpu_cores_count": 0, "simd_count": simds, **facts}
    text = "".join(f"{name} {value}\n" for name, value in lines.items())
    write(root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", text)


def add_xpu(root: Path, name: str, pci: str, *, vendor: str = "0x8086", tiles: int = 0) -> Path:
    place = root / "sys/devices/pci" / pci
    write(place / "vendor", f"{vendor}\n")
    for tile in range(tiles):
        (place / f"tile{tile}").mkdir()
    node = root / "sys/class/drm" / name
    node.mkdir(parents=True)
    (node / "device").symlink_to(place)
    write(root / "dev/dri" / name)
    return place


def bare(**env: str) -> Mapping[str, str]:
    return {"PATH": "/nowhere", **env}


def test_cpu_means_those_this_process_may_use(tmp_path: Path) -> None:
    """It is the affinity that counts, not what the machine has."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert count_procs("cpu", bare(), root=tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_number_is_itself_and_another_word_is_not_understood(tmp_path: Path) -> None:
    """As torchrun: a number needs no look at the host."""
    assert count_procs("12", bare(), root=tmp_path) == 12
    with pytest.raises(ValueError, match="'tpu' does not say how many processes"):
        count_procs("tpu", bare(), root=tmp_path)


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (None, 4),
        ("0", 1),
        ("3,1", 2),
        ("2, 0", 2),
        ("0,1,9,2", 2),
        ("0,2,-1,1", 2),
        ("1gpu2,2ampere", 2),
        ("0,x,1", 1),
        ("0,1,", 2),
        ("0,GPU-2c", 1),
        ("GPU-2c,GPU-3d", 2),
        ("GPU-2ccc0000-0000-0000-0000-000000000000", 1),
        ("GPU-2c,GPU-1aa,GPU-3d", 1),
        ("GPU-2c,GPU-4e,GPU-3d", 1),
        ("GPU-2c,3", 1),
        ("GPU-2c, GPU-3d", 1),
    ],
)
def test_cuda_visible_devices_limits_the_gpus(
    smi: Smi, tmp_path: Path, mask: str | None, count: int
) -> None:
    """What is no device ends the list; a beginning of a UUID is enough if only one begins so."""
    env = smi(LISTING, **({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}))
    assert count_procs("gpu", env, root=tmp_path) == count
    assert count_procs("auto", env, root=tmp_path) == count


@pytest.mark.parametrize(
    "mask", ["", "-1", "9", "NoDevFiles", "0,0", "0,9,0", "GPU-2c,GPU-2cc", "GPU-1aa", "MIG-1"]
)
def test_a_list_may_leave_no_gpu(smi: Smi, tmp_path: Path, mask: str) -> None:
    """Then `gpu` fails, and names the list; `auto` counts the CPUs."""
    env = smi(LISTING, CUDA_VISIBLE_DEVICES=mask)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is looked at
        count_procs("gpu", env, root=tmp_path)
    assert str(caught.value) == f"{NO_GPU}CUDA_VISIBLE_DEVICES={mask!r} leaves none of 4"
    assert count_procs("auto", env, root=tmp_path) == CPUS


@pytest.mark.parametrize(
    ("mask", "uuids"),
    [
        (None, ["GPU-5d5b", "GPU-7e8f"]),
        ("1", ["GPU-7e8f"]),
        ("MIG-9,MIG-c6", ["MIG-9999", "MIG-c6d4"]),
        ("MIG-c6,MIG-c", ["MIG-c6d4"]),
        ("GPU-7,MIG-c6", ["GPU-7e8f"]),
    ],
)
def test_mig_devices_count_when_they_are_named(
    smi: Smi, tmp_path: Path, mask: str | None, uuids: list[str]
) -> None:
    """A GPU that is cut into MIG devices is one, until a list names the devices."""
    env = smi(MIG_LISTING, **({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}))
    assert [gpu.uuid[:8] for gpu in visible_gpus(env, root=tmp_path)] == uuids


@pytest.mark.parametrize(
    ("mask", "count"),
    [(None, 2), ("1", 1), ("0,2", 1), ("GPU-a,GPU-b", 2), ("MIG-a,MIG-b,MIG-c", 3)],
)
def test_without_nvidia_smi_the_devices_count(tmp_path: Path, mask: str | None, count: int) -> None:
    """/dev says how many there are, and UUIDs are believed."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        write(tmp_path / "dev" / name)
    env = bare(**({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}))
    assert count_procs("gpu", env, root=tmp_path) == count


def test_a_driver_that_is_slow_to_answer_is_not_waited_for(
    smi: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while /dev is looked at instead: a GPU host must not be taken for one without."""
    monkeypatch.setattr(devices, "PATIENCE_S", 0.2)
    env = smi(LISTING)
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    write(tmp_path / "dev/nvidia0")
    assert count_procs("gpu", env, root=tmp_path) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("No devices were found\n", "nvidia-smi says «No devices were found»"),
        ("\nNVIDIA-SMI has failed.\nMore.\n", "nvidia-smi says «NVIDIA-SMI has failed.»"),
        ("", "nvidia-smi says «nothing»"),
    ],
)
def test_a_driver_that_fails_has_no_gpu(smi: Smi, tmp_path: Path, said: str, reason: str) -> None:
    """What nvidia-smi says is what a person reads, whatever is in /dev."""
    write(tmp_path / "dev/nvidia0")
    env = smi(said, code=9)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is looked at
        count_procs("gpu", env, root=tmp_path)
    assert str(caught.value) == NO_GPU + reason
    assert count_procs("auto", env, root=tmp_path) == CPUS


def test_a_host_without_gpus(tmp_path: Path) -> None:
    """Both kinds are said to be missing, and `auto` means the CPUs."""
    with pytest.raises(ValueError, match=NO_GPU + "nvidia-smi does not answer.*/dev/kfd"):
        count_procs("gpu", bare(), root=tmp_path)
    with pytest.raises(ValueError, match=NO_XPU + "no Intel GPU is in /dev/dri"):
        count_procs("xpu", bare(), root=tmp_path)
    assert count_procs("auto", bare(), root=tmp_path) == CPUS


def test_places_on_the_bus_follow_the_list(smi: Smi, tmp_path: Path) -> None:
    """They are written as sysfs does, also where a host has very many domains."""
    ids = "00000000:17:00.0\n00000000:3D:00.0\n00000001:00:00.0\n00010000:9A:1F.0\n"
    env = smi(LISTING, ids, CUDA_VISIBLE_DEVICES="3,1,2,0")
    places = [gpu.pci for gpu in visible_gpus(env, root=tmp_path, located=True)]
    assert places == ["10000:9a:1f.0", "0000:3d:00.0", "0001:00:00.0", "0000:17:00.0"]


def test_a_mig_device_is_where_its_gpu_is(smi: Smi, tmp_path: Path) -> None:
    """Two of one GPU have the same place."""
    ids = "00000000:17:00.0\n00000000:3D:00.0\n"
    env = smi(MIG_LISTING, ids, CUDA_VISIBLE_DEVICES="MIG-cb,MIG-9,MIG-c6")
    places = [gpu.pci for gpu in visible_gpus(env, root=tmp_path, located=True)]
    assert places == ["0000:17:00.0", "0000:3d:00.0", "0000:17:00.0"]


@pytest.mark.parametrize("ids", ["", "00000000:17:00.0\n", "a\nb\nc\nd\n"])
def test_places_may_be_unknown(smi: Smi, tmp_path: Path, ids: str) -> None:
    """Lines that do not fit the GPUs tell nothing."""
    gpus = visible_gpus(smi(LISTING, ids), root=tmp_path, located=True)
    assert [gpu.pci for gpu in gpus] == [""] * 4


@pytest.mark.parametrize(
    ("env", "pci"),
    [
        ({}, ["0000:05:00.0", "0000:26:00.0", "0001:c1:02.0"]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, ["0001:c1:02.0", "0000:05:00.0"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["0000:26:00.0"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["0000:26:00.0"]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0,1,2"}, ["0000:26:00.0"]),
        ({"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, ["0000:05:00.0"]),
        ({"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, ["0001:c1:02.0"]),
        ({"ROCR_VISIBLE_DEVICES": "0,GPU-deadbeef"}, ["0000:05:00.0", "0000:26:00.0"]),
        ({"HIP_VISIBLE_DEVICES": "GPU-DEADBEEF00000007"}, ["0000:26:00.0"]),
    ],
)
def test_amd_gpus(tmp_path: Path, env: Mapping[str, str], pci: list[str]) -> None:
    """The driver's topology has CPUs too; ROCR's list comes first, then HIP's or else CUDA's."""
    add_amd(tmp_path, 0, 0)
    add_amd(tmp_path, 10, 416, unique_id=7, domain=1, location_id=0xC110)
    add_amd(tmp_path, 2, 416, unique_id=5, location_id=0x0500)
    add_amd(tmp_path, 3, 416, unique_id=0xDEADBEEF00000007, location_id=0x2600)
    assert [gpu.pci for gpu in visible_gpus(bare(**env), root=tmp_path)] == pci
    assert count_procs("auto", bare(**env), root=tmp_path) == len(pci)


def test_amd_gpus_that_are_not_ours(tmp_path: Path) -> None:
    """A container sees the machine's topology, but not the device, nor what it may not use."""
    add_amd(tmp_path, 1, 416)
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/2/properties").mkdir(parents=True)
    assert count_procs("gpu", bare(), root=tmp_path) == 1
    (tmp_path / "dev/kfd").unlink()
    assert devices.count_gpus(bare(), root=tmp_path) == 0


def test_lists_that_leave_no_amd_gpu(tmp_path: Path) -> None:
    """All lists that had a part in it are named."""
    add_amd(tmp_path, 1, 416)
    env = bare(ROCR_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="1")
    lists = "ROCR_VISIBLE_DEVICES='0' and HIP_VISIBLE_DEVICES='1'"
    with pytest.raises(ValueError, match=f"{NO_GPU}{lists} leaves none of 1"):
        count_procs("gpu", env, root=tmp_path)


def test_nvidia_gpus_come_before_amd(smi: Smi, tmp_path: Path) -> None:
    """Where nvidia-smi names none, AMD's are looked for."""
    add_amd(tmp_path, 1, 416)
    env = smi("No devices were found\n")
    assert visible_gpus(env, root=tmp_path) == [Gpu(pci="0000:00:00.0")]
    (tmp_path / "bin/listing").write_text(LISTING)
    assert count_procs("gpu", env, root=tmp_path) == 4


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 4),
        ({"ZE_AFFINITY_MASK": ""}, 4),
        ({"ZE_AFFINITY_MASK": "0"}, 1),
        ({"ZE_AFFINITY_MASK": "3,1,1,9"}, 2),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, 2),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_AFFINITY_MASK": "0.0,0.1"}, 1),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_AFFINITY_MASK": "0.0,1.1"}, 2),
    ],
)
def test_xpus(tmp_path: Path, env: Mapping[str, str], count: int) -> None:
    """Each tile of a card is a device, unless cards are asked for; a processor's GPU is not one."""
    add_xpu(tmp_path, "renderD128", "0000:00:02.0")
    add_xpu(tmp_path, "renderD129", "0000:18:00.0", tiles=2)
    gts = add_xpu(tmp_path, "renderD130", "0000:2a:00.0") / "drm/card2/gt"
    (gts / "gt0").mkdir(parents=True)
    (gts / "gt1").mkdir()
    add_xpu(tmp_path, "renderD131", "0000:03:00.0", vendor="0x1a03")
    add_xpu(tmp_path, "renderD132", "0000:4b:00.0")
    (tmp_path / "dev/dri/renderD132").unlink()
    assert count_procs("xpu", bare(**env), root=tmp_path) == count
    assert count_procs("auto", bare(**env), root=tmp_path) == count


def test_the_gpu_of_a_processor_is_only_counted_when_asked(tmp_path: Path) -> None:
    """`xpu` means it where there is no other; to `auto` it is a host without accelerators."""
    add_xpu(tmp_path, "renderD128", "0000:00:02.0")
    assert count_procs("xpu", bare(), root=tmp_path) == 1
    assert count_procs("auto", bare(), root=tmp_path) == CPUS


def test_a_mask_may_leave_no_xpu(tmp_path: Path) -> None:
    """The mask is named."""
    add_xpu(tmp_path, "renderD128", "0000:18:00.0")
    with pytest.raises(ValueError, match=f"{NO_XPU}ZE_AFFINITY_MASK='4' leaves none of 1"):
        count_procs("xpu", bare(ZE_AFFINITY_MASK="4"), root=tmp_path)


def test_what_a_list_names() -> None:
    """Numbers until one is negative, or UUIDs of the first one's kind."""
    assert read_mask("+2,01x,-3,4") == [2, 1]
    assert read_mask("MIG-a,MIG-b,GPU-c") == ["MIG-a", "MIG-b"]
    assert read_mask("1,2,1") == []
