"""ProcessJob and LocalJob: hosts on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from .. import identity
from ..backends.base import Handle
from ..errors import SpecError
from ..spec import JobSpec, Lifetime, Resources, make_meshes
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
            on_change: what to do with an allocation that differs: ask, replace or new.
        """
        if transport not in {"ipc", "tls"}:
            raise SpecError(f"transport: {transport!r} is not known", hint="use 'ipc' or 'tls'")
        options: dict[str, Any] = {"transport": transport} if transport != "ipc" else {}
        if log_dir is not None:
            options["log_dir"] = _writable_folder(log_dir)
        if python_exe is not None:
            options["python_exe"] = python_exe
        client: dict[str, Any] = {} if stream_logs else {"stream_logs": False}
        if start_timeout_s is not None:
            client["start_timeout"] = start_timeout_s
        self._declare(
            JobSpec(
                name=name,
                backend=self._backend_name,
                meshes=make_meshes(meshes, env, resources),
                options=options,
                client=client,
                lifetime=Lifetime(idle_timeout_s=idle_timeout_s),
            ),
            on_change=on_change,
        )


def _writable_folder(path: str) -> str:
    folder = os.path.abspath(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise SpecError(f"log_dir: {path!r} cannot be made", seen=str(error)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError(f"log_dir: {path!r} cannot be written to")
    return folder


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
            raise SpecError("LocalJob takes hosts or meshes, not both")
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
