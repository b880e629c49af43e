"""Looking at what is recorded: the allocation, and the follow-up that may have taken its place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .. import registry
from ..backends.base import Backend, Handle, Look
from ..backends.standing import Standing, find_current_handle, find_handle, poll_standing
from ..errors import NotAppliedError, UnreachableError
from ..plan import Observed, Renewal
from ..state import Record, StateFile
from ..status import HostState, Liveness, Status
from .ways import reroute

if TYPE_CHECKING:
    from .lifecycle import Wish


def observe(
    backend: Backend, record: Record | None, file: StateFile | None, wish: Wish | None = None
) -> tuple[Record | None, Observed]:
    """Look at the recorded allocation; an intent without an answer is completed if the scheduler has it.

    It is looked at in the way that the client declares now, whatever was recorded.
    """
    if record is None or record.apply_id is None:
        return None, Observed()
    unfinished = registry.resizing_path(record.apply_id).exists()
    seen = Observed(spec=record.spec, apply_id=record.apply_id, unfinished=unfinished)
    try:
        handle = find_handle(backend, record)
        if handle is None:
            return record, seen
        if record.handle is None:
            record = record.submitted(handle)
            if file is not None:
                file.save(record)
        record = reroute(backend, record, wish.spec) if wish else record
        renew, planned = (wish.renew, True) if wish else (None, False)
        found = poll_standing(backend, record.handle or {}, renew, planned=planned)
    except UnreachableError as error:
        return record, replace(seen, status=_silence(error))
    return record, replace(
        seen, status=found.before, renewal=found.renewal, follow=_tell_failed(found)
    )


def _silence(error: UnreachableError) -> Status:
    return Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what)


def _tell_failed(found: Standing) -> Status | None:
    """The follow-up; one that has failed says why."""
    follow = found.follow
    if follow is None or follow.reason or found.renewal is not Renewal.FAILED:
        return follow
    return replace(follow, reason=_describe_lost(follow))


def _describe_lost(status: Status) -> str:
    """The hosts that are lost, or else those of which some are and nobody knows which."""
    unknown = [host for host in status.hosts if host.state is HostState.UNKNOWN]
    return ", ".join(f"{host.host} ({host.reason})" for host in status.lost_hosts or unknown)


def find_standing(backend: Backend, record: Record, look: Look | None = None) -> Standing:
    """Where the recorded job is now, and how it is; one that was never started has ended.

    `look` is a cheaper way to see whether it is over.
    """
    handle = record.handle
    try:
        handle = find_handle(backend, record)
        if handle is not None:
            return poll_standing(backend, handle, look=look)
        status = Status(liveness=Liveness.ENDED, reason="it was never started")
    except UnreachableError as error:
        status = _silence(error)
    return Standing(handle=handle or {}, status=status, before=status)


def require_handle(backend: Backend, record: Record) -> Handle:
    """The handle of where the recorded job is now; an error when there is no allocation."""
    handle = find_handle(backend, record)
    if handle is None:
        raise NotAppliedError(
            "this job has no allocation that could have logs",
            hint="call state(), or apply(), first",
        )
    return find_current_handle(backend, handle)
