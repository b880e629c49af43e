"""The public job classes."""

from __future__ import annotations

from ..state import DEFAULT_PATH as DEFAULT_JOB_PATH
from .base import JobTrait
from .flux import FluxJob
from .load import SpecJob, job_load, job_loads, load_current_job
from .process import LocalJob, ProcessJob
from .services import MeshAdminConfig, TelemetryConfig
from .slurm import SlurmJob
from .state import JobState

__all__ = [
    "DEFAULT_JOB_PATH",
    "FluxJob",
    "JobState",
    "JobTrait",
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
