"""Allocations that are recorded nowhere: nobody would end what still waits when its program is over."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from .. import registry
from ..backends.base import Backend, Renews
from ..backends.programs import within
from ..errors import MilkweedError
from ..plan import Renewal
from ..state import Record
from ..status import Liveness
from . import lifecycle
from .held import Held
from .leaving import Leaves, last_deeds
from .watch import glance, say

END_S = 10.0
"""How long the end of a program may take for each."""
_FOLLOWED = frozenset({Renewal.WAITING, Renewal.READY, Renewal.FAILED})
"""When something of a follow-up may be there: what is left of one that has failed would be given nodes, too."""


def mind(held: Held, backend: Backend) -> None:
    """See to it that an allocation in a queue does not outlive this program; elsewhere hosts see its end."""
    if held.unrecorded and backend.capabilities.queued:
        last_deeds[held.apply_id] = Orphan(backend, held)


@dataclass(frozen=True)
class Orphan:
    """An allocation that nobody looks for when this program is over."""

    backend: Backend
    held: Held
    pid: int = field(default_factory=os.getpid)

    @property
    def _ours(self) -> bool:
        return self.pid == os.getpid() and self.held.unrecorded

    def begin(self) -> None:
        """Wait for the answer to a follow-up that is being asked for, and ask for no other."""
        if self._ours and self.held.renewer:
            self.held.renewer.finish(END_S)

    def end(self, left: Collection[Leaves]) -> None:
        """End it, unless its keepers do that themselves when they see that their client leaves.

        They do not where they were told to stay, and it could not be recorded then.
        """
        if not self._ours:
            return
        try:
            with within(time.monotonic() + END_S):
                self._end_unused(is_left=self.held.connection in left and not self.held.kept)
        except MilkweedError as error:
            say(
                f"job {self.held.record.spec.name!r} could not be ended: {error.what}; "
                f"`milkweed kill {self.held.apply_id}` does it later"
            )

    def _end_unused(self, *, is_left: bool) -> None:
        """A follow-up that still waits has no keepers; whether there is one, only the lock's holder knows."""
        renews = bool(self.held.record.spec.client.get("renew"))
        if is_left and not renews:
            return
        with _claim(self.held) as record:
            followed = renews and record is not None and _is_followed(self.backend, record)
            if record and (followed or not is_left):
                _end(self.backend, self.held, record, followed=followed)


def _is_followed(backend: Backend, record: Record) -> bool:
    if record.handle is None or not isinstance(backend, Renews):
        return False
    return backend.renewal(record.handle, None) in _FOLLOWED


@contextlib.contextmanager
def _claim(held: Held) -> Generator[Record | None]:
    """What its own file still has of it, under its lock: others may have recorded it elsewhere, or ended it.

    Where its folder is gone there is no lock: that would make the folder anew.
    """
    if not held.file.target.exists():
        yield _load(held)
        return
    with held.file.lock(timeout_s=END_S):
        yield _load(held)


def _load(held: Held) -> Record | None:
    record = held.file.load()
    if record is None and held.unrecorded and not registry.is_listed(held.apply_id):
        # Hosts that saw their owner leave took the folder along. What others have recorded is listed.
        return held.record
    return record if record and record.apply_id == held.apply_id else None


def _end(backend: Backend, held: Held, record: Record, *, followed: bool) -> None:
    handle = record.handle
    alive = handle is None or glance(backend, handle).liveness is not Liveness.ENDED
    if alive or followed:
        say(f"job {record.spec.name!r} ends with this program: it is recorded nowhere")
        lifecycle.end(backend, record, held.file)


def give_back(backend: Backend, held: Held) -> None:
    """End an allocation that its client has given up, unless its own file tells of it no more."""
    with _claim(held) as record:
        if record:
            lifecycle.end(backend, record, held.file)
        elif not held.unrecorded:
            say(
                f"job {held.record.spec.name!r} was left as it is: {held.file.path} does not record it any more; "
                f"`milkweed kill {held.apply_id}` ends it"
            )
