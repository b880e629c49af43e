"""For those who write backends: a suite to run them through, a scheduler in memory, time, crashes.

    class TestMine(BackendContract):
        @pytest.fixture
        def backend(self):
            return MyBackend()

        def make_spec(self):
            return JobSpec(name="try", backend="mine", meshes=make_meshes({"a": 2, "b": 1}))

Nothing here imports pytest; running the suite needs it.
"""

from __future__ import annotations

from ..backends.fake import (
    FakeAllocation,
    FakeBackend,
    FakeCall,
    FakeMesh,
    FakeScheduler,
    current_scheduler,
    use_scheduler,
)
from .clock import FakeClock
from .contract import BackendContract
from .crash import POINTS, Crash, Passages, crash_at

__all__ = [
    "POINTS",
    "BackendContract",
    "Crash",
    "FakeAllocation",
    "FakeBackend",
    "FakeCall",
    "FakeClock",
    "FakeMesh",
    "FakeScheduler",
    "Passages",
    "crash_at",
    "current_scheduler",
    "use_scheduler",
]
