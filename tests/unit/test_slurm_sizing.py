"""Sizes that change while others look on: a follow-up, a batch client, somebody who ends the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.start import load_parts
from milkweed.spec import JobSpec, MeshSpec
from milkweed.status import Liveness
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, save_part_file
from unit.slurm_jobs import create, handle_of, make_spec

WAITS = line(7, state="PENDING")
FOLLOWS = line(9, generation=1, state="PENDING")
GIVES_11 = """
case "$*" in *:1:1:*)
    echo 11 >$home/sbatch.out
    echo '{row}' >>$home/squeue.out;;
esac
"""


@pytest.fixture(autouse=True)
def _places(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """A cluster, and folders of the test's own."""


def two_meshes(**sizes: int) -> JobSpec:
    meshes = tuple(MeshSpec(name=name, hosts=hosts) for name, hosts in sizes.items())
    return JobSpec(name="demo", backend="slurm", meshes=meshes)


def parts_of(generation: int = 0) -> dict[int, dict[str, Any]]:
    return load_parts(registry.folder_of(APPLY_ID), generation)


def cancelled(cluster: FakeSlurm) -> Sequence[str]:
    return [job for arguments in cluster.called("scancel") for job in arguments]


def test_what_was_added_to_a_follow_up_goes_with_it(cluster: FakeSlurm) -> None:
    """One mesh grows and another shrinks, and Slurm takes nothing from the follow-up: all of it is given back."""
    create(two_meshes(a=2, b=1))
    save_part_file(registry.folder_of(APPLY_ID), part("a/0", "a/1", "b/0", number="1.0"))
    cluster.jobs(WAITS, FOLLOWS)
    cluster.then(
        "sbatch", GIVES_11.format(row=line(11, generation=1, component=1, state="PENDING"))
    )
    refuse = "echo >&2 'Requested operation is presently disabled'; exit 1"
    cluster.then("scontrol", f'case "$*" in *JobId=9*) {refuse};; esac')
    SlurmBackend().resize(handle_of(), two_meshes(a=1, b=2))
    assert cancelled(cluster) == ["9", "11"]


@pytest.mark.parametrize("script", [(), ("python", "train.py")])
def test_hosts_that_a_batch_client_adds_do_not_wait_for_ever(
    cluster: FakeSlurm, script: tuple[str, ...]
) -> None:
    """It is there when it asks for them; when Slurm ends it, hosts that come then end for want of a client."""
    create(make_spec(2), client_script=script)
    cluster.jobs(WAITS)
    cluster.answer("sbatch", "11\n")
    SlurmBackend().resize(handle_of(), make_spec(3))
    assert [each["queued"] for each in parts_of().values()] == [True, not script]


def test_a_job_that_is_ended_meanwhile_is_looked_at_all_the_same(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go one by one: one that was listed may be gone when it is read."""
    record = create(make_spec(2))
    cluster.jobs(WAITS)
    commands.queue.wake()
    read = Path.read_bytes

    def read_late(path: Path) -> bytes:
        if path.name.startswith("part-"):
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    assert SlurmBackend().glance(record.handle or {}).liveness is Liveness.PENDING
