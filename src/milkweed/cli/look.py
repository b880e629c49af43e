"""Looking at recorded allocations: where they are, what their schedulers say. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backends import load_backend
from ..errors import (
    AllocationEndedError,
    MilkweedError,
    NotAppliedError,
    StateError,
    UnreachableError,
)
from ..registry import Entry, load_entries
from ..state import Record, StateFile
from ..status import HostState, HostStatus, Liveness, Status
from .choose import Chosen, the_one
from .render import SHORT_ID

if TYPE_CHECKING:
    from ..backends.base import Backend, Handle

HOOKS = "hooks"
"""The backend of job classes with hooks of their own: the class itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One allocation, as far as files tell."""

    name: str
    backend: str
    apply_id: str
    created: float
    file: StateFile
    record: Record | None
    """None when the record is gone or cannot be used: the id still finds the allocation."""

    @property
    def short_id(self) -> str:
        """The id as people see it."""
        return self.apply_id[:SHORT_ID]

    @property
    def lost(self) -> bool:
        """Whether its record is gone."""
        return self.record is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An allocation and what its scheduler says of it now."""

    allocation: Allocation
    status: Status
    handle: Handle | None = None

    @property
    def word(self) -> str:
        """Its liveness, and whether its record is lost."""
        return (
            f"{self.status.liveness} (record lost)"
            if self.allocation.lost
            else self.status.liveness
        )

    @property
    def host_count(self) -> str:
        """Ready hosts of all hosts, as far as it is known."""
        if self.status.hosts:
            ready = sum(host.state is HostState.READY for host in self.status.hosts)
            return f"{ready}/{len(self.status.hosts)}"
        record = self.allocation.record
        return f"-/{record.spec.host_count}" if record and self.allocation.backend != HOOKS else "-"

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        found, status = self.allocation, self.status
        return {
            "name": found.name,
            "backend": found.backend,
            "status": status.liveness.value,
            "reason": status.reason,
            "hosts": [host_to_json(host) for host in status.hosts],
            "exit_code": status.exit_code,
            "expected_start": status.expected_start,
            "details": dict(status.details),
            "apply_id": found.apply_id,
            "created": found.created or None,
            "age_s": round(time.time() - found.created, 3) if found.created else None,
            "record": str(found.file.path) if found.file.path.name else None,
            "record_lost": found.lost,
        }


def host_to_json(host: HostStatus) -> dict[str, Any]:
    """One host as plain data."""
    return {
        "host": host.host,
        "state": host.state.value,
        "reason": host.reason,
        "exit_code": host.exit_code,
    }


def of_record(record: Record, file: StateFile) -> Allocation:
    """The allocation that a record tells of."""
    return Allocation(
        name=record.spec.name,
        backend=record.spec.backend,
        apply_id=record.apply_id or "",
        created=record.created,
        file=file,
        record=record,
    )


def of_entry(entry: Entry) -> Allocation:
    """The allocation that is listed; its record may be gone, damaged, or another one's by now."""
    file = entry.state_file()
    try:
        record = file.load() if entry.state_path else None
    except StateError:
        record = None
    return Allocation(
        name=entry.name,
        backend=entry.backend,
        apply_id=entry.apply_id,
        created=entry.created,
        file=file,
        record=record if record and record.apply_id == entry.apply_id else None,
    )


def load_allocation(chosen: Chosen) -> Allocation | None:
    """The allocation of a job, with its record or without; None when there is none."""
    if chosen.entry is not None:
        return of_entry(chosen.entry)
    try:
        record = chosen.file.load()
    except StateError:
        if not (listed := _listed_at(chosen.file)):
            raise
        return of_entry(the_one(listed, chosen.name))
    if record is not None and record.apply_id is not None:
        return of_record(record, chosen.file)
    listed = _listed_at(chosen.file)
    return of_entry(the_one(listed, chosen.name)) if listed else None


def _listed_at(file: StateFile) -> Sequence[Entry]:
    return [entry for entry in load_entries() if entry.state_path == str(file.target)]


def load_backend_of(allocation: Allocation) -> Backend:
    """The backend that made an allocation."""
    if allocation.backend != HOOKS:
        return load_backend(allocation.backend)
    if allocation.lost:
        raise UnreachableError(
            "only the job's own class could find it, and the record that names it is gone"
        )
    from ..job.load import job_load

    return job_load(allocation.file.path)._backend()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] faces of one program


def find_handle(backend: Backend, allocation: Allocation) -> Handle | None:
    """What finds the allocation at its scheduler: recorded, or asked for by its id."""
    from ..backends import standing

    record = allocation.record
    if record is None:
        return backend.find(allocation.apply_id)
    return standing.find_handle(backend, record)


def look(allocation: Allocation) -> Seen:
    """Ask the scheduler once; whatever goes wrong, the answer is «unknown» and why."""
    from ..backends import standing

    try:
        backend = load_backend_of(allocation)
        handle = find_handle(backend, allocation)
        if handle is None:
            reason = "its scheduler has no trace of it"
            return Seen(
                allocation=allocation, status=Status(liveness=Liveness.ENDED, reason=reason)
            )
        found = standing.poll_standing(backend, handle)
        return Seen(allocation=allocation, status=found.status, handle=found.handle)
    except MilkweedError as error:
        reason = error.what
    except Exception as error:  # noqa: BLE001  a backend may be anybody's; one must not hide the others
        reason = f"{type(error).__name__}: {error}"
    return Seen(allocation=allocation, status=Status(liveness=Liveness.UNKNOWN, reason=reason))


def look_at_all(allocations: Sequence[Allocation]) -> list[Seen]:
    """Ask all schedulers at once, so that a slow one delays nobody but itself."""
    if len(allocations) < 2:
        return [look(allocation) for allocation in allocations]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(look, allocations))


def require_allocation(chosen: Chosen) -> Allocation:
    """The allocation of a job; an error when there is none."""
    if (found := load_allocation(chosen)) is not None:
        return found
    raise NotAppliedError(
        f"job {chosen.name!r} has no allocation",
        seen=f"no record at {chosen.file.path}",
        hint="`milkweed apply` asks for its hosts",
    )


def require_handle(allocation: Allocation) -> tuple[Backend, Handle]:
    """The backend, and the handle of where the job is now, whatever has become of it."""
    from ..backends import standing

    backend, handle = _require_known(allocation)
    return backend, standing.find_current_handle(backend, handle)


def _require_known(allocation: Allocation) -> tuple[Backend, Handle]:
    """The backend, and the handle of the allocation that is on record."""
    backend = load_backend_of(allocation)
    handle = find_handle(backend, allocation)
    if handle is None:
        raise AllocationEndedError(
            f"the allocation of job {allocation.name!r} is gone: its scheduler has no trace of it",
            hint="`milkweed apply` asks for another one",
        )
    return backend, handle


def require_hosts(allocation: Allocation) -> tuple[Backend, Handle, Status]:
    """The same, for a job that has hosts now."""
    from ..backends import standing

    backend, handle = _require_known(allocation)
    found = standing.poll_standing(backend, handle)
    status = found.status
    if status.liveness is Liveness.RUNNING:
        return backend, found.handle, status
    error = {
        Liveness.ENDED: AllocationEndedError,
        Liveness.UNKNOWN: UnreachableError,
        Liveness.PENDING: NotAppliedError,
    }[status.liveness]
    raise error(
        f"job {allocation.name!r} has no hosts now",
        seen=status.describe(),
        hint="`milkweed status --why` tells more",
    )
