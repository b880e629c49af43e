"""SlurmJob: hosts from a Slurm cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..option_tables import SLURM_OPTIONS, check_port
from ..options import check_options
from ..spec import JobSpec, Lifetime, MeshSpec, Resources, is_per_mesh, make_lifetime, make_meshes
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
        account: str | None = None,
        qos: str | None = None,
        *,
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
        """Declare the job; nothing is asked of Slurm yet.

        Args:
            meshes: how many hosts each mesh has; a host is a node, or a share of one.
            python_exe: the Python of the hosts; `python` is this very one where a node has it.
            slurm_args: more options of sbatch, as they are.
            monarch_port: the first of the 64 ports that hosts listen on.
            job_name: the job's name in Slurm and in `milkweed ls`.
            ntasks_per_node: how many tasks each host's share of CPUs is counted as.
            time_limit: as Slurm writes it (`90`, `1:30:00`, `2-12`), or `90m`, `12h`.
            partition: the partition; else the cluster's default one.
            log_dir: where the hosts' logs are kept, in a folder for each allocation; else they go with it.
            exclusive: share nodes with no other job.
            gpus_per_node: GPUs of each host.
            cpus_per_task: CPUs of each task.
            mem: memory of each host, as Slurm writes it.
            job_start_timeout: how many seconds `state()` waits; the job stays in the queue.
            account: the account to charge.
            qos: the quality of service.
            constraint: features that every node must have.
            env: variables for all hosts, or one mapping per mesh name.
            resources: what each host of a mesh needs, where meshes differ.
            mesh_options: partition, constraint and the like, where meshes differ.
            survive_node_failure: keep the other hosts when a node fails.
            idle_timeout_s: recorded hosts end when nobody was connected for this long.
            stream_logs: print what actors print.
            renew: ask for a follow-up job in time: `before time limit`, or `30m` before it.
            on_interrupt: what Ctrl-C does with a job in the queue: ask, keep or cancel.
            on_change: what to do with an allocation that differs: ask, repair, replace or new.
        """
        check_port(monarch_port)
        said = {
            "python_exe": python_exe,
            "slurm_args": slurm_args if isinstance(slurm_args, str) else list(slurm_args) or None,
            "monarch_port": monarch_port,
            "ntasks_per_node": ntasks_per_node,
            "time_limit": None if time_limit is None else str(time_limit),
            "partition": partition,
            "log_dir": log_dir,
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
                meshes=make_meshes(meshes, env if is_per_mesh(env) else None, resources),
                env={} if is_per_mesh(env) else dict(env or {}),  # of meshes that are added, too
                options=options,
                client=client,
                lifetime=make_lifetime(idle_timeout_s),
            ),
            on_change=on_change,
        )

    def add_mesh(self, name: str, num_nodes: int) -> None:
        """Declare one more mesh; an allocation that exists is not changed by that, but shown to differ."""
        spec = self.spec
        mesh = MeshSpec(name=name, hosts=num_nodes)
        self._spec = replace(spec, meshes=(*spec.meshes, mesh))

    def share_node(self, tasks_per_node: int, gpus_per_task: int, partition: str) -> None:
        """Share nodes with other jobs: ask for as much of each node's CPUs and memory as of its GPUs."""
        from ..backends.slurm.commands import load_nodes
        from ..backends.slurm.sharing import make_share

        share = make_share(
            load_nodes(), partition=partition, tasks=tasks_per_node, gpus_per_task=gpus_per_task
        )
        spec = self.spec
        options, _client = check_options(SLURM_OPTIONS, {**spec.options, **share}, where="slurm")
        self._spec = replace(spec, options=options)
