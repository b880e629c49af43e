"""Recording an allocation at another path: others may look there for it, so it outlives who asked for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from ..backends.base import Backend, Keeps
from ..errors import StateError
from ..registry import load_state_path, own_state_path
from ..state import Record, StateFile
from ..status import Liveness
from .lifecycle import Wish, end, list_allocation
from .observing import observe


@contextlib.contextmanager
def lock(file: StateFile | None, apply_id: str | None) -> Generator[StateFile | None]:
    """Lock the file that records an allocation: where another client has recorded it at another path, that one."""
    if file is None:
        yield None
        return
    with file.lock():
        moved = _find_moved(file, apply_id)
        if moved is None:
            yield file
            return
    with moved.lock():
        yield moved


def _find_moved(file: StateFile, apply_id: str | None) -> StateFile | None:
    """Where an allocation is recorded now that was recorded in its own folder, and is not there any more."""
    if apply_id is None or file.target != StateFile(own_state_path(apply_id)).target:
        return None
    path = "" if file.target.exists() else load_state_path(apply_id)
    moved = StateFile(path) if path else None
    record = moved.load() if moved and moved.target != file.target else None
    return moved if record and record.apply_id == apply_id else None


def move(
    wish: Wish, record: Record, old: StateFile, new: StateFile, *, tell: Callable[[], object]
) -> Record:
    """Record an allocation at another path, unless that records another living one; what is recorded now.

    `tell` has the hosts that run told that they outlive their client. That is done first, and so are those told
    that start later: a crash in between leaves an allocation that is recorded as before, and in the list.
    """
    with old.lock(), new.lock():
        latest = (_find_moved(old, record.apply_id) or old).load()
        if latest and latest.apply_id == record.apply_id:
            record = latest  # another client may have changed its sizes
        other = new.load()
        if other and other.apply_id != record.apply_id and not _clear(wish, other):
            raise StateError(
                f"{new.path} records another allocation than the one this job holds",
                seen=f"there {other.apply_id}, here {record.apply_id}",
                hint="give another cached_path, or end the other one: job_load(path).kill()",
            )
        tell()
        _keep(wish.backend_of(record), record)
        new.save(record)
        list_allocation(record, new)
        old.remove()
        return record


def _keep(backend: Backend, record: Record) -> None:
    """Have its hosts outlive who asked for them: also where nobody has heard the answer yet."""
    if not isinstance(backend, Keeps):
        return
    handle = record.handle
    if handle is None:
        handle = backend.find(record.apply_id or "")
    if handle is not None:
        backend.keep(handle)


def _clear(wish: Wish, record: Record) -> bool:
    """Forget a record whose allocation is certainly over."""
    if record.apply_id is None:
        return True
    backend = wish.backend_of(record)
    found, observed = observe(backend, record, None)
    if observed.standing is not None and observed.standing.liveness is not Liveness.ENDED:
        return False
    end(backend, found or record, None)
    return True
