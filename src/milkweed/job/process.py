"""ProcessJob and LocalJob: hosts on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from .. import identity
from ..backends.base import Handle
from ..errors import SpecError
from ..option_tables import PROCESS_OPTIONS
from ..options import check_options
from ..spec import JobSpec, Lifetime, Resources, make_lifetime, make_meshes
from .base import JobTrait


class ProcessJob(JobTrait):
    """A job whose every host is a process of this machine: for programs of many hosts on one.

    Example:
        job = ProcessJob({"trainers": 2, "dataloaders": 1})
        state = job.state(cached_path=None)
        state.trainers     # a HostMesh of 2 hosts
    """

    _backend_name = "process"

    def __init__(
        self,
        meshes: Mapping[str, int],
        env: Mapping[str, Any] | None = None,
        *,
        name: str = "process",
        transport: str = "ipc",
        resources: Mapping[str, Resources] | None = None,
        log_dir: str | None = None,
        python_exe: str | None = None,
        idle_timeout_s: float = Lifetime().idle_timeout_s,
        start_timeout_s: float | None = None,
        stream_logs: bool = True,
        on_change: str | None = None,
    ) -> None:
        """Declare the job.

        Args:
            meshes: how many hosts each mesh has.
            env: variables for all hosts, or one mapping per mesh name.
            name: how the job is called in `milkweed ls`.
            transport: `ipc` (unix sockets only this user reaches) or `tls` (mutual TLS on loopback).
            resources: what each host of a mesh needs; processes of one machine share it all the same.
            log_dir: where the hosts' logs are kept after the job; by default they go with it.
            python_exe: the interpreter of the hosts; by default this one.
            idle_timeout_s: recorded hosts end when nobody was connected for this long.
            start_timeout_s: how long `state()` waits for hosts.
            stream_logs: print what actors print.
            on_change: what to do with an allocation that differs: ask, repair, replace or new.
        """
        said = {
            "transport": transport,
            "log_dir": log_dir,
            "python_exe": python_exe,
            "start_timeout": start_timeout_s,
            "stream_logs": stream_logs,
        }
        options, client = check_options(PROCESS_OPTIONS, said, where="process")
        if logs := options.get("log_dir"):
            _check_writable(logs)
        self._declare(
            JobSpec(
                name=name,
                backend=self._backend_name,
                meshes=make_meshes(meshes, env, resources),
                options=options,
                client=client,
                lifetime=make_lifetime(idle_timeout_s),
            ),
            on_change=on_change,
        )


_LOG_HINT = "name a folder that you may write to, or leave it out"


def _check_writable(folder: str) -> None:
    """Refuse a folder for logs in which hosts could write none."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise SpecError(
            f"log_dir: {folder!r} cannot be made", seen=str(error), hint=_LOG_HINT
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError(f"log_dir: {folder!r} cannot be written to", hint=_LOG_HINT)


class LocalJob(JobTrait):
    """A job on this machine that ends with its program: the stand-in for a cluster.

    With `hosts`, every mesh is this process's own host. With `meshes`, hosts are worker processes:

        LocalJob(hosts=("trainers",))
        LocalJob(meshes={"workers": 2})
    """

    def __init__(
        self,
        hosts: Sequence[str] | None = None,
        *,
        meshes: Mapping[str, int] | None = None,
        env: Mapping[str, Any] | None = None,
        name: str = "local",
        stream_logs: bool = True,
        on_change: str | None = None,
    ) -> None:
        if hosts is not None and meshes is not None:
            raise SpecError("LocalJob takes hosts or meshes, not both", hint="leave one out")
        if isinstance(hosts, str):
            raise SpecError(f"hosts: {hosts!r} is one name", hint=f"write hosts=({hosts!r},)")
        sizes = meshes if meshes is not None else dict.fromkeys(hosts or ("hosts",), 1)
        self._declare(
            JobSpec(
                name=name,
                backend="local" if meshes is None else "process",
                meshes=make_meshes(sizes, env),
                client={} if stream_logs else {"stream_logs": False},
            ),
            on_change=on_change,
        )

    def _state_file(self, cached_path: Any) -> Any:
        """Local hosts are never recorded: they end with their program, except in batch mode."""
        del cached_path
        return super()._state_file(None)

    @property
    def process(self) -> LocalProcess:
        """The client program of a batch job."""
        held = self._held
        if held is None or not held.record.batch:
            raise ValueError("no local batch job: call apply(client_script) first")
        return LocalProcess(self, held.record.handle or {})


class LocalProcess:
    """A batch client, with the methods of `subprocess.Popen` that make sense from outside."""

    def __init__(self, job: LocalJob, handle: Handle) -> None:
        self._job = job
        self._handle = handle

    @property
    def pid(self) -> int:
        """The process that keeps the client."""
        return self._handle["keeper"]["pid"]

    @property
    def returncode(self) -> int | None:
        """The client's exit code; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """The client's exit code; None while it runs."""
        status = self._job.status()
        return None if status.liveness.alive else status.exit_code

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the client to end."""
        return self._job.wait(timeout, until="ended").exit_code

    def terminate(self) -> None:
        """Ask the client and all its procs to end."""
        identity.send_signal(self._handle["keeper"], signal.SIGTERM)

    kill = terminate
