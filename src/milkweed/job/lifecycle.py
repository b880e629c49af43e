"""The steps of an allocation's life, each safe to be interrupted: observe, plan, create, replace, end.

Intent is on disk before a scheduler is asked, and the scheduler's answer after. Whoever comes next and
finds an intent without an answer asks the scheduler for the id that the intent carries.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .. import registry
from .._checkpoint import checkpoint
from ..backends import load_backend
from ..backends.base import Backend, Checks, Forgets, Handle, Renews, Request, Resizes
from ..errors import (
    BackendError,
    ChangedError,
    MilkweedError,
    NotAppliedError,
    StateError,
    UnreachableError,
    UnsupportedError,
)
from ..events import Events
from ..plan import Action, Observed, Plan, Renewal, make_plan
from ..spec import JobSpec
from ..state import Record, StateFile, check_machine
from ..status import Liveness, Status
from .second_look import look_again
from .ways import note_way, reroute

_ASKS = frozenset({Action.CREATE, Action.REPLACE, Action.RESIZE})
_CHANGED_HINT = (
    'on_change="replace" ends it and makes another; on_change="new" keeps it beside a new one'
)
_INSIDE_HINT = (
    "this program runs for that job: declare the same, or use milkweed.job.load_current_job()"
)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a client wants of its job."""

    spec: JobSpec
    backend: Backend
    on_change: str | None = None
    keep: bool = True
    client_script: Sequence[str] = ()
    job_class: str = ""
    inside: bool = False
    """The client runs for this very job, so that it must never end it because its declaration differs."""
    apply_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The id of the allocation, if one must be made."""

    @property
    def renew(self) -> str | None:
        """When the client wants a follow-up allocation, if ever."""
        return self.spec.client.get("renew")

    def backend_of(self, there: Record | Observed | None) -> Backend:
        """The backend that made what is there: another one, when the declaration has moved."""
        if there is None or there.spec is None or there.spec.backend == self.spec.backend:
            return self.backend
        return load_backend(there.spec.backend)


def observe(
    backend: Backend, record: Record | None, file: StateFile | None, wish: Wish | None = None
) -> tuple[Record | None, Observed]:
    """Look at the recorded allocation; an intent without an answer is completed if the scheduler has it.

    It is looked at in the way that the client declares now, whatever was recorded.
    """
    if record is None or record.apply_id is None:
        return None, Observed()
    if backend.capabilities.machine_bound:
        check_machine(record.machine)
    seen = Observed(spec=record.spec, apply_id=record.apply_id)
    try:
        if record.handle is None:
            handle = backend.find(record.apply_id)
            if handle is None:
                return record, seen
            record = record.submitted(handle)
            if file is not None:
                file.save(record)
        record = reroute(backend, record, wish.spec) if wish else record
        status = backend.poll(record.handle or {})
        renew = wish.renew if wish else None
        seen = replace(seen, renewal=_observe_renewal(backend, record, status, renew))
    except UnreachableError as error:
        status = Status(liveness=Liveness.UNKNOWN, reason=error.seen or error.what)
    return record, replace(seen, status=status)


def _observe_renewal(
    backend: Backend, record: Record, status: Status, renew: str | None
) -> Renewal:
    if not isinstance(backend, Renews) or status.liveness is Liveness.UNKNOWN:
        return Renewal.NONE
    return backend.renewal(record.handle or {}, renew)


def check(backend: Backend, spec: JobSpec) -> None:
    """Refuse what is wrong whatever the scheduler has now: what runs already needs nothing of it."""
    (backend.check if isinstance(backend, Checks) else backend.validate)(spec)


def plan_for(wish: Wish, observed: Observed, *, held: bool = False) -> Plan:
    """What would be done for a wish; it is the old allocation that may have taken a queue to get."""
    plan = make_plan(
        wish.spec,
        observed,
        can_resize=wish.backend.capabilities.resize,
        queued=wish.backend_of(observed).capabilities.queued,
        on_change=wish.on_change,
        held=held,
    )
    if isinstance(wish.backend, Checks) and plan.action in _ASKS and not plan.blocked:
        wish.backend.validate(wish.spec)
    return replace(plan, renewal=observed.renewal)


def check_shown(shown: Plan | None, plan: Plan) -> None:
    """What was shown is what is done, or nothing is."""
    if shown is None or _deed(shown) == _deed(plan):
        return
    raise ChangedError(
        "things changed after the plan was shown, so nothing was done",
        seen=plan.render(),
        hint="look at the new plan, and ask again",
    )


def _deed(plan: Plan) -> tuple[object, ...]:
    return plan.action, plan.changes, plan.apply_id, plan.approved


def execute(
    plan: Plan, wish: Wish, record: Record | None, file: StateFile | None
) -> tuple[Record, StateFile]:
    """Do what a plan says: the very value that was shown."""
    if plan.blocked:
        raise UnreachableError(
            f"job {wish.spec.name!r} has an allocation of which nothing is known now",
            seen="; ".join(plan.reasons),
            hint="nothing was changed; try again when the scheduler answers",
        )
    if not plan.approved:
        raise ChangedError(
            f"job {wish.spec.name!r} has an allocation that differs from what is declared now",
            seen=plan.render(),
            hint=_INSIDE_HINT if wish.inside else _CHANGED_HINT,
        )
    if plan.action in {Action.REUSE, Action.NOTHING}:
        _retire_again(wish.backend_of(record), record)
        return note_way(*_reuse(record, file))
    if plan.action is Action.RESIZE:
        return _resize(plan, wish, record, file)
    if plan.action in {Action.RENEW, Action.MOVE}:
        return _follow(plan, wish, record, file)
    if record is None or record.apply_id is None:
        return create(wish, file)
    if file is not None and file.target == _own_file(record).target:
        file = None  # the record lies in the old allocation's folder, and goes or stays with it
    if plan.keeps_old:
        _set_aside(record)
        return create(wish, file, before=record)
    look_again(plan, wish.backend_of(record), record)
    end(wish.backend_of(record), record, None)
    return create(wish, file, why=plan.reasons)


def _reuse(record: Record | None, file: StateFile | None) -> tuple[Record, StateFile]:
    if record is None or record.apply_id is None:
        raise BackendError("there is nothing to reuse")
    return record, file or _own_file(record)


def _retire_again(backend: Backend, record: Record | None) -> None:
    """A crash after a move may have left what was moved from; one whose scheduler is silent is ended next time."""
    if isinstance(backend, Renews) and record is not None and record.handle is not None:
        with contextlib.suppress(BackendError):
            backend.retire(record.handle)


def _own_file(record: Record) -> StateFile:
    """Where a record lies when no path was asked for."""
    return StateFile(registry.own_state_path(record.apply_id or ""))


def _resize(
    plan: Plan, wish: Wish, record: Record | None, file: StateFile | None
) -> tuple[Record, StateFile]:
    record, file = _reuse(record, file)
    if not isinstance(wish.backend, Resizes) or record.handle is None:
        raise UnsupportedError(f"{wish.backend.name} cannot change the size of an allocation")
    handle = wish.backend.resize(record.handle, plan.spec)
    record = replace(record, spec=plan.spec, handle=dict(handle))
    file.save(record)
    Events(record.apply_id or "").add("resized", detail=str(plan.spec.sizes))
    return record, file


def _follow(
    plan: Plan, wish: Wish, record: Record | None, file: StateFile | None
) -> tuple[Record, StateFile]:
    """Ask for a follow-up, or go over to it; the record says so before the old hosts are ended."""
    record, file = _reuse(record, file)
    backend = wish.backend
    if not isinstance(backend, Renews) or record.handle is None:
        raise UnsupportedError(f"{backend.name} has no follow-up allocations")
    events = Events(record.apply_id or "")
    if plan.action is Action.RENEW:
        record = replace(record, handle=dict(backend.renew(record.handle, plan.spec)))
        file.save(record)
        events.add("renewed", detail="; ".join(plan.reasons))
        return record, file
    record = replace(record, handle=dict(backend.move(record.handle)))
    file.save(record)
    backend.retire(record.handle or {})
    events.add("moved", detail="; ".join(plan.reasons))
    return record, file


def create(
    wish: Wish, file: StateFile | None, *, before: Record | None = None, why: Sequence[str] = ()
) -> tuple[Record, StateFile]:
    """Ask for a new allocation; at every point in between it can be found again.

    `before` is what the file recorded, and records again if the scheduler refuses. `why` is told of what takes
    another's place.
    """
    wish.backend.validate(wish.spec)
    apply_id = wish.apply_id
    file = file or StateFile(registry.own_state_path(apply_id))
    record = Record(
        spec=wish.spec,
        phase="intent",
        apply_id=apply_id,
        job_class=wish.job_class,
        batch=bool(wish.client_script),
    )
    events = Events(apply_id)
    try:
        file.save(record)
        checkpoint("intent")
        list_allocation(record, file)
        checkpoint("entry")
        asked = f"{wish.spec.backend} for {wish.spec.host_count} hosts"
        events.add("asked", detail="; ".join([asked, *why]))
        handle = wish.backend.submit(_request(wish, apply_id, file))
    except UnreachableError:
        raise  # nobody knows whether it was taken: the intent stays, and the next call finds out
    except (Exception, KeyboardInterrupt):  # whatever it was, nothing may be left half begun
        _undo(wish.backend, record, file, before)
        raise
    checkpoint("submit")
    record = record.submitted(handle)
    file.save(record)
    checkpoint("record")
    events.add("submitted")
    return record, file


def _request(wish: Wish, apply_id: str, file: StateFile) -> Request:
    return Request(
        spec=wish.spec,
        apply_id=apply_id,
        keep=wish.keep,
        client_script=tuple(wish.client_script),
        state_path=str(file.target) if wish.client_script else "",
    )


def list_allocation(record: Record, file: StateFile) -> None:
    """List an allocation among this user's."""
    registry.save_entry(
        registry.Entry(
            apply_id=record.apply_id or "",
            name=record.spec.name,
            backend=record.spec.backend,
            state_path=str(file.target),
            created=record.created,
        )
    )


