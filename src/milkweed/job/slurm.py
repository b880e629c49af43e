"""SlurmJob: hosts from a Slurm cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..option_tables import SLURM_OPTIONS
from ..options import check_options
from ..spec import JobSpec, Lifetime, Resources, make_meshes
from .base import JobTrait


class SlurmJob(JobTrait):
    """A job whose hosts are nodes of a Slurm cluster; run it where Slurm's commands are.

    Example:
        job = SlurmJob(meshes={"trainers": 4, "dataloaders": 2}, partition="gpu", time_limit="01:00:00")
        state = job.state()
        state.trainers     # a HostMesh of 4 hosts
    """

    def __init__(  # noqa: PLR0917  people who know monarch.job give these by position
        self,
        meshes: Mapping[str, int],
        python_exe: str = "python",
        slurm_args: Sequence[str] = (),
        monarch_port: int = 22222,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,  # noqa: FBT001, FBT002
        gpus_per_node: int | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        *,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        env: Mapping[str, Any] | None = None,
        resources: Mapping[str, Resources] | None = None,
        mesh_options: Mapping[str, Mapping[str, Any]] | None = None,
        survive_node_failure: bool = True,
        idle_timeout_s: float = Lifetime().idle_timeout_s,
        stream_logs: bool = True,
        renew: str | None = None,
        on_interrupt: str = "ask",
        on_change: str | None = None,
    ) -> None:
        said = {
            "python_exe": python_exe,
            "slurm_args": list(slurm_args) or None,
            "monarch_port": monarch_port,
            "ntasks_per_node": ntasks_per_node,
            "time_limit": None if time_limit is None else str(time_limit),
            "partition": partition,
            "log_dir": None if log_dir is None else os.path.abspath(log_dir),
            "exclusive": exclusive,
            "gpus_per_node": gpus_per_node,
            "cpus_per_task": cpus_per_task,
            "mem": None if mem is None else str(mem),
            "start_timeout": job_start_timeout,
            "account": account,
            "qos": qos,
            "constraint": constraint,
            "meshes": dict(mesh_options) if mesh_options else None,
            "survive_node_failure": survive_node_failure,
            "stream_logs": stream_logs,
            "renew": renew,
            "on_interrupt": on_interrupt,
        }
        options, client = check_options(SLURM_OPTIONS, said, where="slurm")
        self._declare(
            JobSpec(
                name=job_name,
                backend="slurm",
                meshes=make_meshes(meshes, env, resources),
                options=options,
                client=client,
                lifetime=Lifetime(idle_timeout_s=idle_timeout_s),
            ),
            on_change=on_change,
        )
