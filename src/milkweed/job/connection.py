"""A client's connection to an allocation: waiting for its hosts, hearing what they say, leaving cleanly."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..backends.base import Backend, Connects, Controls, Handle
from ..control import Session
from ..errors import AllocationEndedError, DeadlineError, HostFailedError
from ..events import Events
from ..hosts import Host, cut_hosts
from ..spec import JobSpec
from ..status import Liveness, Status
from ..units import render_duration
from .progress import Progress
from .terminal import Terminal

START_TIMEOUT_S = 120.0
FIRST_POLL_S = 0.005
SLOWEST_POLL_S = 5.0
LEAVE_TIMEOUT_S = 5.0

_open: set[Connection] = set()
"""Held here too: hosts stay in use though a program keeps only a mesh of its job."""


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
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = uuid.uuid4().hex
        self.meshes: Mapping[str, Any] = {}
        self.lost: dict[str, str] = {}
        self._backend = backend
        self._spec = spec
        self._handle = handle
        self._events = events
        self._owner = owner
        self._sleep = sleep
        self._clock = clock
        self._sessions: list[Session] = []
        self._seen: dict[str, Mapping[str, Any]] = {}
        self._changed = threading.Condition()
        self._terminal = Terminal() if spec.client.get("stream_logs", True) else None
        self._pid = os.getpid()
        self._closed = False

    def join(self, deadline_s: float | None) -> None:
        """Be present: hosts see that they are wanted, and what they say is heard."""
        if self not in _open:
            self._wait_running(deadline_s)
            self._listen()
            _open.add(self)

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
        shown = self._credentials(hosts)
        self.meshes = engine.attach(cut, client=self.client, credentials=shown)
        return self.meshes

    def _credentials(self, hosts: Sequence[Host]) -> Mapping[str, str]:
        """What this client shows to hosts that ask for a certificate; tried on the first of them."""
        folder = self._handle.get("credentials")
        if not folder:
            return {}
        from ..access import check_access
        from ..pki import Credentials, engine_environment

        credentials = Credentials.of_folder(Path(folder))
        check_access(credentials, hosts[0].address)
        return engine_environment(credentials)

    def _wait_running(self, deadline_s: float | None) -> None:
        progress = Progress(f"waiting for job {self._spec.name!r}", clock=self._clock)
        pause_s = FIRST_POLL_S
        while True:
            status = self._backend.poll(self._handle)
            if status.liveness is Liveness.RUNNING:
                return
            if status.liveness is Liveness.ENDED:
                raise AllocationEndedError(
                    f"the allocation of job {self._spec.name!r} has ended", seen=status.reason
                )
            progress.see(status.describe())
            _check_deadline(self._clock(), deadline_s, progress, status)
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.5, SLOWEST_POLL_S)

    def _listen(self) -> None:
        if not isinstance(self._backend, Controls):
            return
        for address in self._backend.controls(self._handle):
            session = Session(
                address,
                client=self.client,
                owner=self._owner,
                output=self._terminal is not None,
                hear=self._hear,
            )
            self._sessions.append(session)

    def _hear(self, message: Mapping[str, Any]) -> None:
        kind = message.get("ev")
        if kind == "out" and self._terminal is not None:
            if message["kind"] == "proc":  # what workers and a batch client say is for their logs
                self._terminal.take(dict(message))
        elif kind == "host":
            self._saw_host(message)
        elif kind == "proc" and message["client"] == self.client:
            self._saw_proc(message)
        elif kind == "closed":
            self._saw_end()

    def _saw_host(self, host: Mapping[str, Any]) -> None:
        with self._changed:
            before = self._seen.get(host["host"], {}).get("state")
            self._seen[host["host"]] = host
            self._changed.notify_all()
        if host["state"] == "failed" and before != "failed":
            self.lost[host["host"]] = host["reason"]
            self._events.add("host lost", host=host["host"], detail=host["reason"])
            if before == "ready":
                self._tell_lost(host)

    def _tell_lost(self, host: Mapping[str, Any]) -> None:
        _say(f"host {host['host']} is lost: {host['reason']}")
        for line in host["tail"][-5:]:
            _say(f"  {line}")
        self._give_up()

    def _give_up(self) -> None:
        if "milkweed.engine" in sys.modules:
            from .. import engine

            engine.give_up_on_lost_hosts()

    def _saw_proc(self, message: Mapping[str, Any]) -> None:
        detail = f"rank {message['rank']}: {message['reason']}"
        self._events.add("proc ended", host=message["host"], detail=detail)
        _say(f"a proc of host {message['host']} ended: {detail}")

    def _saw_end(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if not self._closed:
            self._closed = True
            self._events.add("hosts ended")
            _say(f"the hosts of job {self._spec.name!r} have ended")
            self._give_up()

    def _wait_ready(self, deadline_s: float | None) -> Sequence[Host]:
        """Wait until every host's worker serves; the first that fails ends the wait at once."""
        if not self._sessions:
            return self._backend.hosts(self._handle)
        progress = Progress(f"starting hosts of job {self._spec.name!r}", clock=self._clock)
        limit_s = deadline_s or self._clock() + START_TIMEOUT_S
        with self._changed:
            while not all(host["state"] == "ready" for host in self._seen.values()):
                self._raise_failed()
                ready = sum(host["state"] == "ready" for host in self._seen.values())
                progress.see(f"{ready} of {len(self._seen)} are ready")
                _check_deadline(self._clock(), limit_s, progress, None)
                self._changed.wait(0.5)
        return self._backend.hosts(self._handle)

    def _raise_failed(self) -> None:
        if self._closed:
            raise AllocationEndedError("the hosts ended while they were being started")
        failed = [host for host in self._seen.values() if host["state"] == "failed"]
        if failed:
            first = failed[0]
            others = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
            raise HostFailedError(
                f"host {first['host']} did not start: {first['reason']}{others}",
                seen="\n".join(first["tail"]) or "it wrote nothing",
                hint="the lines above are the end of the host's log",
            )

    @property
    def alive(self) -> bool:
        """Whether the hosts' keepers are still there."""
        return not self._closed and os.getpid() == self._pid

    @property
    def usable(self) -> bool:
        """Whether the hosts are all there."""
        return self.alive and not self.lost

    def keep(self) -> None:
        """Let the hosts outlive this client."""
        order = {"op": "keep", "idle_timeout_s": self._spec.lifetime.idle_timeout_s}
        for session in self._sessions:
            session.send(order)

    def close(self) -> None:
        """Leave: print what is still to be printed; procs of this client end, hosts stay if they are kept."""
        _open.discard(self)
        self._closed = True
        if os.getpid() != self._pid:
            return  # a fork of the program: the connection is its parent's
        for session in self._sessions:
            session.sync(LEAVE_TIMEOUT_S)
            session.close()
        if self._terminal is not None:
            self._terminal.close()