def _undo(backend: Backend, record: Record, file: StateFile, before: Record | None) -> None:
    """A submission failed: end what it may have begun, and forget it; if that fails too, keep the intent."""
    try:
        if (handle := backend.find(record.apply_id or "")) is not None:
            backend.cancel(handle)
    except MilkweedError:  # why the submission failed is what matters
        return
    registry.remove_entry(record.apply_id or "")
    if before is None or file.target == _own_file(record).target:
        file.remove()
        return
    with contextlib.suppress(StateError):  # what cannot be written was not overwritten either
        file.save(before)
        list_allocation(before, file)
        _own_file(before).remove()


def _set_aside(record: Record) -> None:
    """Keep a running allocation's record beside the new one's, listed as before."""
    file = _own_file(record)
    file.save(record)
    list_allocation(record, file)


def end(backend: Backend, record: Record, file: StateFile | None) -> None:
    """End an allocation and forget it; what is gone already is fine."""
    apply_id = record.apply_id or ""
    handle = record.handle if record.handle is not None else backend.find(apply_id)
    if handle is not None:
        backend.cancel(handle)
    elif isinstance(backend, Forgets):
        backend.forget(apply_id)
    checkpoint("cancel")
    registry.remove_entry(apply_id)
    checkpoint("forget")
    if file is not None:
        file.remove()
        checkpoint("remove")


