"""A client's sessions with the keepers of an allocation: joining them all, and noticing which are gone."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..control import Session
from ..errors import DeadlineError, UnreachableError

Message = Mapping[str, Any]
_AT_ONCE = 32


class Presence:
    """Sessions by the address of their keeper."""

    def __init__(
        self, *, client: str, owner: bool, output: bool, hear: Callable[[Session, Message], None]
    ) -> None:
        self._client = client
        self._owner = owner
        self._output = output
        self._hear = hear
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._standing: Message | None = None

    @property
    def sessions(self) -> list[Session]:
        """Those that are open."""
        with self._lock:
            return list(self._sessions.values())

    def join(self, addresses: Sequence[str], *, thorough: bool = True) -> dict[str, str]:
        """Open a session with every keeper that answers; those that do not, and why.

        One that is not `thorough` looks only where a keeper most likely is.
        """
        attempt = functools.partial(self._try, thorough=thorough)
        wanted = [address for address in addresses if address not in self._sessions]
        if len(wanted) <= 1:
            tried = [attempt(address) for address in wanted]
        else:
            with ThreadPoolExecutor(min(_AT_ONCE, len(wanted))) as pool:
                tried = list(pool.map(attempt, wanted))
        return {address: why for address, why in zip(wanted, tried, strict=True) if why is not None}

    def _try(self, address: str, *, thorough: bool = True) -> str | None:
        try:
            self._open(address, thorough=thorough)
        except (UnreachableError, DeadlineError) as error:
            return error.seen or error.what
        return None

    def _open(self, address: str, *, thorough: bool) -> Session:
        session = Session(
            address,
            client=self._client,
            owner=self._owner,
            output=self._output,
            hear=self._hear,
            thorough=thorough,
        )
        with self._lock:
            self._sessions[address] = session
        session.start()
        if self._standing:
            _send(session, self._standing)
        return session

    def rejoin(self, session: Session) -> Session | None:
        """Try once to open a session again that broke; whoever it is has not been told yet."""
        try:
            return self._open(session.address, thorough=True)
        except (UnreachableError, DeadlineError):
            return None

    def drop(self, session: Session) -> None:
        """Forget a session that has ended."""
        with self._lock:
            if self._sessions.get(session.address) is session:
                del self._sessions[session.address]

    def send(self, message: Message) -> None:
        """Send an order to all; a keeper that is gone is noticed elsewhere."""
        for session in self.sessions:
            _send(session, message)

    def tell(self, message: Message) -> None:
        """The same, and tell it to those that come later, too."""
        self._standing = message
        self.send(message)

    def close(self, timeout_s: float, *, back_s: float = 0.0) -> None:
        """Leave them all, after everything they printed so far was heard; perhaps not for good."""
        deadline_s = time.monotonic() + timeout_s
        if back_s:
            self.send({"op": "leave", "back_s": back_s})
        sessions = self.sessions
        for session in sessions:
            session.ask_sync()
        for session in sessions:
            session.wait_synced(deadline_s - time.monotonic())
            session.close()
        with self._lock:
            self._sessions.clear()


def _send(session: Session, message: Message) -> None:
    with contextlib.suppress(UnreachableError):
        session.send(message)
