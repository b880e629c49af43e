"""What a job object holds of its allocation: its record, and this client's connection to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..backends.base import Backend
from ..events import Events
from ..plan import Action, Plan
from ..spec import JobSpec
from ..state import Record, StateFile
from .connection import Connection
from .renewing import Renewer
from .state import JobState


@dataclass
class Held:
    """An allocation that this client knows, and is connected to or not."""

    record: Record
    file: StateFile
    connection: Connection | None = None
    state: JobState | None = None
    renewer: Renewer | None = None
    extends: bool = False
    """Whether a renewal gives the same hosts more time."""
    asked_here: bool = False
    """This client has asked for it and was not answered: when it is there after all, it is new."""

    @property
    def current_state(self) -> JobState | None:
        """The state, as long as its hosts are all there."""
        return self.state if self.connection and self.connection.usable else None

    def take_new(self, action: Action) -> bool:
        """Whether this client has made the allocation just now, by its last deed or by one not answered then."""
        asked_here, self.asked_here = self.asked_here, False
        return asked_here or action in {Action.CREATE, Action.REPLACE}

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
            self.let_go()
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
        meshes = connection.open(deadline_s)
        if not owner:
            connection.keep()
        self.state = JobState(meshes)
        self.events.add("connected")
        return self.state

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

    def renew(self, plan: Callable[[], Plan], carry_out: Callable[[Plan], object]) -> None:
        """Have a follow-up asked for in time, or more time, as long as this client is connected."""
        if self.renewer is None:
            name = self.record.spec.name
            self.renewer = Renewer(name, plan, carry_out, extends=self.extends)

    def let_go(self) -> None:
        """Leave the hosts."""
        if self.renewer:
            self.renewer.stop()
            self.renewer = None
        if self.connection:
            self.connection.close()
        self.connection = self.state = None
