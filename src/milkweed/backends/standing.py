"""Where a job is now: in the allocation that is known, or in the follow-up that has taken its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..errors import UnreachableError
from ..plan import Renewal, is_followed
from ..state import Record, check_machine
from ..status import Liveness, Status
from .base import Backend, Glances, Handle, Look, Renews


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job as one look has found it."""

    handle: Handle
    """Of where it is now; all that is asked of its hosts is asked by it."""
    status: Status
    """Of where it is now."""
    before: Status
    """Of the allocation that was known; the same, where no follow-up has taken its place."""
    renewal: Renewal = Renewal.NONE
    follow: Status | None = None
    """The follow-up, where it was looked at: it has taken over, or has failed."""


def find_handle(backend: Backend, record: Record) -> Handle | None:
    """What the recorded allocation is found by; None when there certainly is none."""
    if backend.capabilities.machine_bound:
        check_machine(record.machine)
    return record.handle if record.handle is not None else backend.find(record.apply_id or "")


def _look_once(backend: Backend) -> Look:
    """Look at each allocation once, however many want to know: all of its hosts are asked for it."""
    known: list[tuple[Handle, Status]] = []

    def look(handle: Handle) -> Status:
        for seen, status in known:
            if seen == handle:
                return status
        known.append((handle, backend.poll(handle)))
        return known[-1][1]

    return look


def poll_standing(
    backend: Backend,
    handle: Handle,
    renew: str | None = None,
    *,
    planned: bool = False,
    look: Look | None = None,
) -> Standing:
    """Look once, and at the follow-up of what is over or ends.

    Who `planned` with it must know of any follow-up, and whether one is due; of what is silent nobody does.
    `look` is a cheaper way to see whether it is over.
    """
    poll = _look_once(backend)
    status = (look or poll)(handle)
    over = status.liveness is Liveness.ENDED or status.ending
    asks = over or (planned and status.liveness is not Liveness.UNKNOWN)
    if not isinstance(backend, Renews) or not asks:
        return Standing(handle=handle, status=status, before=status)
    renewal = backend.renewal(handle, renew, poll)
    followed = is_followed(status, renewal)
    if not followed and renewal is not Renewal.FAILED:
        return Standing(handle=handle, status=status, before=status, renewal=renewal)
    following = backend.move(handle)
    follow = poll(following)
    return Standing(
        handle=following if followed else handle,
        status=follow if followed else status,
        before=status,
        renewal=renewal,
        follow=follow,
    )


def find_current_handle(backend: Backend, handle: Handle) -> Handle:
    """The handle of where the job is now; where nobody tells, the one that is known."""
    look = partial(backend.glance, fresh=True) if isinstance(backend, Glances) else None
    try:
        return poll_standing(backend, handle, look=look).handle
    except UnreachableError:
        return handle
