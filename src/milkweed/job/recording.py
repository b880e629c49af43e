"""Where an allocation is recorded: in its own folder, or at a path. Others look there: it outlives who asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import replace

from ..backends.base import Backend, Keeps
from ..errors import StateError
from ..registry import load_state_path, own_state_path
from ..state import Record, StateFile
from ..status import Liveness
from .lifecycle import Wish, end, list_allocation
from .observing import observe


def is_own(file: StateFile, apply_id: str) -> bool:
    """Whether a file is the one in the allocation's own folder; others look for it at any other path."""
    return file.target == StateFile(own_state_path(apply_id)).target


def keeping(wish: Wish, place: StateFile | None, apply_id: str | None) -> Wish:
    """What is wanted, at the place where an allocation is recorded: what is made at a path is kept for others."""
    own = place is None or apply_id is None or is_own(place, apply_id)
    return wish if own else replace(wish, keep=True)


@contextlib.contextmanager
def lock(file: StateFile | None, apply_id: str | None) -> Generator[StateFile | None]:
    """Lock the file that records an allocation, if any; see `lock_place`."""
    if file is None:
        yield None
        return
    with lock_place(file, apply_id) as place:
        yield place


@contextlib.contextmanager
def lock_place(file: StateFile, apply_id: str | None) -> Generator[StateFile]:
    """Lock the file that records an allocation: where another client has recorded it at another path, that one."""
    while True:
        with file.lock():
            moved = _find_moved(file, apply_id)
            if moved is None:
                yield file
                return
        with moved.lock():
            if _tells_of(moved, apply_id):  # it may have been ended while this lock was waited for
                yield moved
                return


def find(file: StateFile, apply_id: str) -> StateFile:
    """The same file, to look at only."""
    return _find_moved(file, apply_id) or file


def _find_moved(file: StateFile, apply_id: str | None) -> StateFile | None:
    """Where an allocation is recorded now that was recorded in its own folder, and is not there any more."""
    if apply_id is None or not is_own(file, apply_id):
        return None
    path = "" if file.target.exists() else load_state_path(apply_id)
    moved = StateFile(path) if path else None
    elsewhere = moved is not None and moved.target != file.target
    return moved if moved and elsewhere and _tells_of(moved, apply_id) else None


def _tells_of(file: StateFile, apply_id: str | None) -> bool:
    record = file.load()
    return record is not None and record.apply_id == apply_id


def move(
    wish: Wish, record: Record, old: StateFile, new: StateFile, *, tell: Callable[[], object]
) -> tuple[Record, StateFile]:
    """Record an allocation at another path, unless that records another living one; the record, and where it is.

    What another client has recorded at a path stays there: two records of one allocation would soon disagree.
    `tell` has the hosts that run told that they outlive their client. That is done first, and so are those told
    that start later: a crash in between leaves an allocation that is recorded as before, and in the list.
    """
    with lock_place(old, record.apply_id) as place:
        latest = place.load()
        if latest and latest.apply_id == record.apply_id:
            record = latest  # another client may have changed its sizes
        if place is not old:
            tell()
            return record, place
        _move(wish, record, old, new, tell)
        return record, new


def _move(
    wish: Wish, record: Record, old: StateFile, new: StateFile, tell: Callable[[], object]
) -> None:
    with new.lock():
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


def end_held(backend: Backend, record: Record, file: StateFile) -> None:
    """End an allocation that a client holds; another may have changed or moved its record, or made another one."""
    with lock_place(file, record.apply_id) as place:
        recorded = place.load() or record
        same = recorded.apply_id == record.apply_id
        end(backend, recorded if same else record, place if same else None)


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
