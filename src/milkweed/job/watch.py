"""What a client hears of its hosts: who is ready, who is lost and why, and when all of it is over."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backends.base import Backend, Explains, Glances, Handle, KeepsLogs
from ..backends.programs import is_late
from ..control import Session
from ..errors import DeadlineError, MilkweedError
from ..events import Events
from ..logs import write
from ..status import HostState, HostStatus, Liveness, Status
from .terminal import Terminal

Message = Mapping[str, Any]
BROKEN_S = 3.0
"""How long a host whose connection broke may take to answer again before it counts as lost."""
ENDING_S = 10.0
"""How long a scheduler that is ending a job may take to say how, before it is told without that."""
MOST_NOTES = 5
"""So many lost hosts are named in an error."""
_RETRY_S = 0.5


def glance(backend: Backend, handle: Handle, *, fresh: bool = False) -> Status:
    """What the scheduler says, as cheaply as the backend can tell."""
    if isinstance(backend, Glances):
        return backend.glance(handle, fresh=fresh)
    return backend.poll(handle)


def explain(backend: Backend, handle: Handle, host: str) -> HostStatus:
    """What the scheduler knows of a host that does not answer."""
    if isinstance(backend, Explains):
        with contextlib.suppress(MilkweedError):  # a scheduler that is away knows nothing either
            return backend.explain(handle, host)
    return HostStatus(host=host, state=HostState.UNKNOWN)


@dataclass
class Watch:
    """Everything that is heard, and what is made of it."""

    name: str
    client: str
    backend: Backend
    handle: Handle
    events: Events
    terminal: Terminal | None
    rejoin: Callable[[Session], Session | None] = lambda _session: None
    drop: Callable[[Session], None] = lambda _session: None
    pause: Callable[[float], object] = lambda _seconds: None
    clock: Callable[[], float] = lambda: 0.0
    seen: dict[str, Message] = field(default_factory=dict[str, Message])
    lost: dict[str, str] = field(default_factory=dict[str, str])
    forgotten: set[str] = field(default_factory=set[str])
    """Hosts that are released: their end is no loss."""
    over: str | None = None
    """Why it is over, once it is: hosts ended, or went back to the queue, or this client has left."""
    left: bool = False
    """This client has left the hosts: what became of them does not concern it any more."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Held by who changes what is known, and by who goes through it."""
    _endings: dict[str, str] = field(default_factory=dict[str, str])
    _broken: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Hosts whose connection broke, by its address, until it is known what became of them."""

    def hear(self, session: Session, message: Message) -> None:
        """Take one message of one session."""
        kind = message.get("ev")
        if kind == "host" and message["host"] in self.forgotten:
            return
        if kind == "out" and self.terminal is not None:
            if message["kind"] == "proc":  # what workers and a batch client say is for their logs
                self.terminal.take(dict(message))
        elif kind == "host":
            self._saw_host(message)
        elif kind == "proc" and message["client"] == self.client:
            self._saw_proc(message)
        elif kind == "ending":
            self._endings[session.address] = str(message["reason"])
        elif kind == "closed":
            self._saw_closed(session)

    def is_troubled(self) -> bool:
        """Whether hosts are gone or out of reach: what fails then is no news."""
        return bool(self.over is not None or self.lost or self._broken)

    def describe_loss(self, patience_s: float) -> list[str]:
        """What became of hosts, for a call to them that has failed; it may take so long until that is known.

        A client that has left its hosts has nothing more to say of them: it may have others by now.
        """
        with self.changed:
            self.changed.wait_for(lambda: not self.unsettled, patience_s)
            lost = [] if self.left else [_say_lost(*each) for each in self.lost.items()]
            rest = len(lost) - MOST_NOTES
            told = [*lost[:MOST_NOTES], *([f"{rest} more hosts are lost"] if rest > 0 else [])]
            if self.over is not None and not self.left:
                told.append(self._say_over(self.over))
            if self.unsettled:
                told.append(f"the connection to {self._silent} broke: it is not known yet why")
            return told

    def _say_over(self, reason: str) -> str:
        return f"the hosts of job {self.name!r} have ended{f': {reason}' if reason else ''}"

    # One host

    def _saw_host(self, host: Message) -> None:
        with self.changed:
            before = self.seen.get(host["host"], {}).get("state")
            self.seen[host["host"]] = host
            fails = host["state"] == "failed" and before != "failed"
            if fails:
                self.lost[host["host"]] = host["reason"]
            self.changed.notify_all()
        if fails:
            self.events.add("host lost", host=host["host"], detail=host["reason"])
            if before == "ready":
                self._tell_lost(host)

    def _tell_lost(self, host: Message) -> None:
        say(_say_lost(host["host"], host["reason"]))
        for line in host["tail"][-5:]:
            say(f"  {line}")
        give_up()

    def _saw_proc(self, message: Message) -> None:
        detail = f"rank {message['rank']}: {message['reason']}"
        self.events.add("proc ended", host=message["host"], detail=detail)
        say(f"a proc of host {message['host']} ended: {detail}")

    # A session that ended

    def _saw_closed(self, session: Session) -> None:
        """Keepers of this machine end with their hosts; those elsewhere may only be out of reach."""
        self.drop(session)
        if self.over is not None or session.left or self.forgotten.issuperset(session.labels):
            return
        if self.backend.capabilities.machine_bound:
            self.end("")
            return
        with self.changed:
            self._broken[session.address] = session.labels
        try:
            self._find_out(session, self._endings.get(session.address, ""))
        finally:
            with self.changed:
                self._broken.pop(session.address, None)
                self.changed.notify_all()

    def _find_out(self, session: Session, ending: str) -> None:
        """Is it over, is the host there after all, or is it lost?"""
        began_s = self.clock()
        while self.over is None and not self._is_over(status := self._look(), ending):
            if not ending and (again := self.rejoin(session)):
                if self.over is None:
                    self._saw_again(session, again)
                else:  # this client has left meanwhile
                    again.close()
                return
            if self.clock() - began_s >= (ENDING_S if status.ending else BROKEN_S):
                if status.ending:
                    self.end(_join(status.reason, ending))
                else:
                    self._lose(session, ending)
                return
            self.pause(_RETRY_S)

    def _saw_again(self, before: Session, after: Session) -> None:
        """A host is there again: the same, or one that took its place and knows nothing of this client."""
        if after.keeper == before.keeper:
            self.events.add("reconnected", host=", ".join(before.labels))
            return
        for label in before.labels:
            known = explain(self.backend, self.handle, label)
            reason = known.reason or "its keeper was started anew"
            with self.changed:
                self.lost[label] = reason
            self.events.add("host replaced", host=label, detail=reason)
            say(f"host {label} was lost, and there is another in its place: {reason}")
        give_up()

    @property
    def unsettled(self) -> bool:
        """Whether it is not known yet what became of a host whose connection broke."""
        return bool(self._broken) and self.over is None

    @property
    def _silent(self) -> str:
        return ", ".join(label for labels in self._broken.values() for label in labels)

    def settle(self) -> None:
        """Wait until it is known what became of every host whose connection broke, or for the deadline."""
        with self.changed:
            while self.unsettled:
                if is_late():
                    raise DeadlineError(
                        f"it is not known yet what became of hosts of job {self.name!r}",
                        seen=f"the connection to {self._silent} broke",
                        hint="nothing was changed: call state() again to go on waiting",
                    )
                self.changed.wait(_RETRY_S)

    def _look(self) -> Status:
        try:
            return glance(self.backend, self.handle, fresh=True)
        except MilkweedError as error:  # a scheduler that cannot be asked tells no end
            return Status(liveness=Liveness.UNKNOWN, reason=error.what)

    def _is_over(self, status: Status, ending: str) -> bool:
        if status.liveness is Liveness.ENDED:
            self.end(_join(status.reason, ending))
        elif status.liveness is Liveness.PENDING:
            self.end(f"it is back in the queue: {status.reason}")
        return self.over is not None

    def _lose(self, session: Session, ending: str) -> None:
        for label in session.labels:
            known = explain(self.backend, self.handle, label)
            reason = _join_loss(ending, session.node, known)
            # A scheduler that has not noticed the loss yet has no lines of the log either.
            tail = known.reason.splitlines()[1:] or self._load_last_lines(label)
            item = {"host": label, "state": "failed", "tail": tail, "exit_code": None}
            self._saw_host({**item, "reason": reason})

    def _load_last_lines(self, host: str) -> Sequence[str]:
        if isinstance(self.backend, KeepsLogs):
            with contextlib.suppress(MilkweedError):  # the loss is told without them, too
                return self.backend.last_lines(self.handle, [host]).get(host, [])
        return []

    def forget(self, labels: Iterable[str]) -> None:
        """These hosts, and no others, are about to be released."""
        self.forgotten = set(labels)

    def change(self, handle: Handle) -> None:
        """The allocation is another one now: those that were to be released are gone."""
        with self.changed:
            self.handle = handle
            for label in self.forgotten:
                self.seen.pop(label, None)

    def end(self, reason: str) -> None:
        """It is over for this client; said once."""
        with self.changed:
            if self.over is not None:
                return
            self.over = reason
            self.changed.notify_all()
        self.events.add("hosts ended", detail=reason)
        say(self._say_over(reason))
        give_up()

    def leave(self) -> None:
        """This client has had enough: nothing that is heard from now on matters."""
        with self.changed:
            self.left = True
            self.over = self.over or ""
            self.changed.notify_all()


def _join(reason: str, ending: str) -> str:
    """What the scheduler says, and what the keeper said last."""
    return f"{reason} ({ending})" if ending else reason


def _join_loss(ending: str, node: str, known: HostStatus) -> str:
    """Why a host is lost: what its keeper said last, and what the scheduler says.

    Its machine is blamed where neither knows better: a keeper may end on one that is in order.
    """
    first = known.reason.partition("\n")[0]
    certain = known.state is HostState.FAILED and not known.unheard
    words = "" if certain and first else f"its machine {node} does not answer"
    told = first if known.state in {HostState.FAILED, HostState.UNKNOWN} else ""
    return "; ".join(filter(None, (ending or words, told)))


def _say_lost(host: str, reason: str) -> str:
    return f"host {host} is lost: {reason}"


def give_up() -> None:
    """Have the engine stop waiting for hosts that are gone; it need not be there at all."""
    if "milkweed.engine" in sys.modules:
        from .. import engine

        engine.give_up_on_lost_hosts()


def say(text: str) -> None:
    """Tell the person at the terminal, if there is one."""
    write(sys.stderr, f"milkweed: {text}\n")
