"""Hosts for Monarch programs: one declaration of named meshes, any scheduler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .job import (
        JobState,
        JobTrait,
        LocalJob,
        ProcessJob,
        SlurmJob,
        job_load,
        job_loads,
    )

__all__ = [
    "JobState",
    "JobTrait",
    "LocalJob",
    "ProcessJob",
    "SlurmJob",
    "__version__",
    "job_load",
    "job_loads",
]


def __getattr__(name: str) -> Any:
    """Import job classes on first use, so that `import milkweed` stays cheap."""
    if name in __all__:
        return getattr(importlib.import_module("milkweed.job"), name)
    raise AttributeError(f"module 'milkweed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
