"""Job classes that people wrote themselves, against the hooks `_create`, `_state`, `can_run` and `_kill`.

Such a class is its own backend. What `_create` leaves in its attributes is what finds the allocation again, so
the attributes are the handle; they are saved as JSON, or by the class's own `to_state` and `from_state`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ..backends.base import Capabilities, Handle, LogLine, Request
from ..errors import SpecError, StateError, UnsupportedError
from ..hosts import Host
from ..plan import Observed
from ..spec import JobSpec, MeshSpec
from ..state import Record
from ..status import Liveness, Status

if TYPE_CHECKING:
    from .base import JobTrait

BACKEND = "hooks"
_OURS = frozenset({"_spec", "_held", "_on_change", "_services"})


def is_hooked(job: object) -> bool:
    """Whether a job's class has hooks of its own."""
    return hasattr(type(job), "_create")


def make_spec(job: object) -> JobSpec:
    """A hooked job declares nothing milkweed can read: `can_run` compares, the meshes come from `_state`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", type(job).__name__).strip("-._") or "job"
    return JobSpec(name=name, backend=BACKEND, meshes=(MeshSpec(name="hosts", hosts=1),))


def encode(job: JobTrait) -> dict[str, Any]:
    """A job's attributes as plain data; one that is not says its name."""
    own: Any = job
    if hasattr(own, "to_state"):
        return json.loads(json.dumps(own.to_state()))
    found = {key: value for key, value in vars(job).items() if key not in _OURS}
    for key, value in found.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"{type(job).__name__}.{key} cannot be saved: {error}",
                hint="keep plain data in attributes, or define to_state() and from_state(state)",
            ) from error
    return json.loads(json.dumps(found))


def decode(cls: type[JobTrait], state: Mapping[str, Any]) -> JobTrait:
    """The job that `encode` saw."""
    own: Any = cls
    if hasattr(own, "from_state"):
        return own.from_state(dict(state))
    job = cls.__new__(cls)
    vars(job).update(state)
    return job


def compare(job: JobTrait, observed: Observed, record: Record | None) -> Observed:
    """What is seen, as the planner compares it: jobs with hooks do so in their own way, by `can_run`."""
    if not is_hooked(job) or record is None or record.handle is None:
        return observed
    if not observed.status or not observed.status.liveness.alive:
        return observed
    if HookBackend(job).restore(record.handle).can_run(job):
        return replace(observed, spec=job.spec)
    return replace(observed, spec=replace(job.spec, options={"can_run": "another declaration"}))


class HookBackend:
    """A job's own hooks, seen as a backend."""

    name: ClassVar[str] = BACKEND
    capabilities: ClassVar[Capabilities] = Capabilities(queued=True, batch=True)

    def __init__(self, job: JobTrait) -> None:
        self._job = job

    def validate(self, spec: JobSpec) -> None:
        """Nothing is known that could be wrong."""

    def submit(self, request: Request) -> Handle:
        """Call `_create`; what it leaves in the attributes is the handle."""
        job: Any = self._job
        job._create(request.client_script[0] if request.client_script else None)
        try:
            return {"attributes": encode(self._job)}
        except SpecError:
            if not request.keep:
                return {"attributes": None}
            job._kill()
            raise

    def find(self, apply_id: str) -> Handle | None:
        """Hooks cannot be asked for an id; a class that can answers `_find(apply_id)` with a saved state."""
        finder = getattr(self._job, "_find", None)
        state = finder(apply_id) if finder else None
        return None if state is None else {"attributes": state}

    def restore(self, handle: Handle) -> Any:
        """The job object that made the allocation: this one, or one made again from what was saved."""
        if handle["attributes"] is None:
            if self._job.apply_id is None:
                raise StateError(
                    "this allocation was not saved, so only its own program reaches it",
                    hint="use the job object that made it, or state() with a cached_path",
                )
            return self._job
        return decode(type(self._job), handle["attributes"])

    def poll(self, handle: Handle) -> Status:
        """Ask `_is_running`; a class without it is running if it could run itself."""
        job = self.restore(handle)
        running = job._is_running() if hasattr(job, "_is_running") else job.can_run(job)
        if running:
            return Status(liveness=Liveness.RUNNING)
        return Status(
            liveness=Liveness.ENDED, reason=f"{type(job).__name__} says it is not running"
        )

    def hosts(self, handle: Handle) -> Sequence[Host]:
        """Hooks hand out meshes, not addresses."""
        del handle
        return ()

    def connect(self, spec: JobSpec, handle: Handle, client: str) -> Mapping[str, Any]:
        """Call `_state`; meshes of the engine get `spawn` as all others have."""
        del spec, client
        from .. import engine

        state = self.restore(handle)._state()
        meshes = state._hosts if hasattr(state, "_hosts") else dict(state)
        return {name: engine.adopt_foreign(mesh, name) for name, mesh in meshes.items()}

    def logs(self, handle: Handle, host: str | None, *, follow: bool) -> Iterator[LogLine]:
        """Hooks keep no logs."""
        del handle, host, follow
        raise UnsupportedError(f"{type(self._job).__name__} keeps no logs that milkweed knows of")

    def cancel(self, handle: Handle) -> None:
        """Call `_kill`."""
        self.restore(handle)._kill()
