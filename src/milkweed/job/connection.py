"""A client's connection to an allocation: waiting for its hosts, hearing what they say, leaving cleanly."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..backends.base import Admits, Adopts, Backend, Connects, Controls, Glances, Handle, Remembers
from ..bell import bell, route_to
from ..control import Door, parse_door
from ..errors import AllocationEndedError, DeadlineError, HostFailedError, UnreachableError
from ..events import Events
from ..hosts import Host, cut_hosts
from ..spec import JobSpec
from ..status import HostState, Liveness, Status
from ..units import render_duration
from ..worker.wire import engine_environment
from .attending import Attendance
from .leaving import LEAVE_TIMEOUT_S, connections
from .preparing import prepare_hosts
from .presence import Presence
from .progress import Progress
from .reaching import gateway, listen_for, make_host
from .terminal import Terminal
from .watch import Watch, explain, glance

START_TIMEOUT_S = 300.0
FIRST_POLL_S = 0.005
SLOWEST_POLL_S = 5.0
ASK_EVERY_S = 1.0
EXPLAIN_AT_ONCE = 3


class Connection:
    """Made by `JobTrait.state()`; one per allocation and client."""

    def __init__(
        self,
        backend: Backend,
        spec: JobSpec,
        handle: Handle,
        events: Events,
        *,
        owner: bool,
        sleep: Callable[[float], object] = bell.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = uuid.uuid4().hex
        self.meshes: Mapping[str, Any] = {}
        self._backend = backend
        self._spec = spec
        self._handle = handle
        self._sleep = sleep
        self._clock = clock
        self._events = events
        self._terminal = Terminal() if spec.client.get("stream_logs", True) else None
        self._owner = owner
        self._kept = False
        self._begin()
        self._attendance: Attendance | None = None
        self._pid = os.getpid()
        self._turn = 0

    def _begin(self) -> None:
        """Know nothing of any host yet."""
        self._watch = Watch(
            self._spec.name,
            self.client,
            self._backend,
            self._handle,
            self._events,
            self._terminal,
            pause=self._sleep,
            clock=self._clock,
        )
        self._presence = Presence(
            client=self.client,
            owner=self._owner,
            output=self._terminal is not None,
            hear=self._watch.hear,
        )
        self._watch.rejoin, self._watch.drop = self._presence.rejoin, self._presence.drop
        if self._kept:
            self.keep()

    def _begin_anew(self) -> None:
        """Leave hosts that were taken back: what is still heard of them is no news of those that come."""
        connections.discard(self)
        self._watch.leave()
        self._presence.close(0)
        self._begin()

    def _are_taken(self) -> bool:
        """Whether the hosts that were joined are gone: whether there will be others, their scheduler must say."""
        return self._watch.over is not None and not self._backend.capabilities.machine_bound

    def join(self, deadline_s: float | None) -> None:
        """Be present: hosts see that they are wanted, and what they say is heard."""
        if self in connections:
            return
        while True:
            self._wait_running(deadline_s)
            if self._join_keepers(deadline_s):
                self._remember()
                doors = [session.address for session in self._presence.sessions]
                prepare_hosts(self._spec, doors, deadline_s=deadline_s, clock=self._clock)
                connections.add(self)
                if self._attendance:
                    self._attendance.close()
                    self._attendance = None
                return
            self._begin_anew()

    def _remember(self) -> None:
        if isinstance(self._backend, Remembers):
            labels = [label for session in self._presence.sessions for label in session.labels]
            self._backend.joined(self._handle, labels)

    def open(self, deadline_s: float | None) -> Mapping[str, Any]:
        """Wait for the hosts and connect the engine to them."""
        self.join(deadline_s)
        if isinstance(self._backend, Connects):
            self.meshes = self._backend.connect(self._spec, self._handle, self.client)
            return self.meshes
        # Importing the engine takes as long as starting a host: do it while they start.
        from .. import engine

        hosts = self._wait_ready(deadline_s)
        cut = cut_hosts(self._spec.sizes, hosts)
        folder, listen = self._credentials(hosts)
        shown = engine_environment(folder) if folder else {}
        self.meshes = engine.attach(
            cut, client=self.client, credentials=shown, listen=listen, gateway=gateway(hosts[0])
        )
        engine.forgive_faults(self._watch)
        return self.meshes

    def _credentials(self, hosts: Sequence[Host]) -> tuple[str, str]:
        """What this client shows to hosts that ask for a certificate, and where they reach it."""
        door = parse_door(hosts[0].control) if hosts[0].control else Door()
        if door.credentials:
            return door.credentials, "localhost" if door.via else route_to(door.machine)
        if folder := self._handle.get("credentials", ""):
            from ..access import check_access
            from ..pki import Credentials

            # Tried here: where orders are taken over TLS, that has been done by now.
            check_access(Credentials.of_folder(Path(folder)), hosts[0].address)
        return folder, listen_for(hosts[0])

    # Waiting

    def _wait_running(self, deadline_s: float | None) -> None:
        progress = Progress(f"waiting for job {self._spec.name!r}", clock=self._clock)
        pause_s = FIRST_POLL_S
        while (status := self._look()).liveness is not Liveness.RUNNING:
            progress.see(status.describe())
            self._check_deadline(deadline_s, progress, status.describe())
            self._pause(pause_s, deadline_s)
            pause_s = min(pause_s * 1.5, SLOWEST_POLL_S)

    def _check_deadline(self, deadline_s: float | None, progress: Progress, seen: str) -> None:
        if deadline_s is None or self._clock() < deadline_s:
            return
        # What was said is for all of a wait; how long its last stage took would not tell why it is over.
        said_s = self._spec.client.get("start_timeout")
        within = f"within {said_s:g} s" if said_s else f"after {render_duration(progress.waited_s)}"
        raise DeadlineError(
            f"the hosts were not ready {within}",
            seen=seen,
            hint="nothing was cancelled: call state() again to go on waiting, or kill()",
        )

    def _pause(self, pause_s: float, deadline_s: float | None) -> None:
        """Sleep, but not past the deadline."""
        left_s = pause_s if deadline_s is None else deadline_s - self._clock()
        self._sleep(max(0.0, min(pause_s, left_s)))

    def _look(self) -> Status:
        status = glance(self._backend, self._handle)
        if status.liveness is Liveness.ENDED:
            raise AllocationEndedError(
                f"the allocation of job {self._spec.name!r} has ended", seen=status.reason
            )
        if isinstance(self._backend, Glances) and status.lost_hosts:
            first = status.lost_hosts[0]
            raise HostFailedError(f"host {first.host} did not start", seen=first.reason)
        return status

    def _join_keepers(self, deadline_s: float | None) -> bool:
        """Open a session with every keeper; False when the scheduler took the hosts back meanwhile.

        New hosts ring when they are there, so they are looked for often, and the scheduler is asked seldom.
        """
        if not isinstance(self._backend, Controls):
            return True
        progress = Progress(f"starting hosts of job {self._spec.name!r}", clock=self._clock)
        limit_s = deadline_s or self._clock() + START_TIMEOUT_S
        addresses = self._look_for_keepers()
        pause_s, asked_s, why = FIRST_POLL_S, self._clock(), ""
        thorough = True
        while (missing := self._presence.join(addresses, thorough=thorough)) or not self._has_all():
            if self._are_taken():
                return False
            thorough = self._clock() - asked_s >= ASK_EVERY_S
            if thorough or not addresses:
                asked_s = self._clock()
                status = self._look()
                if status.liveness is Liveness.PENDING:
                    return False
                hosts = [parse_door(address).host for address in missing]
                why = self._ask_why([*hosts[:EXPLAIN_AT_ONCE], *self._choose_unplaced(hosts)])
                if isinstance(self._backend, Admits):
                    with contextlib.suppress(UnreachableError):  # then they are let in later
                        self._backend.admit(self._handle, hosts)
                progress.see(f"{len(addresses) - len(missing)} hosts answer; {status.describe()}")
                addresses = self._look_for_keepers() or addresses
                # Some still wait in the queue like any, or all of them stand still.
                if len(addresses) < self._spec.host_count or status.halted:
                    limit_s = deadline_s or self._clock() + START_TIMEOUT_S
            seen = next(iter(missing.values()), "the scheduler has not given all hosts yet")
            seen = f"{seen}; {why}" if why else seen
            self._check_deadline(limit_s, progress, seen)
            self._pause(pause_s, limit_s)
            pause_s = min(pause_s * 1.5, 0.5)
        return not self._are_taken()

    def _look_for_keepers(self) -> Sequence[str]:
        """Where keepers take orders; nowhere as long as the scheduler does not answer."""
        if not isinstance(self._backend, Controls):
            return ()
        with contextlib.suppress(UnreachableError):
            return self._backend.controls(self._handle)
        return ()

    def _has_all(self) -> bool:
        """Whether every declared host has a keeper that we know; where hosts are not kept, there is none."""
        labels = {label for session in self._presence.sessions for label in session.labels}
        labels.update(self._adopted_labels())
        return isinstance(self._backend, Connects) or labels.issuperset(self._spec.labels)

    def _adopted_labels(self) -> Sequence[str]:
        if not isinstance(self._backend, Adopts):
            return ()
        return self._backend.adopted_labels(self._handle)

    def _choose_unplaced(self, silent: Sequence[str]) -> list[str]:
        """A few of the hosts that the scheduler has named no keeper of; each time others."""
        joined = {label for session in self._presence.sessions for label in session.labels}
        known = {*joined, *silent, *self._adopted_labels()}
        unplaced = [label for label in self._spec.labels if label not in known]
        self._turn += EXPLAIN_AT_ONCE
        at = self._turn % max(1, len(unplaced))
        return [*unplaced[at:], *unplaced[:at]][:EXPLAIN_AT_ONCE]

    def _ask_why(self, hosts: Sequence[str]) -> str:
        """The scheduler may know already that a host will never answer; else what it says of the first."""
        words: list[str] = []
        for host in hosts:
            status = explain(self._backend, self._handle, host)
            if status.state is HostState.FAILED and not status.unheard:
                raise HostFailedError(f"host {status.host} did not start", seen=status.reason)
            words.append(f"{status.host}: {status.reason}")
        return next(iter(words), "")

    def _wait_ready(self, deadline_s: float | None) -> Sequence[Host]:
        """Wait until every host's worker serves; those that go back to their queue meanwhile are joined anew."""
        known = self._presence.sessions or self._watch.seen or self._adopted_labels()
        if not known and not self._are_taken():
            return self._backend.hosts(self._handle)
        while not self._see_ready(limit_s := deadline_s or self._clock() + START_TIMEOUT_S):
            self._begin_anew()
            self.join(deadline_s)
        return [*self._hosts(), *self._wait_adopted(limit_s)]

    def _see_ready(self, limit_s: float) -> bool:
        """Wait for the hosts that were joined; the first that fails ends the wait. False: they were taken back."""
        watch = self._watch
        progress = Progress(f"starting hosts of job {self._spec.name!r}", clock=self._clock)
        with watch.changed:
            while watch.unsettled or any(each["state"] != "ready" for each in watch.seen.values()):
                if self._are_taken():
                    return False
                self._raise_failed()
                ready = sum(host["state"] == "ready" for host in watch.seen.values())
                progress.see(f"{ready} of {len(watch.seen)} are ready")
                self._check_deadline(limit_s, progress, "some hosts are still starting")
                watch.changed.wait(0.5)
        return not self._are_taken()

    def _wait_adopted(self, limit_s: float) -> Sequence[Host]:
        """Hosts that others made must serve, too; the engine would wait a minute for one that does not."""
        if not isinstance(self._backend, Adopts) or not self._adopted_labels():
            return ()
        progress = Progress(f"waiting for hosts of job {self._spec.name!r}", clock=self._clock)
        while True:
            try:
                return self._backend.adopted(self._handle)
            except UnreachableError as error:
                words = f"{error.what}: {error.seen}"
            progress.see(words)
            self._check_deadline(limit_s, progress, words)
            self._look()
            self._pause(0.2, limit_s)

    def _hosts(self) -> list[Host]:
        """The hosts as their keepers described them."""
        found = {
            label: make_host(self._watch.seen[label], session.node, session.address)
            for session in self._presence.sessions
            for label in session.labels
        }
        return list(found.values())

    def _raise_failed(self) -> None:
        if self._watch.over is not None:
            raise AllocationEndedError(
                "the hosts ended while they were being started", seen=self._watch.over
            )
        failed = [host for host in self._watch.seen.values() if host["state"] == "failed"]
        if failed:
            first = failed[0]
            others = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
            raise HostFailedError(
                f"host {first['host']} did not start: {first['reason']}{others}",
                seen="\n".join(first["tail"]) or "it wrote nothing",
                hint="the lines above are the end of the host's log",
            )

    # Being there, and leaving

    @property
    def presence(self) -> Presence:
        """Its sessions with the hosts' keepers."""
        return self._presence

    @property
    def lost(self) -> Mapping[str, str]:
        """Hosts that are gone, and why."""
        return self._watch.lost

    @property
    def alive(self) -> bool:
        """Whether the hosts' keepers are still there."""
        return self._watch.over is None and os.getpid() == self._pid

    @property
    def usable(self) -> bool:
        """Whether the hosts are all there; what became of one that is out of reach is waited for."""
        self._watch.settle()
        return self.alive and not self.lost

    def release(self, labels: Iterable[str]) -> None:
        """Some hosts are about to go, and that is meant."""
        self._watch.forget(labels)

    def change(self, spec: JobSpec, handle: Handle) -> None:
        """The allocation has other hosts now: the next `open` joins the new ones, and stays with the others."""
        self._spec = replace(spec, client=self._spec.client)
        self._handle = handle
        self._watch.change(handle)
        connections.discard(self)
        if self._owner:  # hosts that come now must see that it is there, though it opens them later
            self._attendance = self._attendance or Attendance(self._backend, owner=True)
            self._attendance.stay(handle, known=self._presence)

    def take_over(self, attendance: Attendance) -> None:
        """Be the one who is present where somebody has kept a place for this client."""
        attendance.hand_over(self._presence)

    def keep(self) -> None:
        """Let the hosts outlive this client, those too that it joins later."""
        self._kept = True
        idle_timeout_s = self._spec.lifetime.idle_timeout_s
        self._presence.tell({"op": "keep", "idle_timeout_s": idle_timeout_s})

    def close(self, *, back_s: float = 0.0) -> None:
        """Leave: print what is still to be printed; procs of this client end, hosts stay if they are kept.

        Hosts that end with this client stay for `back_s` seconds, in which it may be back.
        """
        connections.discard(self)
        if self._attendance:
            self._attendance.close(back_s=back_s)
        self._watch.leave()
        if os.getpid() != self._pid:
            return  # a fork of the program: the connection is its parent's
        self._presence.close(LEAVE_TIMEOUT_S, back_s=back_s)
        if self._terminal is not None:
            self._terminal.close()
