"""What a job object holds of its allocation: its record, and this client's connection to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..backends.base import Backend, Renews
from ..events import Events
from ..plan import Action, Plan
from ..spec import JobSpec
from ..state import Record, StateFile
from .attending import Attendance
from .connection import Connection
from .lifecycle import Wish
from .recording import is_own, move
from .renewing import Renewer
from .state import JobState
from .watch import say

BACK_S = 300.0
"""How long hosts that end with this client wait for it when it says that it comes back."""

NEW = frozenset({Action.CREATE, Action.REPLACE})
"""What ends with an allocation that was not there before."""


@dataclass
class Held:
    """An allocation that this client knows, and is connected to or not."""

    record: Record
    file: StateFile
    connection: Connection | None = None
    state: JobState | None = None
    renewer: Renewer | None = None
    attendance: Attendance | None = None
    """At the hosts of a follow-up."""
    extends: bool = False
    """Whether a renewal gives the same hosts more time."""
    asked_here: bool = False
    """This client has asked for it and was not answered: when it is there after all, it is new."""

    unrecorded: bool = False
    """This client has asked for it, and no other looks for it: it ends with this program."""
    kept: bool = False
    """Its hosts were told to outlive this client."""
    used: bool = False
    """Whether this client has had its hosts: trouble with what was used does not end it."""

    @property
    def shared(self) -> bool:
        """Whether it is recorded at a path, where others look for it."""
        return not is_own(self.file, self.apply_id)

    @property
    def current_state(self) -> JobState | None:
        """The state, as long as its hosts are all there."""
        return self.state if self.connection and self.connection.usable else None

    def take_new(self, action: Action) -> bool:
        """Whether this client has made the allocation just now, by its last deed or by one not answered then."""
        asked_here, self.asked_here = self.asked_here, False
        return asked_here or action in NEW

    @property
    def apply_id(self) -> str:
        """The allocation's id."""
        return self.record.apply_id or ""

    @property
    def events(self) -> Events:
        """What has happened to the allocation so far."""
        return Events(self.apply_id)

    def connect(self, backend: Backend, client: Mapping[str, Any], *, owner: bool) -> Connection:
        """The connection there is, or a new one; `client` are this client's own settings."""
        self.extends = backend.capabilities.extends
        if self.connection is None or not self.connection.usable:
            self.let_go(back_s=BACK_S)
            self.connection = Connection(
                backend,
                replace(self.record.spec, client=client),
                self.record.handle or {},
                self.events,
                owner=owner,
            )
        return self.connection

    def open(
        self, backend: Backend, client: Mapping[str, Any], deadline_s: float | None, *, owner: bool
    ) -> JobState:
        """Connect to every host, waiting for them as long as this client wants to."""
        connection = self.connect(backend, client, owner=owner)
        if not owner:
            connection.keep()
        meshes = connection.open(deadline_s)
        if self.attendance:
            connection.take_over(self.attendance)
        self.state = JobState(meshes)
        self.use()
        self.events.add("connected")
        return self.state

    def use(self) -> None:
        """Its hosts are there, and this client uses them."""
        self.used = True

    def move(self, wish: Wish, file: StateFile) -> None:
        """Record it at another path, unless another client has done so: from now on it outlives this client."""
        self.record, self.file = move(wish, self.record, self.file, file, tell=self.keep)
        self.unrecorded = False
        if self.file.target != file.target:
            say(
                f"job {self.record.spec.name!r} is not recorded in {file.path}: "
                f"another client has recorded it in {self.file.path}"
            )

    def follow(self, record: Record, file: StateFile) -> None:
        """What is recorded of it now, and where: another client may have recorded it elsewhere."""
        if self.unrecorded and file.target != self.file.target:
            self.keep()
            self.unrecorded = False
        self.record, self.file = record, file

    def keep(self) -> None:
        """Let the hosts outlive this client."""
        self.kept = True
        if self.connection:
            self.connection.keep()
        if self.attendance:
            self.attendance.keep(self.record.spec.lifetime.idle_timeout_s)

    def resize(self, spec: JobSpec, carry_out: Callable[[], object]) -> None:
        """Have the sizes changed while this client is connected: hosts that go on purpose are not lost."""
        if self.connection:
            self.connection.release(set(self.record.spec.labels) - set(spec.labels))
        try:
            carry_out()
        except BaseException:  # whatever it was, they may all be there
            if self.connection:
                self.connection.release(())
            raise
        self.state = None
        if self.connection:
            self.connection.change(self.record.spec, self.record.handle or {})
        elif self.attendance:
            self._stay(self.attendance)

    def renew(
        self,
        backend: Backend,
        plan: Callable[[], Plan],
        apply: Callable[..., object],
        *,
        keep: bool,
    ) -> None:
        """Have a follow-up asked for in time, or more time, as long as this client is connected."""
        if self.renewer is None:
            self.renewer = Renewer(
                self.record.spec.name,
                plan,
                lambda shown: apply(self.file, keep=keep or self.kept, shown=shown),
                attend=lambda: self._attend(backend, owner=not (keep or self.kept)),
                extends=self.extends,
            )

    def _attend(self, backend: Backend, *, owner: bool) -> None:
        """Be present at a follow-up's hosts as they come, while the program uses those before."""
        if isinstance(backend, Renews):
            idle_timeout_s = self.record.spec.lifetime.idle_timeout_s
            if self.attendance is None:
                self.attendance = Attendance(backend, owner=owner, idle_timeout_s=idle_timeout_s)
            self.attendance.attend(backend.move(self.record.handle or {}))

    def stay(self, backend: Backend) -> None:
        """Be seen as their owner by hosts that this client uses without a connection, those that there are now."""
        self.attendance = self.attendance or Attendance(backend, owner=True)
        self._stay(self.attendance)

    def _stay(self, attendance: Attendance) -> None:
        known = self.connection and self.connection.presence
        hosts = self.record.spec.host_count
        attendance.stay(self.record.handle or {}, known=known, hosts=hosts)

    def let_go(self, *, back_s: float = 0.0) -> None:
        """Leave the hosts; with `back_s`, to come back: those that end with this client wait so long for it."""
        if self.renewer:
            self.renewer.stop()
            self.renewer = None
        if self.attendance and not back_s:
            self.attendance.close()
            self.attendance = None
        if self.connection:
            self.connection.close(back_s=back_s)
        self.connection = self.state = None
