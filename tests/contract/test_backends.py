"""One suite, every backend that needs nothing but this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeBackend, FakeScheduler, use_scheduler
from milkweed.backends.process import ProcessBackend
from milkweed.spec import JobSpec, make_meshes
from milkweed.testing import BackendContract


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
