"""The public job classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..state import DEFAULT_PATH as DEFAULT_JOB_PATH
from .base import JobTrait
from .flux import FluxJob
from .load import SpecJob, job_load, job_loads, load_current_job
from .process import LocalJob, ProcessJob
from .services import MeshAdminConfig, TelemetryConfig
from .slurm import SlurmJob
from .state import JobState

if TYPE_CHECKING:
    from .kubernetes import KubernetesJob

__all__ = [
    "DEFAULT_JOB_PATH",
    "FluxJob",
    "JobState",
    "JobTrait",
    "KubernetesJob",
    "LocalJob",
    "MeshAdminConfig",
    "ProcessJob",
    "SlurmJob",
    "SpecJob",
    "TelemetryConfig",
    "job_load",
    "job_loads",
    "load_current_job",
]


def __getattr__(name: str) -> Any:
    """What talks to a cluster of Kubernetes is imported by those who have one."""
    if name == "KubernetesJob":
        from .kubernetes import KubernetesJob

        return KubernetesJob
    raise AttributeError(f"module 'milkweed.job' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
