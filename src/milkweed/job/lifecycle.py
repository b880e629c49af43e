"""The steps of an allocation's life, each safe to be interrupted: observe, plan, create, replace, end.

Intent is on disk before a scheduler is asked, and the scheduler's answer after. Whoever comes next and
finds an intent without an answer asks the scheduler for the id that the intent carries.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .. import registry
from .._checkpoint import checkpoint
from ..backends import load_backend
from ..backends.base import Backend, Checks, Forgets, Handle, Renews, Request, Resizes
from ..errors import (
    BackendError,
    ChangedError,
    MilkweedError,
    StateError,
    UnreachableError,
    UnsupportedError,
)
from ..events import Events
from ..plan import Action, Observed, Plan, Renewal, make_plan
from ..spec import JobSpec
from ..state import Record, StateFile
from .second_look import look_again
from .ways import note_way

_ASKS = frozenset({Action.CREATE, Action.REPLACE, Action.RESIZE})
_CHANGED_HINT = (
    'on_change="replace" ends it and makes another; on_change="new" keeps it beside a new one'
)
_LOST_HINT = 'on_change="repair" asks for others in place of what was lost'
_INSIDE_HINT = (
    "this program runs for that job: declare the same, or use milkweed.job.load_current_job()"
)
_INSIDE_LOST_HINT = (
    "this program runs for that job, so it must not end it: "
    'another one may, with on_change="replace"'
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
    """The client runs for this very job, so that it must never end it; a repair ends nothing."""
    apply_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The id of the allocation, if one must be made."""

    @property
    def renew(self) -> str | None:
        """When the client wants a follow-up allocation, if ever."""
        return self.spec.client.get("renew")

    def repairing(self) -> Wish:
        """The same, where a person has just asked for these hosts: those that were lost are to come again.

        What was said before of changes is for other declarations: hosts that are well go on.
        """
        return replace(self, on_change="repair") if self.backend.capabilities.repairs else self

    def backend_of(self, there: Record | Observed | None) -> Backend:
        """The backend that made what is there: another one, when the declaration has moved."""
        if there is None or there.spec is None or there.spec.backend == self.spec.backend:
            return self.backend
        return load_backend(there.spec.backend)


def check(backend: Backend, spec: JobSpec) -> None:
    """Refuse what is wrong whatever the scheduler has now: what runs already needs nothing of it."""
    (backend.check if isinstance(backend, Checks) else backend.validate)(spec)


def plan_for(wish: Wish, observed: Observed, *, held: bool = False) -> Plan:
    """What would be done for a wish; it is the old allocation that may have taken a queue to get."""
    plan = make_plan(
        wish.spec,
        observed,
        can_resize=wish.backend.capabilities.resize,
        can_repair=wish.backend.capabilities.repairs,
        queued=wish.backend_of(observed).capabilities.queued,
        on_change=wish.on_change,
        held=held,
    )
    if isinstance(wish.backend, Checks) and plan.action in _ASKS and not plan.blocked:
        wish.backend.validate(wish.spec)
    return replace(plan, renewal=observed.renewal, inside=wish.inside)


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
    plan: Plan,
    wish: Wish,
    record: Record | None,
    file: StateFile | None,
    *,
    leave: Callable[[], object] = lambda: None,
) -> tuple[Record, StateFile]:
    """Do what a plan says: the very value that was shown. `leave` parts from hosts that a follow-up replaces."""
    _check_allowed(plan, wish)
    if plan.moves:
        record, file = _move(plan, wish, record, file, leave)
    if plan.action is Action.MOVE:
        return _reuse(record, file)
    if plan.action in {Action.REUSE, Action.NOTHING}:
        _retire_again(wish.backend_of(record), record)
        return note_way(*_reuse(record, file))
    if plan.action is Action.RESIZE:
        return _resize(plan, wish, record, file)
    if plan.action is Action.RENEW:
        return _renew(plan, wish, record, file)
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


def _check_allowed(plan: Plan, wish: Wish) -> None:
    """Refuse what nobody may do: nothing is known, or a person must say so first."""
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
            hint=_hint_for(plan),
        )


def _hint_for(plan: Plan) -> str:
    """What to do about a plan that nobody has approved."""
    if plan.inside and plan.changes:
        return _INSIDE_HINT
    if plan.inside:
        return _LOST_HINT if plan.repairable else _INSIDE_LOST_HINT
    return f"{_LOST_HINT}; {_CHANGED_HINT}" if plan.repairable else _CHANGED_HINT


def _reuse(record: Record | None, file: StateFile | None) -> tuple[Record, StateFile]:
    if record is None or record.apply_id is None:
        raise BackendError("there is nothing to reuse", hint="call state() for a new plan")
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
    note = registry.resizing_path(record.apply_id or "")
    before = note.exists()
    registry.note_resizing(record.apply_id or "")
    try:
        handle = wish.backend.resize(record.handle, plan.spec)
    except UnreachableError:
        raise  # it may be half done
    except BackendError as error:
        if not before and not error.unfinished:
            note.unlink(missing_ok=True)
        raise
    record = replace(record, spec=plan.spec, handle=dict(handle))
    file.save(record)
    note.unlink(missing_ok=True)
    Events(record.apply_id or "").add("resized", detail=str(plan.spec.sizes))
    return record, file


def _renew(
    plan: Plan, wish: Wish, record: Record | None, file: StateFile | None
) -> tuple[Record, StateFile]:
    """Ask for a follow-up."""
    record, file = _reuse(record, file)
    backend, handle = _require_renews(wish.backend, record)
    record = replace(record, handle=dict(backend.renew(handle, plan.spec)))
    file.save(record)
    Events(record.apply_id or "").add("renewed", detail="; ".join(plan.reasons))
    return record, file


def _move(
    plan: Plan,
    wish: Wish,
    record: Record | None,
    file: StateFile | None,
    leave: Callable[[], object],
) -> tuple[Record, StateFile]:
    """Go over to a follow-up; the record says so before the old hosts are left, and then ended."""
    record, file = _reuse(record, file)
    backend, handle = _require_renews(wish.backend_of(record), record)
    if plan.renewal is Renewal.WAITING:
        look_again(plan, wish.backend_of(record), record, moves=True)
    record = replace(record, handle=dict(backend.move(handle)))
    file.save(record)
    leave()
    backend.retire(record.handle or {})
    Events(record.apply_id or "").add("moved", detail="; ".join(plan.reasons))
    return record, file


def _require_renews(backend: Backend, record: Record) -> tuple[Renews, Handle]:
    if not isinstance(backend, Renews) or record.handle is None:
        raise UnsupportedError(f"{backend.name} has no follow-up allocations")
    return backend, record.handle


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


def refuse_second_client(apply_id: str | None) -> None:
    """A client is started with its allocation; with one that is there already it would never start."""
    if apply_id is not None:
        raise ChangedError(
            "this job has an allocation already, so the client would not be started",
            seen=f"allocation {apply_id}",
            hint="kill() it first, or declare another job for the batch client",
        )
