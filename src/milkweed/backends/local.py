"""This very process's machine as every mesh: nothing to allocate, procs forked from a warm parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..errors import SpecError
from ..option_tables import LOCAL_OPTIONS
from ..options import OptionField
from ..spec import JobSpec
from .base import Capabilities, Handle
from .process import ProcessBackend


class LocalBackend(ProcessBackend):
    """Every mesh is the client's own host; the keeper only keeps procs, and the client in batch mode."""

    name: ClassVar[str] = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(
        queued=False, batch=True, machine_bound=True
    )
    OPTIONS: ClassVar[Mapping[str, OptionField]] = LOCAL_OPTIONS
    _has_hosts: ClassVar[bool] = False

    def validate(self, spec: JobSpec) -> None:
        """There is only one such host."""
        for mesh in spec.meshes:
            if mesh.hosts != 1:
                raise SpecError(
                    f"meshes.{mesh.name}: {mesh.hosts} hosts, and `local` has one: this process's own",
                    hint='use `process` (ProcessJob, or LocalJob(meshes={"workers": 2})) for several',
                )

    def connect(self, spec: JobSpec, handle: Handle, client: str) -> Mapping[str, Any]:
        """The client's own host, under every name."""
        from .. import engine

        return engine.own_host(list(spec.sizes), run=handle["run"], client=client)