def _check_deadline(
    now_s: float, deadline_s: float | None, progress: Progress, status: Status | None
) -> None:
    if deadline_s is not None and now_s >= deadline_s:
        raise DeadlineError(
            f"the hosts were not ready after {render_duration(progress.waited_s)}",
            seen=status.describe() if status else "some hosts are still starting",
            hint="nothing was cancelled: call state() again to go on waiting, or kill()",
        )


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"milkweed: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def leave_all() -> None:
    """At the end of a program: let procs finish what they were told, then leave."""
    connections = [connection for connection in _open if connection.alive]
    if not connections:
        return
    in_order = not hasattr(sys, "last_type") and not any(c.lost for c in connections)
    if in_order and "milkweed.engine" in sys.modules:
        from .. import engine

        engine.stop_procs(LEAVE_TIMEOUT_S)
    for connection in connections:
        connection.close()


def _at_end(leave: Callable[[], None]) -> None:
    """Have something done at the end of the program while threads still run: the engine needs its own."""
    # Private: plain atexit comes after threads were ended, when the engine cannot finish anything any more.
    # A test fails when it moves; without it, leaving still works, and only unfinished calls are cut off.
    early: Callable[[Callable[[], None]], object] = getattr(
        threading, "_register_atexit", atexit.register
    )
    early(leave)


_at_end(leave_all)
