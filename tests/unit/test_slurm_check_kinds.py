"""Types of GPUs, and disk: what no node has is refused before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.nodes import DISK_FORMAT, NodeRow, add_disks, make_sinfo_disks
from milkweed.errors import SpecError
from milkweed.spec import JobSpec, MeshSpec, Resources
from unit.slurm_fake import FakeSlurm, check_components, node, render_nodes
from unit.test_slurm_check import want

A100 = "gpu:a100:4(S:0-1),gpu:t4:2"


def gpus(name: str, gres: str, count: int) -> NodeRow:
    return node(name, gres=gres, gpus=count)


def test_gpus_are_counted_by_type() -> None:
    """Sockets and case make no difference; those without a type have none."""
    row = gpus("n1", f"{A100},gpu:1,license:3", 7)
    assert row.gpu_types == {"a100": 4, "t4": 2}
    assert (row.gpus_of("A100"), row.gpus_of("h100")) == (4, 0)


@pytest.mark.parametrize(("kind", "count"), [("a100", 4), ("T4", 1), (None, 6)])
def test_types_that_there_are_can_be_had(kind: str | None, count: int) -> None:
    """As many as one node has."""
    check_components([want(gpus_per_node=count, gpu_type=kind)], [gpus("n1", A100, 6)])


def refusal(rows: list[NodeRow], **more: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        check_components([want(**more)], rows)
    return caught.value


def test_a_type_that_no_node_has() -> None:
    """The error names it, and those that there are."""
    error = refusal([gpus("n1", A100, 6)], gpus_per_node=1, gpu_type="h100")
    assert (
        "1 GPUs of type 'h100' on each host, but no node of partition 'debug' has any" in error.what
    )
    assert error.hint == "its types of GPUs are: a100, t4"


def test_more_of_a_type_than_a_node_has() -> None:
    """Six GPUs of two types are not six of one."""
    error = refusal([gpus("n1", A100, 6)], gpus_per_node=5, gpu_type="a100")
    assert "no node of partition 'debug' has more than 4" in error.what
    assert "at most 4 GPUs of type 'a100'" in error.hint


def test_a_type_where_gpus_have_none() -> None:
    """A cluster that calls them only GPUs gives none by type."""
    error = refusal([gpus("n1", "gpu:8", 8)], gpus_per_node=1, gpu_type="h100")
    assert "leave it out" in error.hint


def test_enough_nodes_must_have_the_type() -> None:
    """One node with it is not two."""
    rows = [gpus("n1", A100, 6), gpus("n2", "gpu:t4:8", 8)]
    error = refusal(rows, hosts=2, gpus_per_node=4, gpu_type="a100")
    assert "but only 1 of the 2 nodes" in error.what


DISKS = "disk|n1|debug*|2000|end\ndisk|n2|debug*|500+|end\ndisk|n2|other|7|end\n"


def test_disks_are_asked_for_apart() -> None:
    """A record for each node and partition, as for everything else."""
    assert make_sinfo_disks() == ["sinfo", "-N", "-a", "--noconvert", "-o", DISK_FORMAT]
    rows = add_disks([node("n1"), node("n2"), node("n3")], DISKS)
    assert [row.disk_mb for row in rows] == [2000, 500, None]
    with pytest.raises(ValueError, match="disk"):
        add_disks([node("n1")], DISKS[:20])


@pytest.mark.parametrize(
    ("disk_mb", "hosts", "fits"), [(500, 2, True), (501, 2, False), (2000, 1, True)]
)
def test_disk_is_compared(disk_mb: int, hosts: int, fits: bool) -> None:
    """So many nodes must have so much."""
    rows = add_disks([node("n1"), node("n2")], DISKS)
    if fits:
        check_components([want(hosts, disk_mb=disk_mb)], rows)
    else:
        assert "2 hosts with 501 MB of disk" in refusal(rows, hosts=hosts, disk_mb=disk_mb).what


def test_more_disk_than_any_node_has() -> None:
    """The error says how much there is."""
    error = refusal(add_disks([node("n1")], DISKS), disk_mb=2001)
    assert (
        "2001 MB of disk on each host, but no node of partition 'debug' has more than 2000"
        in error.what
    )


def test_disk_that_nobody_knows_is_not_too_little() -> None:
    """A node of which nothing was told may have it."""
    check_components([want(disk_mb=10**6)], [node("n1")])


def spec_of(**resources: object) -> JobSpec:
    mesh = MeshSpec(name="w", hosts=1, resources=Resources(**resources))  # type: ignore[arg-type]
    return JobSpec(name="demo", backend="slurm", meshes=(mesh,))


def test_what_is_declared_is_compared(slurm: FakeSlurm, tmp_path: Path) -> None:
    """From the declaration to the refusal; the cluster is asked for disks only where one is wanted."""
    slurm.then("sinfo", f'case "$*" in *"{DISK_FORMAT}"*) exec cat "$home/disks" ;; esac')
    slurm.then("sbatch", '[ "$1" = --version ] && exec echo "slurm-wlm 22.05.8"')
    (slurm.home / "disks").write_text(DISKS)
    slurm.answer("sinfo", render_nodes("n1", gres="gpu:a100:4"))
    backend = SlurmBackend()
    backend.validate(spec_of(gpus=4, gpu_type="a100"))
    assert len(slurm.called("sinfo")) == 1
    backend.validate(spec_of(disk_bytes=2**30))
    assert len(slurm.called("sinfo")) == 2
    for wrong in (spec_of(gpus=1, gpu_type="h100"), spec_of(disk_bytes=2**40)):
        with pytest.raises(SpecError, match=r"meshes\.w: "):
            backend.validate(wrong)
