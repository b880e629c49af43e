"""What may run beside the hosts: declared and checked here, kept in the spec, started by later versions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Self, TypeVar

from ..errors import ServiceMissingError, SpecError
from ..spec import Admin, GatherMount, RemoteMount, Services, Telemetry, suggest

TelemetryConfig = Telemetry
MeshAdminConfig = Admin

_Config = TypeVar("_Config", Telemetry, Admin)


class ServiceMethods:
    """The configuration methods of a job; each returns the job, for chaining."""

    _services: Services = Services()

    def enable_telemetry(self, config: Telemetry | None = None, **kwargs: Any) -> Self:
        """Declare telemetry for this job."""
        made = _config(Telemetry, config, kwargs, "enable_telemetry")
        _check_port(made.dashboard_port, "dashboard_port")
        for name in ("retention_secs", "snapshot_interval_secs"):
            value = getattr(made, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise SpecError(
                    f"enable_telemetry: {name}: {value!r} is not a number over zero",
                    hint="say seconds",
                )
        self._services = replace(self._services, telemetry=made)
        return self

    def enable_admin(self, config: Admin | None = None, **kwargs: Any) -> Self:
        """Declare the admin service for this job."""
        made = _config(Admin, config, kwargs, "enable_admin")
        if made.admin_addr is not None:
            host, colon, port = str(made.admin_addr).rpartition(":")
            if not (host and colon and port.isdecimal()):
                raise SpecError(
                    f"enable_admin: admin_addr {made.admin_addr!r} is not HOST:PORT",
                    hint="write [::1]:1729 or 127.0.0.1:0",
                )
            _check_port(int(port), "admin_addr")
        self._services = replace(self._services, admin=made)
        return self

    def remote_mount(
        self,
        source: str,
        mntpoint: str | None = None,
        meshes: Sequence[str] | None = None,
        python_exe: str | None = ".venv/bin/python",
        **kwargs: Any,
    ) -> Self:
        """Declare a local folder to be seen on the hosts."""
        if not os.path.isdir(source):
            raise SpecError(
                f"remote_mount: {source!r} is not a folder", hint="name one that is there"
            )
        if python_exe is not None and not os.path.isfile(os.path.join(source, python_exe)):
            raise SpecError(
                f"remote_mount: {source!r} has no {python_exe!r}",
                hint="give python_exe=None when the folder holds no Python of its own",
            )
        made = RemoteMount(
            source=os.path.abspath(source),
            mntpoint=mntpoint or os.path.abspath(source),
            meshes=_names(meshes, "remote_mount"),
            python_exe=python_exe,
            options=kwargs,
        )
        self._services = replace(
            self._services, remote_mounts=(*self._services.remote_mounts, made)
        )
        return self

    def gather_mount(
        self, remote_mount_point: str, local_mount_point: str, meshes: Sequence[str] | None = None
    ) -> Self:
        """Declare a folder of the hosts to be seen locally."""
        for name, value in (("remote", remote_mount_point), ("local", local_mount_point)):
            if not value or "\0" in value:
                raise SpecError(
                    f"gather_mount: the {name} mount point {value!r} is not a path",
                    hint="name a folder",
                )
        made = GatherMount(
            remote_mount_point=remote_mount_point,
            local_mount_point=os.path.abspath(local_mount_point),
            meshes=_names(meshes, "gather_mount"),
        )
        self._services = replace(
            self._services, gather_mounts=(*self._services.gather_mounts, made)
        )
        return self

    @staticmethod
    def _refuse_missing_services(services: Services) -> None:
        """A program would not find the files it counts on: better now than after the queue."""
        mounts = [f"remote_mount({mount.source!r})" for mount in services.remote_mounts]
        mounts += [
            f"gather_mount({mount.remote_mount_point!r})" for mount in services.gather_mounts
        ]
        if mounts:
            raise ServiceMissingError(
                "mounts are not part of this version of milkweed; nothing was started",
                seen=f"declared: {', '.join(mounts)}",
                hint="hosts on this machine see the same files: declare no mount for them",
            )


def _names(meshes: Sequence[str] | None, where: str) -> tuple[str, ...] | None:
    if isinstance(meshes, str):
        raise SpecError(f"{where}: meshes must be a list of names", hint=f"write [{meshes!r}]")
    return None if meshes is None else tuple(meshes)


def _config(
    kind: type[_Config], config: _Config | None, kwargs: dict[str, Any], where: str
) -> _Config:
    if config is not None and kwargs:
        raise SpecError(
            f"{where}: give a configuration or its fields, not both", hint="leave one out"
        )
    if config is not None:
        return config
    known = [item.name for item in fields(kind)]
    for name in kwargs:
        if name not in known:
            raise SpecError(f"{where}: {name!r} is not known", hint=suggest(name, known))
    return kind(**kwargs)


def _check_port(port: int, where: str) -> None:
    is_number = isinstance(port, int) and not isinstance(port, bool)  # pyright: ignore[reportUnnecessaryIsInstance] users pass anything
    if not is_number or not 0 <= port < 65536:
        raise SpecError(f"{where}: {port!r} is not a port", hint="say 0 to 65535")
