"""Jobs on the fake backend, for tests of an allocation's life."""

from __future__ import annotations

from typing import Any

from milkweed import registry
from milkweed.job.load import SpecJob
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile

PATH = "job.json"


def make_spec(sizes: dict[str, int] | None = None, **more: Any) -> JobSpec:
    """A declaration for the fake backend, without a thread for output."""
    return JobSpec(
        **{
            "name": "demo",
            "backend": "fake",
            "meshes": make_meshes(sizes or {"a": 2}),
            "client": {"stream_logs": False},
            **more,
        }
    )


SPEC = make_spec()
OTHER = make_spec(env={"A": "1"})


def recorded(path: str = PATH) -> str | None:
    """The allocation that a path records."""
    record = StateFile(path).load()
    return record.apply_id if record else None


def listed() -> list[str]:
    """The allocations in the registry."""
    return [entry.apply_id for entry in registry.load_entries()]


def start(spec: JobSpec = SPEC) -> SpecJob:
    """A job that is connected, and recorded at the path."""
    job = SpecJob(spec)
    job.state(PATH)
    return job
