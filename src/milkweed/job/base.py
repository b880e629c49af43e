"""JobTrait: what every job can do, written once; a job class only turns its arguments into a spec."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from .._checkpoint import checkpoint
from ..backends import load_backend
from ..backends.base import Backend, LogLine
from ..errors import (
    AllocationEndedError,
    ChangedError,
    DeadlineError,
    HostFailedError,
    MilkweedError,
    NotAppliedError,
    SpecError,
    StateError,
    UnsupportedError,
)
from ..events import Event, Events
from ..plan import ON_CHANGE, Action, Plan
from ..registry import own_state_path
from ..spec import JobSpec, suggest
from ..state import DEFAULT_PATH, Record, StateFile
from ..status import Liveness, Status
from ..worker.wire import STATE_ENV
from . import hooks, lifecycle
from .command import class_path, make_client_command
from .connection import Connection
from .progress import Progress
from .services import ServiceMethods
from .state import JobState


@dataclass
class Held:
    """What a job object holds of its allocation."""

    record: Record
    file: StateFile
    connection: Connection | None = None
    state: JobState | None = None


class JobTrait(ServiceMethods):
    """A declared job: named meshes of hosts, their allocation, and the way to it.

    `apply()` asks for the hosts, `state()` connects to them, `kill()` ends them. A second program with the
    same state file connects to the same hosts; a changed declaration makes a plan, never a surprise.
    """

    # Class attributes, so that a subclass that never calls __init__ works too.
    _spec: JobSpec | None = None
    _held: Held | None = None
    _on_change: str | None = None

    # What a job class says

    def _declare(self, spec: JobSpec, *, on_change: str | None) -> None:
        """Keep the declaration; called once, by the job class's constructor."""
        self._spec = spec
        self.on_change = on_change

    @property
    def spec(self) -> JobSpec:
        """The declaration as a value, with the services that were enabled."""
        if self._spec is None and not hooks.is_hooked(self):
            raise SpecError(
                f"{type(self).__name__} declares nothing", hint="call super().__init__()"
            )
        return replace(self._spec or hooks.make_spec(self), services=self._services)

    def _backend(self) -> Backend:
        return hooks.HookBackend(self) if hooks.is_hooked(self) else load_backend(self.spec.backend)

    @property
    def on_change(self) -> str | None:
        """What to do when the allocation differs from the declaration; None: what the backend does."""
        return self._on_change

    @on_change.setter
    def on_change(self, word: str | None) -> None:
        if word is not None and word not in ON_CHANGE:
            raise SpecError(f"on_change: {word!r} is not known", hint=suggest(word, ON_CHANGE))
        self._on_change = word

    def _wish(self, *, keep: bool, client_script: Sequence[str] = ()) -> lifecycle.Wish:
        spec = self.spec
        inside = STATE_ENV in os.environ
        self._refuse_missing_services(spec.services)
        backend = self._backend()
        backend.validate(spec)
        if client_script and not backend.capabilities.batch:
            raise UnsupportedError(f"{backend.name} cannot run the client inside its allocation")
        return lifecycle.Wish(
            spec=spec,
            backend=backend,
            on_change="ask" if inside else self._on_change,
            inside=inside,
            keep=keep,
            client_script=client_script,
            job_class=class_path(type(self)),
        )

    # Asking for hosts

    def apply(self, client_script: str | None = None) -> None:
        """Ask for the declared hosts; when they are there already, do nothing.

        With `client_script`, that program is run as the client inside the allocation, detached from this one.
        """
        script: tuple[str, ...] = ()
        if client_script is not None:
            self._refuse_second_client()
            own = hooks.is_hooked(self)
            script = (client_script,) if own else make_client_command(client_script)
        action = self._apply(None, keep=bool(script), client_script=script)
        if action in {Action.CREATE, Action.REPLACE} and not script:
            self._own()

    def _refuse_second_client(self) -> None:
        """A client is started with its allocation; with one that is there already it would never start."""
        if self.active:
            raise ChangedError(
                "this job has an allocation already, so the client would not be started",
                seen=f"allocation {self.apply_id}",
                hint="kill() it first, or declare another job for the batch client",
            )

    def _own(self) -> None:
        """Hosts that live with their owner must know that it is there, though it has not connected yet."""
        backend = self._backend()
        if backend.capabilities.machine_bound:
            self._connection(self._require(), owner=True).join(None)

    def _apply(
        self,
        file: StateFile | None,
        *,
        keep: bool,
        client_script: Sequence[str] = (),
        shown: Plan | None = None,
    ) -> Action:
        """Plan and carry out; when a plan was shown to a person, only that one."""
        wish = self._wish(keep=keep, client_script=client_script)
        held = self._held
        file = file or (held.file if held else None)
        with file.lock() if file else contextlib.nullcontext():
            checkpoint("lock")
            known = (file.load() if file else None) or (held.record if held else None)
            record, observed = lifecycle.observe(wish.backend_of(known), known, file)
            plan = lifecycle.plan_for(
                wish, hooks.compare(self, observed, record), held=held is not None
            )
            lifecycle.check_shown(shown, plan)
            try:
                record, file = lifecycle.execute(plan, wish, record, file)
            except MilkweedError:
                if intent := lifecycle.find_intent(wish, file):
                    self._let_go()
                    self._held = Held(*intent)
                raise
        if held is None or held.record.apply_id != record.apply_id:
            self._let_go()
            self._held = Held(record, file)
        else:
            held.record, held.file = record, file
        return plan.action

    @property
    def apply_id(self) -> str | None:
        """The id of the current allocation; None before the first `apply()`."""
        return self._held.record.apply_id if self._held else None

    @property
    def active(self) -> bool:
        """Whether the allocation is there, as its scheduler says now; False too when nobody knows."""
        try:
            return self._held is not None and self.status().liveness.alive
        except MilkweedError:
            return False

    # Connecting

    def state(self, cached_path: str | os.PathLike[str] | None = DEFAULT_PATH) -> JobState:
        """Connect to the job's hosts, asking for them first if need be, and return its meshes.

        The allocation is recorded at `cached_path`, so that the next program connects to the same hosts.
        With None nothing is recorded, and the hosts end with this program.
        """
        file = self._choose_file(cached_path)
        held = self._held
        if held and held.state and held.connection and held.connection.usable:
            return held.state
        keep = file is not None
        created = self._apply(file, keep=keep) in {Action.CREATE, Action.REPLACE}
        return self._connect(created=created, keep=keep)

    def _choose_file(self, cached_path: str | os.PathLike[str] | None) -> StateFile | None:
        """Where the record belongs: a job keeps the file it has, and one of `apply()` moves to the path named."""
        file = self._state_file(cached_path)
        held = self._held
        if held is None:
            return file
        if held.file.target != StateFile(own_state_path(held.record.apply_id or "")).target:
            return held.file
        if file is not None:
            self._move_record(held, file)
        return file

    def _state_file(self, cached_path: str | os.PathLike[str] | None) -> StateFile | None:
        """In batch mode a client finds the record of the job it runs in, whatever path it names."""
        if inside := os.environ.get(STATE_ENV):
            return StateFile(inside)
        return None if cached_path is None else StateFile(cached_path)

    def _move_record(self, held: Held, file: StateFile) -> None:
        lifecycle.move(self._wish(keep=True), held.record, held.file, file)
        held.file = file
        if held.connection:
            held.connection.keep()

    def _connect(self, *, created: bool, keep: bool) -> JobState:
        held = self._require()
        connection = self._connection(held, owner=not keep)
        try:
            timeout_s = self.spec.client.get("start_timeout")
            meshes = connection.open(time.monotonic() + timeout_s if timeout_s else None)
            if keep:
                connection.keep()
        except DeadlineError:
            raise  # the connection stays: calling again goes on waiting
        except BaseException as error:  # whatever else ends the wait, the connection must not stay
            self._let_go()
            failed = isinstance(error, HostFailedError | AllocationEndedError)
            if created and (failed or not keep) and not self._backend().capabilities.queued:
                self.kill()
            raise
        held.state = JobState(meshes)
        Events(held.record.apply_id or "").add("connected")
        return held.state

    def _connection(self, held: Held, *, owner: bool) -> Connection:
        """The connection there is, or a new one."""
        if held.connection is None or not held.connection.usable:
            self._let_go()
            held.connection = Connection(
                self._backend(),
                replace(held.record.spec, client=self.spec.client),
                held.record.handle or {},
                Events(held.record.apply_id or ""),
                owner=owner,
            )
        return held.connection

    def _let_go(self) -> None:
        held = self._held
        if held and held.connection:
            held.connection.close()
            held.connection = held.state = None

    def _require(self) -> Held:
        if self._held is None:
            hint = "call state(), or apply(), first"
            raise NotAppliedError("this job has no allocation", hint=hint)
        return self._held

    # Looking

    def plan(self, cached_path: str | os.PathLike[str] | None = DEFAULT_PATH) -> Plan:
        """What `state(cached_path)` would do, and why; nothing is done."""
        wish = self._wish(keep=cached_path is not None)
        held = self._held
        file = held.file if held else self._state_file(cached_path)
        known = (file.load() if file else None) or (held.record if held else None)
        record, observed = lifecycle.observe(wish.backend_of(known), known, None)
        return lifecycle.plan_for(
            wish, hooks.compare(self, observed, record), held=held is not None
        )

    def status(self) -> Status:
        """The allocation as its scheduler sees it now."""
        held = self._require()
        backend = self._backend()
        _record, observed = lifecycle.observe(backend, held.record, None)
        if observed.status is None:
            return Status(liveness=Liveness.ENDED, reason="it was never started")
        return observed.status

    def events(self) -> list[Event]:
        """What has happened to the allocation so far."""
        return Events(self._require().record.apply_id or "").load()

    def logs(self, host: str | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """The lines that one host (`"trainers/3"`), or every host, has written."""
        backend = self._backend()
        record, _observed = lifecycle.observe(backend, self._require().record, None)
        if record is None or record.handle is None:
            raise NotAppliedError("this job has no allocation that could have logs")
        return backend.logs(record.handle, host, follow=follow)

    def wait(self, deadline: float | None = None, *, until: str | None = None) -> Status:
        """Wait up to `deadline` seconds until the job is «running» (every host ready) or has «ended».

        Without `until`: in batch mode until it has ended, else until it is running.
        """
        held = self._require()
        goal = until or ("ended" if held.record.batch else "running")
        if goal not in {"running", "ended"}:
            raise SpecError(f"until: {goal!r} is not known", hint="say «running» or «ended»")
        progress = Progress(f"waiting until job {held.record.spec.name!r} is {goal}")
        pause_s = 0.01
        while True:
            status = self.status()
            if status.liveness is Liveness.ENDED:
                if goal == "ended":
                    return status
                raise AllocationEndedError("the allocation has ended", seen=status.reason)
            if goal == "running" and status.ready:
                return status
            if goal == "running" and (failed := status.failed_hosts):
                raise HostFailedError(f"host {failed[0].host} has failed", seen=failed[0].reason)
            progress.see(status.describe())
            if deadline is not None and progress.waited_s >= deadline:
                raise DeadlineError(
                    f"the job was not {goal} within {deadline:g} s",
                    seen=status.describe(),
                    hint="nothing was cancelled: wait again, or kill()",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2.0)

    # Ending

    def kill(self) -> None:
        """End the allocation and everything on it, and forget it: record, logs and all. Gone already is fine."""
        held = self._held
        if held is None:
            return
        backend = self._backend()
        self._let_go()
        with held.file.lock():
            # Another client may have changed the allocation meanwhile, or made another one.
            recorded = held.file.load() or held.record
            same = recorded.apply_id == held.record.apply_id
            lifecycle.end(backend, recorded if same else held.record, held.file if same else None)
        self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    # Comparing and keeping

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job's allocation could run what another job declares."""
        same = self.spec.fingerprint() == spec.spec.fingerprint()
        return same and self.active

    def dump(self, filename: str | os.PathLike[str]) -> None:
        """Save the job to a file; a link stays a link, and another allocation's record stays too."""
        file = StateFile(filename)
        other = file.load()
        if other is not None and other.apply_id not in {None, self.apply_id}:
            raise StateError(
                f"{filename} records the allocation {other.apply_id}, which would be lost",
                hint="save to another file, or end that one: job_load(path).kill()",
            )
        file.save(self._record())

    def dumps(self) -> bytes:
        """The job as bytes that `job_loads` reads: JSON."""
        return self._record().to_bytes()

    def _record(self) -> Record:
        if self._held:
            return self._held.record
        attributes = hooks.encode(self) if hooks.is_hooked(self) else {}
        return Record(spec=self.spec, job_class=class_path(type(self)), attributes=attributes)

    @classmethod
    def _from_record(cls, record: Record, file: StateFile) -> JobTrait:
        """The job that a record was made of, holding its allocation."""
        job = cls.__new__(cls)
        if hooks.is_hooked(job):
            state = (record.handle or {}).get("attributes") or record.attributes
            job = hooks.decode(cls, state)
        job._spec = record.spec
        job._services = record.spec.services
        if record.apply_id is not None:
            job._held = Held(record, file)
        return job
