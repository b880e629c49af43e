"""Hosts for Monarch programs: one declaration of named meshes, any scheduler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .compute import Compute
    from .image import Image
    from .job import (
        FluxJob,
        JobState,
        JobTrait,
        LocalJob,
        ProcessJob,
        SlurmJob,
        job_load,
        job_loads,
    )
    from .job.kubernetes import KubernetesJob

__all__ = [
    "Compute",
    "FluxJob",
    "Image",
    "JobState",
    "JobTrait",
    "KubernetesJob",
    "LocalJob",
    "ProcessJob",
    "SlurmJob",
    "__version__",
    "job_load",
    "job_loads",
]


_ELSEWHERE = {"Compute": "compute", "Image": "image", "KubernetesJob": "job.kubernetes"}


def __getattr__(name: str) -> Any:
    """Import classes on first use, so that `import milkweed` stays cheap."""
    if name in __all__:
        module = _ELSEWHERE.get(name, "job")
        return getattr(importlib.import_module(f"milkweed.{module}"), name)
    raise AttributeError(f"module 'milkweed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
