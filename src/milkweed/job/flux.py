"""FluxJob: hosts from a Flux instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..option_tables import FLUX_OPTIONS, check_port
from ..options import check_options
from ..spec import JobSpec, Lifetime, Resources, make_lifetime, make_meshes
from .base import JobTrait


class FluxJob(JobTrait):
    """A job whose hosts are nodes of a Flux instance; run it where the command `flux` is.

    Example:
        job = FluxJob({"trainers": 4, "dataloaders": 2}, time_limit="1h")
        state = job.state()
        state.trainers     # a HostMesh of 4 hosts
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        *,
        job_name: str = "monarch_job",
        uri: str | None = None,
        queue: str | None = None,
        bank: str | None = None,
        time_limit: str | float | None = None,
        properties: Sequence[str] = (),
        cpus_per_host: int | None = None,
        gpus_per_host: int | None = None,
        exclusive: bool = True,
        python_exe: str = "python",
        monarch_port: int = 22222,
        log_dir: str | None = None,
        job_start_timeout: float | None = None,
        env: Mapping[str, Any] | None = None,
        resources: Mapping[str, Resources] | None = None,
        mesh_options: Mapping[str, Mapping[str, Any]] | None = None,
        survive_node_failure: bool = True,
        idle_timeout_s: float = Lifetime().idle_timeout_s,
        stream_logs: bool = True,
        on_interrupt: str = "ask",
        on_change: str | None = None,
    ) -> None:
        """Declare the job; nothing is asked of Flux yet.

        Args:
            meshes: how many hosts each mesh has; a host is a node, or a share of one.
            job_name: the job's name in Flux and in `milkweed ls`.
            uri: the instance: `local://…`, `ssh://…`, or the id of a job that is one; else the one around.
            queue: the queue; else the instance's default one.
            bank: the bank to charge.
            time_limit: minutes as a number, or `90m`, `12h`, `2d`.
            properties: what every node must have; `^name` for what it must not.
            cpus_per_host: cores of each host.
            gpus_per_host: GPUs of each host.
            exclusive: share nodes with no other job.
            python_exe: the Python of the hosts; `python` is this very one where a node has it.
            monarch_port: the first of the 64 ports that hosts listen on.
            log_dir: where the hosts' logs are kept, in a folder for each allocation; else they go with it.
            job_start_timeout: how many seconds `state()` waits; the job stays in the queue.
            env: variables for all hosts, or one mapping per mesh name.
            resources: what each host of a mesh needs, where meshes differ.
            mesh_options: queue, properties and the like, where meshes differ.
            survive_node_failure: keep the other hosts when a node fails that is not the job's first.
            idle_timeout_s: recorded hosts end when nobody was connected for this long.
            stream_logs: print what actors print.
            on_interrupt: what Ctrl-C does with a job in the queue: ask, keep or cancel.
            on_change: what to do with an allocation that differs: ask, repair, replace or new.
        """
        check_port(monarch_port, "flux")
        given = {
            "uri": uri,
            "queue": queue,
            "bank": bank,
            "time_limit": None if time_limit is None else str(time_limit),
            "properties": properties if isinstance(properties, str) else list(properties) or None,
            "cpus_per_host": cpus_per_host,
            "gpus_per_host": gpus_per_host,
            "exclusive": exclusive,
            "meshes": dict(mesh_options) if mesh_options else None,
            "python_exe": python_exe,
            "monarch_port": monarch_port,
            "log_dir": log_dir,
            "start_timeout": job_start_timeout,
            "survive_node_failure": survive_node_failure,
            "stream_logs": stream_logs,
            "on_interrupt": on_interrupt,
        }
        options, client = check_options(FLUX_OPTIONS, given, where="flux")
        spec = JobSpec(
            name=job_name,
            backend="flux",
            meshes=make_meshes(meshes, env, resources),
            options=options,
            client=client,
            lifetime=make_lifetime(idle_timeout_s),
        )
        self._declare(spec, on_change=on_change)
