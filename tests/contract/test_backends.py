"""One suite, every backend that needs nothing but this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeBackend, FakeScheduler, use_scheduler
from milkweed.backends.process import ProcessBackend
from milkweed.job.load import SpecJob, job_load
from milkweed.registry import load_entries
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile
from milkweed.testing import POINTS, BackendContract


class TestFake(BackendContract):
    """The fake scheduler, at once."""

    sleep = staticmethod(lambda _seconds: None)

    @pytest.fixture
    def backend(self) -> Iterator[FakeBackend]:
        """The backend, with a world of its own."""
        with use_scheduler(self.make_scheduler()):
            yield FakeBackend()

    def make_scheduler(self) -> FakeScheduler:
        """The world it talks to."""
        return FakeScheduler()

    def make_spec(self) -> JobSpec:
        """What the tests ask for."""
        return JobSpec(name="contract", backend="fake", meshes=make_meshes({"a": 3, "b": 1}))


class TestFakeWithQueue(TestFake):
    """The fake scheduler with a queue, changing sizes."""

    def make_scheduler(self) -> FakeScheduler:
        """The world it talks to."""
        return FakeScheduler(queue_polls=3, capabilities=Capabilities(resize=True))


@pytest.mark.e2e
class TestProcess(BackendContract):
    """Real processes of this machine."""

    @pytest.fixture
    def backend(self, folder: Path) -> ProcessBackend:
        """The backend, in an empty working folder."""
        return ProcessBackend()

    def make_spec(self) -> JobSpec:
        """What the tests ask for."""
        return JobSpec(name="contract", backend="process", meshes=make_meshes({"a": 1, "b": 1}))


CLIENT = """
import sys
from milkweed.job.load import SpecJob
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile
from milkweed.testing import crash_at

job = SpecJob(JobSpec(name="contract", backend="process", meshes=make_meshes({"a": 1})))
with crash_at(sys.argv[1], kill=True):
    job._apply(StateFile("job.json"), keep=True)
    job.kill()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("point", POINTS)
def test_real_hosts_are_found_after_a_real_crash(folder: Path, home: Path, point: str) -> None:
    """A client that is killed at any point leaves at most one allocation, and the next client ends it."""
    done = subprocess.run([sys.executable, "-c", CLIENT, point], check=False, timeout=60)
    assert done.returncode == -9
    spec = JobSpec(name="contract", backend="process", meshes=make_meshes({"a": 1}))
    job = SpecJob(spec)
    job._apply(StateFile("job.json"), keep=True)
    assert [entry.apply_id for entry in load_entries()] == [job.apply_id]
    assert job.wait(60).ready
    job_load("job.json").kill()
    assert job.status().liveness.value == "ended"
    assert not home.exists()
    assert list(folder.iterdir()) == []