def find_intent(wish: Wish, file: StateFile | None) -> tuple[Record, StateFile] | None:
    """What a wish that failed left on disk: maybe it was granted, and nobody heard of it."""
    for place in filter(None, (file, StateFile(registry.own_state_path(wish.apply_id)))):
        record = place.load()
        if record is not None and record.apply_id == wish.apply_id:
            return record, place
    return None


def move(wish: Wish, record: Record, old: StateFile, new: StateFile) -> None:
    """Record an allocation at another path, unless that records another living one."""
    with new.lock():
        other = new.load()
        if other and other.apply_id != record.apply_id and not _clear(wish, other):
            raise StateError(
                f"{new.path} records another allocation than the one this job holds",
                seen=f"there {other.apply_id}, here {record.apply_id}",
                hint="give another cached_path, or end the other one: job_load(path).kill()",
            )
        new.save(record)
        list_allocation(record, new)
        old.remove()


def _clear(wish: Wish, record: Record) -> bool:
    """Forget a record whose allocation is certainly over."""
    if record.apply_id is None:
        return True
    backend = wish.backend_of(record)
    found, observed = observe(backend, record, None)
    if observed.status is not None and observed.status.liveness is not Liveness.ENDED:
        return False
    end(backend, found or record, None)
    return True


def refuse_second_client(apply_id: str | None) -> None:
    """A client is started with its allocation; with one that is there already it would never start."""
    if apply_id is not None:
        raise ChangedError(
            "this job has an allocation already, so the client would not be started",
            seen=f"allocation {apply_id}",
            hint="kill() it first, or declare another job for the batch client",
        )


def end_held(backend: Backend, record: Record, file: StateFile) -> None:
    """End an allocation that a client holds; another client may have changed it, or made another one."""
    with file.lock():
        recorded = file.load() or record
        same = recorded.apply_id == record.apply_id
        end(backend, recorded if same else record, file if same else None)


def require_handle(backend: Backend, record: Record) -> Handle:
    """What the backend finds the allocation by; an error when there is none."""
    known, _observed = observe(backend, record, None)
    if known is None or known.handle is None:
        raise NotAppliedError("this job has no allocation that could have logs")
    return known.handle
