"""What hosts that come later are told when their job is recorded after it was asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.base import Backend, Keeps
from milkweed.backends.fake import FakeBackend
from milkweed.backends.flux.backend import FluxBackend
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.process import ProcessBackend
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.worker import wire
from milkweed.worker.remote import load_start
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, save_part_file
from unit.slurm_jobs import create, handle_of, make_spec


@pytest.fixture
def job() -> Path:
    """The folder of an allocation with a follow-up, whose hosts end with their client."""
    made = registry.folder_of(APPLY_ID)
    for number in ("0.0", "0.1", "1.0"):
        save_part_file(made, part("w/0", number=number, keep=False, cwd="/x"))
    return made


@pytest.mark.parametrize("backend", [SlurmBackend(), FluxBackend()])
def test_keepers_read_it_when_they_start(job: Path, backend: Keeps) -> None:
    """All of them, those of a follow-up too, and again after a requeue; nothing else of what they read changes."""
    backend.keep(handle_of())
    for number in ("0.0", "0.1", "1.0"):
        path = job / wire.part_file(number)
        told = part("w/0", number=number, keep=True, cwd="/x")
        assert load_start(job, number) == told
        assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_told_already_is_not_written_again(job: Path) -> None:
    """Telling it twice is as once."""
    SlurmBackend().keep(handle_of())
    before = {path: path.stat().st_mtime_ns for path in job.glob("part-*")}
    SlurmBackend().keep(handle_of())
    assert before == {path: path.stat().st_mtime_ns for path in job.glob("part-*")}


def test_what_is_gone_needs_no_word(job: Path) -> None:
    """Its hosts have ended, or somebody has ended it."""
    shutil.rmtree(job)
    SlurmBackend().keep(handle_of())
    assert not job.exists()


def test_nodes_that_see_no_files_are_told_the_same(cluster: FakeSlurm, job: Path) -> None:
    """Whoever lets them in hands on what lies in the job's folder."""
    cluster.jobs(line(7, nodes="n1"))
    SlurmBackend().keep(handle_of())
    assert {place.part["keep"] for place in SlurmBackend().told_places(handle_of())} == {True}


@pytest.mark.usefixtures("folder")
def test_what_is_asked_for_later_is_kept_from_the_start(cluster: FakeSlurm) -> None:
    """Follow-ups, and added hosts, are as the hosts that they join."""
    backend = SlurmBackend()
    handle = dict(create(keep=False).handle or {})
    cluster.jobs(line(7, nodes="n[1-2]"))
    backend.keep(handle)
    cluster.answer("sbatch", "8\n")
    commands.queue.wake()
    resized = backend.resize(handle, make_spec(3))
    cluster.answer("sbatch", "9\n")
    backend.renew(resized, make_spec(3))
    home = registry.folder_of(APPLY_ID)
    kept = {path.name: json.loads(path.read_bytes())["keep"] for path in home.glob("part-*")}
    assert kept == {"part-0.0.json": True, "part-0.1.json": True, "part-1.0.json": True}
    assert '"keep": true' in cluster.script


@pytest.mark.parametrize(
    ("backend", "keeps"),
    [
        (SlurmBackend(), True),
        (FluxBackend(), True),
        (KubernetesBackend(), True),
        (FakeBackend(), True),
        (ProcessBackend(), False),
    ],
)
def test_backends_with_hosts_that_come_later_can_tell_them(
    backend: Backend, *, keeps: bool
) -> None:
    """Local hosts are there at once, and hear it from their client."""
    assert isinstance(backend, Keeps) is keeps
