"""The hosts that take part in a run: gathering them, hearing them, noticing who is lost and who is back."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backends.base import Admits, Controls
from ..bell import bell
from ..channel import HOST_PATIENCE_S
from ..control import Session, parse_door
from ..errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    MilkweedError,
    UnreachableError,
)
from ..job.preparing import prepare_hosts
from ..job.presence import Presence
from ..job.progress import Progress
from ..job.watch import explain, glance
from ..status import HostState, Liveness, Status
from ..units import render_duration
from .console import say
from .hearing import Hearing
from .inbox import Inbox, Interrupted
from .target import Target, check_backend, check_kept

Message = Mapping[str, Any]
REJOIN_S = 25.0
"""How long a host whose connection broke may take to answer again; its ranks go on for a little longer."""
PROBE_S = HOST_PATIENCE_S + 2.0
"""How long a host may take to answer at all: one that is silent for less is noticed by then."""
RETRY_S = 0.5
LOOK_EVERY_S = 3.0
POLL_S = 0.02
SLOWEST_POLL_S = 2.0
FAR_S = 1e8
"""For ever, as a number of seconds that can be told."""
LOST_PATIENCE_S = 10.0
"""How long a host that was lost before the program began may take to be back."""


class Crew:
    """Sessions with the keepers of all hosts that answer."""

    def __init__(
        self,
        target: Target,
        show: Callable[[Message], None],
        *,
        sleep: Callable[[float], object] = bell.wait,
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[..., None] = prepare_hosts,
    ) -> None:
        check_backend(target.backend)
        check_kept(target)
        self.target = target
        self.client = uuid.uuid4().hex
        self.inbox = Inbox()
        self._running = ""
        """The number of the attempt that runs; what a host missed of it is said again."""
        self._orders: dict[str, list[Message]] = {}
        self._addresses: dict[str, str] = {}
        self._broken: set[str] = set()
        self._prepared: set[tuple[str, str]] = set()
        """Addresses, each with the keeper that was behind it: one that replaces it is new."""
        self._saying = threading.RLock()
        """Held while orders are given, so that none overtakes another that is said again."""
        self._hearing = Hearing(show, self.inbox.put)
        self._sleep = sleep
        self._clock = clock
        self._bring = prepare
        self._lost: dict[str, str] = {}
        self._over = False
        self._gathering = False
        self._looking = threading.Lock()
        self._aside: threading.Thread | None = None
        self._short_s: float | None = None
        """Since when there are too few hosts that may still come."""
        self._lock = threading.Lock()
        self._presence = Presence(client=self.client, owner=False, output=True, hear=self._hear)

    def begin(self, number: str) -> None:
        """A new attempt begins: what was heard before does not matter any more."""
        with self._saying:
            self._running = number
            # A host that is out of reach must still hear that the attempt before is over.
            away = {label for label in self._orders if self._addresses.get(label) in self._broken}
            self._orders = {label: self._orders[label] for label in away}
        self.inbox.raise_signal(forget=True)

    # Hearing

    def _hear(self, session: Session, message: Message) -> None:
        kind = message.get("ev")
        self._addresses |= dict.fromkeys(session.labels, session.address)
        if kind == "host":
            self._saw_host(message)
        elif kind == "closed":
            self._presence.drop(session)
            if not session.left and not self._over:
                self._find_out(session)
        else:
            self._hearing.take(session, message)

    def _saw_host(self, host: Message) -> None:
        label = str(host["host"])
        with self._lock:
            was_lost = label in self._lost
            if host["state"] == "failed":
                self._lost[label] = str(host["reason"])
            elif host["state"] == "ready":
                self._lost.pop(label, None)
            is_lost = label in self._lost
        if is_lost and not was_lost:
            first = str(host["reason"]).partition("\n")[0]
            self.inbox.put({"ev": "lost", "host": label, "reason": first})

    def _find_out(self, session: Session) -> None:
        """A connection broke: the host is back soon, or lost; its ranks go on meanwhile."""
        until_s = self._clock() + (REJOIN_S if parse_door(session.address).machine else 0.0)
        with self._saying:
            self._broken.add(session.address)
        told = False
        try:
            while not self._over and self._clock() < until_s and self._may_come_back(session):
                if self._presence.rejoin(session):
                    with self._saying:
                        self._broken.discard(session.address)
                        self._say_again(session.labels)
                    return
                told = told or self._tell_broken(session)
                self._sleep(RETRY_S)
        finally:
            self._broken.discard(session.address)
        for label in session.labels:
            known = explain(self.target.backend, self.target.handle, label)
            reason = known.reason if known.state is HostState.FAILED else ""
            words = reason or f"its machine {session.node} does not answer".replace("  ", " ")
            self._saw_host({"host": label, "state": "failed", "reason": words})

    def _tell_broken(self, session: Session) -> bool:
        hosts = ", ".join(self.target.pick(session.labels))
        if hosts:
            say(f"the connection to {hosts} is broken: ranks there go on, and it is tried again")
        return True

    def _say_again(self, labels: Sequence[str]) -> None:
        """Nobody knows which orders got through: keepers do nothing twice, and answer again."""
        for label in labels:
            for message in list(self._orders.get(label, ())):
                self._send(label, message)
            heard = self._hearing.number(self._running, label)
            self._send(label, {"op": "report", "id": self._running, "number": heard})

    def _may_come_back(self, session: Session) -> bool:
        with contextlib.suppress(MilkweedError):  # a scheduler that cannot be asked tells of no end
            status = glance(self.target.backend, self.target.handle, fresh=True)
            if status.liveness in {Liveness.ENDED, Liveness.PENDING}:
                return False
        known = [
            explain(self.target.backend, self.target.handle, label) for label in session.labels
        ]
        # What the scheduler does not hear either may only be out of reach.
        return all(each.state is not HostState.FAILED or each.unheard for each in known)

    # Who is there

    @property
    def labels(self) -> list[str]:
        """The mesh's hosts, in order; a job that was made larger meanwhile has more than were asked for."""
        return self.target.pick({*self.target.labels, *self._answering()})

    def _answering(self) -> set[str]:
        return {label for session in self._presence.sessions for label in session.labels}

    @property
    def present(self) -> list[str]:
        """The mesh's hosts that answer, in order."""
        there = self._answering()
        with self._lock:
            return self.target.pick(there - set(self._lost))

    @property
    def lost(self) -> Mapping[str, str]:
        """The mesh's hosts that are lost, and why."""
        with self._lock:
            return {label: why for label, why in self._lost.items() if self.target.has(label)}

    def unsure(self, labels: Sequence[str]) -> list[str]:
        """Those of the hosts that do not answer now, and may be back or lost soon."""
        there = {label for each in self._presence.sessions if each.open for label in each.labels}
        lost = self.lost
        return [label for label in labels if label not in there and label not in lost]

    def probe(self, labels: Sequence[str]) -> None:
        """Have hosts answer, so that one that is gone without a word is noticed."""
        asked = [each for each in self._presence.sessions if set(labels) & set(each.labels)]
        for session in asked:
            session.ask_sync()
        for session in asked:
            session.wait_synced(PROBE_S)

    def address(self, label: str, among: Sequence[str]) -> str:
        """How ranks of the hosts `among` reach a host: by name, or as their own machine."""
        machines = {parse_door(self._addresses[other]).machine for other in among}
        mine = parse_door(self._addresses[label]).machine
        return mine if len(machines) > 1 else "localhost"

    def _session(self, label: str) -> Session:
        for session in self._presence.sessions:
            if label in session.labels:
                return session
        raise UnreachableError(f"host {label} is gone")

    def order(self, label: str, message: Message) -> None:
        """Tell a host's keeper something; one that is out of reach is told when it is back."""
        with self._saying:
            if message["op"] == "done":
                self._orders[label] = []  # what came before it is over, and not to be said again
            if message.get("id") == self._running:
                self._orders.setdefault(label, []).append(message)
            if self._addresses.get(label) not in self._broken:
                self._send(label, message)

    def _send(self, label: str, message: Message) -> None:
        """Send an order; a keeper that is gone is noticed elsewhere."""
        with contextlib.suppress(UnreachableError):
            self._session(label).send({**message, "host": label})

    def revive(self) -> None:
        """Have lost hosts started again whose machines are there."""
        for label in self.lost:
            self.order(label, {"op": "revive"})

    # Gathering

    def look(self, *, until_s: float | None = None) -> Status:
        """Ask the scheduler, open sessions with keepers that are new, and bring their hosts to their image."""
        with self._looking:
            return self._look(until_s if until_s is not None else self._clock() + FAR_S)

    def look_aside(self) -> None:
        """Look while ranks run; `looked` in the inbox tells that it is over, and what was wrong, if anything."""
        if self._aside is None or not self._aside.is_alive():
            self._aside = threading.Thread(target=self._look_aside, daemon=True)
            self._aside.start()

    def _look_aside(self) -> None:
        try:
            self.look()
        except (MilkweedError, OSError) as error:
            self.inbox.put({"ev": "looked", "error": error})
        else:
            self.inbox.put({"ev": "looked"})

    def _look(self, until_s: float) -> Status:
        target = self.target
        status = glance(target.backend, target.handle)
        if status.liveness is Liveness.ENDED:
            raise AllocationEndedError(
                f"the allocation of job {target.spec.name!r} has ended", seen=status.reason
            )
        if status.liveness is Liveness.RUNNING and isinstance(target.backend, Controls):
            with contextlib.suppress(UnreachableError):
                doors = [
                    address
                    for address in target.backend.controls(target.handle)
                    if address not in self._broken
                ]
                missing = self._presence.join(doors)
                self._let_in([parse_door(address).host for address in missing])
                self._prepare([address for address in doors if address not in missing], until_s)
        return status

    def _prepare(self, doors: Sequence[str], until_s: float) -> None:
        """Bring hosts that are new to what their image says, and their folders; whoever leaves does not wait."""
        there = {(each.address, each.keeper) for each in self._presence.sessions}
        new = sorted(key for key in there - self._prepared if key[0] in doors)
        self._bring(
            self.target.spec,
            [address for address, _ in new],
            deadline_s=until_s,
            clock=lambda: until_s if self._over else self._clock(),
        )
        self._prepared.update(new)

    def _let_in(self, hosts: Sequence[str]) -> None:
        """Hosts that do not answer may wait to be let in, or be lost for good."""
        target = self.target
        if hosts and isinstance(target.backend, Admits):
            target.backend.admit(target.handle, hosts)
        for label in hosts:
            known = explain(target.backend, target.handle, label)
            if known.state is HostState.FAILED and not known.unheard:
                self._saw_host({"host": label, "state": "failed", "reason": known.reason})

    def gather(self, least: int, most: int, *, timeout_s: float, last_call_s: float) -> list[str]:
        """Wait until enough hosts are there: `most`, or after a last call at least `least`."""
        self._gathering = True
        try:
            self.inbox.raise_signal()
            return self._gather(least, most, timeout_s, last_call_s)
        finally:
            self._gathering = False

    def interrupt(self, name: str) -> None:
        """Somebody wants it to end: while hosts are asked and prepared at once, else when ranks were told."""
        if self._gathering:
            raise Interrupted(name)
        self.inbox.put({"ev": "signal", "name": name})

    def _gather(self, least: int, most: int, timeout_s: float, last_call_s: float) -> list[str]:
        progress = Progress(
            f"waiting for hosts of job {self.target.spec.name!r}", clock=self._clock
        )
        enough_s: float | None = None
        self._short_s = None
        pause_s = POLL_S
        until_s = self._clock() + min(timeout_s, FAR_S)
        while True:
            status = self.look(until_s=until_s)
            present = self.present
            if self._are_chosen(present, most):
                return present[:most]
            if len(present) >= least:
                enough_s = enough_s or self._clock()
                if self._clock() - enough_s >= last_call_s or not self._may_grow(present):
                    return present[:most]
            seen = f"hosts there: {len(present)}, needed: {least}; {status.describe()}"
            progress.see(seen)
            self._check(least, progress, timeout_s, seen)
            self._pause(pause_s)
            pause_s = min(pause_s * 1.5, SLOWEST_POLL_S)

    def _are_chosen(self, present: Sequence[str], most: int) -> bool:
        """Whether those who are there are those one would choose: the first ones that can be had."""
        wanted = self._may_be()[:most]
        return len(present) >= most and list(present[:most]) == wanted

    def _may_grow(self, present: Sequence[str]) -> bool:
        return len(present) < len(self._may_be())

    def _may_be(self) -> list[str]:
        """The hosts that are there, or may come."""
        lost = self.lost
        return [label for label in self.labels if label not in lost]

    def _pause(self, pause_s: float) -> None:
        """Sleep; a person who wants to stop it is heard."""
        until_s = self._clock() + pause_s
        while self._clock() < until_s:
            self._sleep(min(0.1, pause_s))
            self.inbox.raise_signal()

    def _check(self, least: int, progress: Progress, timeout_s: float, seen: str) -> None:
        """Raise when it makes no sense to wait any longer; a queue is waited for, a lost host is not."""
        lost = self.lost
        waited_s = progress.waited_s
        if lost and math.isinf(timeout_s) and len(self._may_be()) < least:
            self.revive()
            self._short_s = self._short_s or self._clock()
            waited_s, timeout_s = self._clock() - self._short_s, LOST_PATIENCE_S
        if waited_s >= timeout_s:
            if lost:
                label, why = next(iter(lost.items()))
                raise HostFailedError(f"host {label} is lost", seen=why)
            raise DeadlineError(
                f"only {len(self.present)} of {least} hosts were there after"
                f" {render_duration(progress.waited_s)}",
                seen=seen,
                hint="nothing was cancelled: run it again to go on waiting",
            )

    def close(self) -> None:
        """Leave, after all that was printed is shown; ranks that may still run end."""
        self._over = True
        self._presence.close(1.0)
        self._hearing.close()
