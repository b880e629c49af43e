"""JobTrait: what every job can do, written once; a job class only turns its arguments into a spec."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Self

from .._checkpoint import checkpoint
from ..backends import load_backend
from ..backends.base import Backend, Glances, LogLine
from ..errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    MilkweedError,
    NotAppliedError,
    SpecError,
    UnsupportedError,
)
from ..events import Event
from ..plan import ON_CHANGE, Action, Plan
from ..registry import own_state_path
from ..spec import JobSpec, suggest
from ..state import DEFAULT_PATH, Record, StateFile, save_copy
from ..status import Liveness, Status
from ..worker.wire import STATE_ENV
from . import hooks, lifecycle
from .command import class_path, make_client_command
from .held import BACK_S, Held
from .programs import Program
from .services import ServiceMethods
from .state import JobState
from .waiting import insist, kill_after, limited, look, should_cancel, untimed, wait_until


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
        lifecycle.check(backend, spec)
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
            lifecycle.refuse_second_client(self.apply_id if self.active else None)
            own = hooks.is_hooked(self)
            script = (client_script,) if own else make_client_command(client_script)
        keep = bool(script) or self._backend().capabilities.queued
        action = self._apply(None, keep=keep, client_script=script)
        if self._require().take_new(action) and not script:
            self._own()

    def _own(self) -> None:
        """Hosts that live with their owner must know that it is there, though it has not connected yet."""
        backend = self._backend()
        if backend.capabilities.machine_bound:
            self._require().connect(backend, self.spec.client, owner=True).join(None)

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
            old = wish.backend_of(known)
            record, observed = lifecycle.observe(old, known, file, wish)
            seen = hooks.compare(self, observed, record)
            plan = lifecycle.plan_for(wish, seen, held=held is not None)
            lifecycle.check_shown(shown, plan)
            if plan.action is Action.MOVE:
                self._let_go(back_s=BACK_S)
            try:
                record, file = lifecycle.execute(plan, wish, record, file)
            except MilkweedError:
                if intent := lifecycle.find_intent(wish, file):
                    self._let_go()
                    self._held = Held(*intent, asked_here=True)
                raise
        if held is None or held.record.apply_id != record.apply_id:
            self._let_go()
            self._held = Held(record, file)
        else:
            held.record, held.file = record, file
        return plan.action

    def resize(self, mesh: str, hosts: int) -> None:
        """Give a mesh another number of hosts; the others go on, and `state()` then has the new size."""
        spec = self.spec.resized({mesh: hosts})
        held = self._held
        if held is None:
            self._spec = spec
            return
        backend = self._backend()
        if not backend.capabilities.resize:
            raise UnsupportedError(f"{backend.name} cannot change the size of an allocation")
        before, self._spec = self._spec, spec
        try:
            held.resize(spec, lambda: self._apply(held.file, keep=True))
        except BaseException:  # what was not done is not declared either
            self._spec = before
            raise

    @property
    def apply_id(self) -> str | None:
        """The id of the current allocation; None before the first `apply()`."""
        return self._held and self._held.record.apply_id

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
        state = self._held.current_state if self._held else None
        renews = bool(self.spec.client.get("renew"))
        if state is not None and not (renews and self.plan().action is Action.MOVE):
            return state
        with limited(self.spec.client.get("start_timeout")) as deadline_s:
            created = self._ensure(file)
            return self._connect(deadline_s, created=created, keep=file is not None)

    def _ensure(self, file: StateFile | None) -> bool:
        """Ask for the hosts if need be; whether they are new. A scheduler that is silent is waited for."""
        action = insist(
            lambda: self._apply(file, keep=file is not None),
            name=self.spec.name,
            patient=isinstance(self._backend(), Glances),
            timeout_s=self.spec.client.get("start_timeout"),
        )
        return self._require().take_new(action)

    def torchrun(
        self,
        command: Sequence[str],
        *,
        mesh: str | None = None,
        cached_path: str | os.PathLike[str] | None = DEFAULT_PATH,
    ) -> None:
        """Run a program on the hosts of a mesh as `torchrun` with these arguments would, to its end.

        The hosts are asked for first if need be, and stay. RanksFailedError when a rank fails for good.
        """
        self._run(Program.of_words(command, mesh), cached_path)

    def _run(self, program: Program, cached_path: str | os.PathLike[str] | None) -> None:
        program.check(self._backend(), self.spec)
        file = self._choose_file(cached_path)
        if self._ensure(file) and file is None:
            self._own()
        with self._interruptible():
            program.run(self._backend(), self._require())

    @contextlib.contextmanager
    def _interruptible(self) -> Generator[None]:
        """Ctrl-C while the job waits in a queue: what becomes of it is the person's word."""
        try:
            yield
        except KeyboardInterrupt as error:
            if self._backend().capabilities.queued and self._gives_up():
                kill_after(self.kill, error)
            raise

    def _choose_file(self, cached_path: str | os.PathLike[str] | None) -> StateFile | None:
        """Where the record belongs: a job keeps the file it has, and one of `apply()` moves to the path named."""
        file = self._state_file(cached_path)
        if (held := self._held) is None:
            return file
        if held.file.target != StateFile(own_state_path(held.apply_id)).target:
            return held.file
        if file is not None and file.target != held.file.target:
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
        held.keep()

    def _connect(self, deadline_s: float | None, *, created: bool, keep: bool) -> JobState:
        held = self._require()
        backend = self._backend()
        queued = backend.capabilities.queued
        try:
            state = held.open(backend, self.spec.client, deadline_s, owner=not keep)
            if self.spec.client.get("renew"):
                held.renew(backend, self.plan, self._apply, keep=keep)
            return state  # noqa: TRY300  the interrupt below is about all of it
        except DeadlineError:
            raise  # the connection stays: calling again goes on waiting
        except BaseException as error:  # whatever else ends the wait, the connection must not stay
            self._let_go(back_s=BACK_S if isinstance(error, MilkweedError) else 0.0)
            failed = isinstance(error, HostFailedError | AllocationEndedError)
            waits = queued and keep and isinstance(error, KeyboardInterrupt)
            if (created and (not keep or (failed and not queued))) or (waits and self._gives_up()):
                kill_after(self.kill, error)
            raise

    def _gives_up(self) -> bool:
        """Whether a person who interrupts a job in a queue wants it cancelled."""
        status = untimed(self.status)
        if status.liveness is Liveness.RUNNING:
            return False
        word = self.spec.client.get("on_interrupt", "ask")
        recorded = str(self._require().file.path)
        return should_cancel(word, status, name=self.spec.name, recorded=recorded)

    def _let_go(self, back_s: float = 0.0) -> None:
        if self._held:
            self._held.let_go(back_s=back_s)

    def _require(self) -> Held:
        if self._held is None:
            raise NotAppliedError("this job has no allocation", hint="call state() first")
        return self._held

    # Looking

    def plan(self, cached_path: str | os.PathLike[str] | None = DEFAULT_PATH) -> Plan:
        """What `state(cached_path)` would do, and why; nothing is done."""
        wish = self._wish(keep=cached_path is not None)
        held = self._held
        file = held.file if held else self._state_file(cached_path)
        known = (file.load() if file else None) or (held.record if held else None)
        record, observed = lifecycle.observe(wish.backend_of(known), known, None, wish)
        seen = hooks.compare(self, observed, record)
        return lifecycle.plan_for(wish, seen, held=held is not None)

    def status(self) -> Status:
        """The allocation as its scheduler sees it now."""
        _record, observed = lifecycle.observe(self._backend(), self._require().record, None)
        if observed.status is None:
            return Status(liveness=Liveness.ENDED, reason="it was never started")
        return observed.status

    def events(self) -> list[Event]:
        """What has happened to the allocation so far."""
        return self._require().events.load()

    def logs(self, host: str | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """The lines that one host (`"trainers/3"`), or every host, has written."""
        backend = self._backend()
        handle = lifecycle.require_handle(backend, self._require().record)
        return backend.logs(handle, host, follow=follow)

    def wait(self, deadline: float | None = None, *, until: str | None = None) -> Status:
        """Wait up to `deadline` seconds until the job is «running» (every host ready) or has «ended».

        Without `until`: in batch mode until it has ended, else until it is running.
        """
        record, backend = self._require().record, self._backend()
        goal = until or ("ended" if record.batch else "running")
        interruptible = self._interruptible() if goal == "running" else contextlib.nullcontext()
        with interruptible, limited(deadline):
            return wait_until(
                goal,
                lambda: look(backend, self._require().record, self.status),
                name=record.spec.name,
                timeout_s=deadline,
            )

    # Ending

    def kill(self) -> None:
        """End the allocation and everything on it, and forget it: record, logs and all. Gone already is fine."""
        held = self._held
        if held is not None:
            backend = self._backend()
            self._let_go()
            lifecycle.end_held(backend, held.record, held.file)
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    # Comparing and keeping

    def can_run(self, spec: JobTrait) -> bool:
        """Whether this job's allocation could run what another job declares."""
        return self.spec.fingerprint() == spec.spec.fingerprint() and self.active

    def dump(self, filename: str | os.PathLike[str]) -> None:
        """Save the job to a file; a link stays a link, and another allocation's record stays too."""
        save_copy(self._record(), StateFile(filename))

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
