"""Being present at hosts that a program will use later: it is busy with others, and these must see it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

from ..backends.base import Admits, Backend, Controls, Handle
from ..control import Session, parse_door
from ..errors import MilkweedError
from .presence import Message, Presence

LOOK_S = 10.0
"""How often hosts that were added are looked for; they wait for their owner for longer than that."""


class Attendance:
    """Quiet sessions with keepers: nothing is printed, and their hosts' fate is seen when they are used."""

    def __init__(self, backend: Backend, *, owner: bool, idle_timeout_s: float = 0.0) -> None:
        """Hosts end with an `owner`; else they are kept, and idle for so long when nobody is there."""
        self._backend = backend
        self._presence = Presence(
            client=uuid.uuid4().hex, owner=owner, output=False, hear=self._hear
        )
        if not owner:
            self.keep(idle_timeout_s)
        self._over = threading.Event()
        self._wanted: tuple[Handle, Presence | None, int] | None = None
        self._thread: threading.Thread | None = None

    def _hear(self, session: Session, message: Message) -> None:
        if message.get("ev") == "closed":
            self._presence.drop(session)

    def attend(self, handle: Handle, known: Presence | None = None) -> None:
        """Join those that are there and not `known`, and let in those that wait for it; waits for nobody."""
        backend: Any = self._backend
        if not isinstance(backend, Controls):
            return
        with contextlib.suppress(MilkweedError):  # whoever does not answer is tried again
            joined = {session.address for session in known.sessions} if known else set[str]()
            doors = [door for door in backend.controls(handle) if door not in joined]
            missing = self._presence.join(doors)
            if missing and isinstance(backend, Admits):
                backend.admit(handle, [parse_door(door).host for door in missing])
        if self._over.is_set():
            self._presence.close(0.0)

    def stay(self, handle: Handle, known: Presence | None = None, *, hosts: int = 0) -> None:
        """Go on attending these, aside; once so many `hosts` are joined, nobody is asked until one goes."""
        self._wanted = handle, known, hosts
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="milkweed-attendance", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            if (wanted := self._wanted) is None:
                continue
            handle, known, hosts = wanted
            there = len(self._presence.sessions) + (len(known.sessions) if known else 0)
            if not hosts or there < hosts:
                self.attend(handle, known)

    def hand_over(self, presence: Presence) -> None:
        """Leave those that are used now; that they are all there is seen by who uses them."""
        self._wanted = None
        used = {session.keeper for session in presence.sessions}
        for session in self._presence.sessions:
            if session.keeper in used:
                self._presence.drop(session)
                session.close()

    def keep(self, idle_timeout_s: float) -> None:
        """From now on hosts outlive this client."""
        self._presence.tell({"op": "keep", "idle_timeout_s": idle_timeout_s})

    def close(self, *, back_s: float = 0.0) -> None:
        """Leave them."""
        self._over.set()
        self._presence.close(0.0, back_s=back_s)
