"""JobTrait: what every job can do, written once; a job class only turns its arguments into a spec."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

from .._checkpoint import checkpoint
from ..backends import load_backend
from ..backends.base import Backend, Glances, LogLine
from ..errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    MilkweedError,
    NotAppliedError,
    UnsupportedError,
)
from ..events import Event
from ..plan import Action, Plan
from ..state import DEFAULT_PATH, Record, StateFile, save_copy
from ..status import Liveness, Status
from ..worker.wire import STATE_ENV
from . import hooks, lifecycle, orphans, recording
from .command import class_path, make_client_command
from .declared import Declared
from .held import BACK_S, NEW, Held
from .observing import find_standing, observe, require_handle
from .programs import Program
from .state import JobState
from .waiting import (
    Trail,
    insist,
    interruptible,
    kill_after,
    limited,
    look,
    should_cancel,
    untimed,
    wait_until,
)

_T = TypeVar("_T")


class JobTrait(Declared):
    """A declared job: named meshes of hosts, their allocation, and the way to it.

    `apply()` asks for the hosts, `state()` connects to them, `kill()` ends them. A second program with the
    same state file connects to the same hosts; a changed declaration makes a plan, never a surprise.
    """

    _held: Held | None = None

    # What is wanted, and of whom

    def _backend(self) -> Backend:
        return hooks.HookBackend(self) if hooks.is_hooked(self) else load_backend(self.spec.backend)

    def _wish(self, *, keep: bool, client_script: Sequence[str] = ()) -> lifecycle.Wish:
        return self._make_wish(self._backend(), keep=keep, client_script=client_script)

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
        backend, held = self._backend(), self._require()
        if backend.capabilities.machine_bound:
            held.connect(backend, self.spec.client, owner=True).join(None)
        elif held.unrecorded:
            held.stay(backend)

    def _apply(
        self,
        file: StateFile | None,
        *,
        keep: bool,
        client_script: Sequence[str] = (),
        shown: Plan | None = None,
        repairs: bool = False,
    ) -> Action:
        """Plan and carry out; when a plan was shown to a person, only that one."""
        wish = self._wish(keep=keep, client_script=client_script)
        if repairs:
            wish = wish.repairing()
        held = self._held
        file = file or (held.file if held else None)
        leave = functools.partial(self._let_go, back_s=BACK_S)
        with recording.lock(file, held.record.apply_id if held else None) as place:
            checkpoint("lock")
            wish = recording.keeping(wish, place, held.apply_id if held else None)
            plan, record = self._decide(wish, place)
            lifecycle.check_shown(shown, plan)
            try:
                record, file = lifecycle.execute(plan, wish, record, place, leave=leave)
                if plan.action is Action.RENEW and shown is None:
                    # What else there is to do is not put off.
                    plan, record = self._decide(wish, place)
                    record, file = lifecycle.execute(plan, wish, record, place, leave=leave)
            except MilkweedError:
                if intent := lifecycle.find_intent(wish, place):
                    self._let_go()
                    self._hold(
                        Held(*intent, asked_here=True, unrecorded=not wish.keep), wish.backend
                    )
                raise
        if held is None or held.record.apply_id != record.apply_id:
            self._let_go()
            made = plan.action in NEW
            if held is not None and made and not plan.keeps_old:
                held.unrecorded = False  # it has ended
            self._hold(Held(record, file, unrecorded=made and not wish.keep), wish.backend)
        else:
            held.follow(record, file)
        return plan.action

    def _hold(self, held: Held, backend: Backend) -> None:
        self._held = held
        orphans.mind(held, backend)

    def resize(self, mesh: str, hosts: int) -> None:
        """Give a mesh a number of hosts: others in place of lost ones, too; `state()` then has the new size.

        Hosts that are well go on.
        """
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
            keep = not held.unrecorded
            held.resize(spec, lambda: self._apply(held.file, keep=keep, repairs=True))
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
        with limited(self.spec.client.get("start_timeout")) as deadline_s:
            state = self._held.current_state if self._held else None
            renews = bool(self.spec.client.get("renew"))
            if state is not None and not (renews and self.plan().action is Action.MOVE):
                return state
            created = self._ensure(file)
            return self._connect(deadline_s, created=created, keep=file is not None)

    def _ensure(self, file: StateFile | None) -> bool:
        """Ask for the hosts if need be; whether they are new. A scheduler that is silent is waited for."""
        action = self._insist(lambda: self._apply(file, keep=file is not None))
        return self._require().take_new(action)

    def _insist(self, act: Callable[[], _T]) -> _T:
        return insist(
            act,
            name=self.spec.name,
            patient=isinstance(self._backend(), Glances),
            timeout_s=self.spec.client.get("start_timeout"),
        )

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
        self._ensure(file)
        if self._require().unrecorded:
            self._own()  # ranks are started by guests
        with self._interruptible():
            program.run(self._backend(), self._require())

    def _interruptible(self) -> contextlib.AbstractContextManager[None]:
        queued = self._backend().capabilities.queued
        return (
            interruptible(self._gives_up, self._give_back) if queued else contextlib.nullcontext()
        )

    def _choose_file(self, cached_path: str | os.PathLike[str] | None) -> StateFile | None:
        """Where the record belongs: a job keeps the path it has, whoever named it; one of `apply()` moves."""
        file = self._state_file(cached_path)
        if (held := self._held) is None:
            return file
        if held.shared:
            return held.file
        if file is not None and file.target != held.file.target:
            wish = self._wish(keep=True)
            self._insist(lambda: held.move(wish, file))
        return held.file if file else None

    def _state_file(self, cached_path: str | os.PathLike[str] | None) -> StateFile | None:
        """In batch mode a client finds the record of the job it runs in, whatever path it names."""
        if inside := os.environ.get(STATE_ENV):
            return StateFile(inside)
        return None if cached_path is None else StateFile(cached_path)

    def _connect(self, deadline_s: float | None, *, created: bool, keep: bool) -> JobState:
        held = self._require()
        backend = self._backend()
        queued = backend.capabilities.queued
        try:
            kept = keep or held.shared
            state = held.open(backend, self.spec.client, deadline_s, owner=not kept)
            if self.spec.client.get("renew"):
                held.renew(backend, self.plan, self._apply, keep=kept)
            return state  # noqa: TRY300  the interrupt below is about all of it
        except DeadlineError:
            raise  # the connection stays: calling again goes on waiting
        except BaseException as error:  # whatever else ends the wait, the connection must not stay
            self._let_go(back_s=BACK_S if isinstance(error, MilkweedError) else 0.0)
            failed = isinstance(error, HostFailedError | AllocationEndedError)
            waits = queued and keep and isinstance(error, KeyboardInterrupt)
            useless = created and failed and not queued
            if (held.unrecorded and not held.used) or useless or (waits and self._gives_up()):
                kill_after(self._give_back, error)
            raise

    def _gives_up(self) -> bool:
        """Whether a person who interrupts a job wants it cancelled: one that waits in a queue for certain."""
        held, status = self._require(), untimed(self.status)
        if status.liveness is Liveness.RUNNING or held.unrecorded:
            return status.liveness is Liveness.PENDING
        word = self.spec.client.get("on_interrupt", "ask")
        recorded = str(held.file.path)
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
        file = recording.find(held.file, held.apply_id) if held else self._state_file(cached_path)
        return self._decide(wish, file, completes=False)[0]

    def _decide(
        self, wish: lifecycle.Wish, file: StateFile | None, *, completes: bool = True
    ) -> tuple[Plan, Record | None]:
        """The plan for what there is now, and its record; who carries it out `completes` an unanswered intent."""
        held = self._held
        known = (file.load() if file else None) or (held.record if held else None)
        record, observed = observe(wish.backend_of(known), known, file if completes else None, wish)
        seen = hooks.compare(self, observed, record)
        return lifecycle.plan_for(wish, seen, held=held is not None), record

    def status(self) -> Status:
        """The allocation as its scheduler sees it now, or the follow-up that has taken its place."""
        return find_standing(self._backend(), self._require().record).status

    def events(self) -> list[Event]:
        """What has happened to the allocation so far."""
        return self._require().events.load()

    def logs(self, host: str | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """The lines that one host (`"trainers/3"`), or every host, has written."""
        backend = self._backend()
        handle = require_handle(backend, self._require().record)
        return backend.logs(handle, host, follow=follow)

    def wait(self, deadline: float | None = None, *, until: str | None = None) -> Status:
        """Wait up to `deadline` seconds until the job is «running» (every host ready) or has «ended».

        Without `until`: in batch mode until it has ended, else until it is running.
        """
        record, backend = self._require().record, self._backend()
        goal, trail = until or ("ended" if record.batch else "running"), Trail()
        interruptible = self._interruptible() if goal == "running" else contextlib.nullcontext()
        with interruptible, limited(deadline):
            return wait_until(
                goal,
                lambda: look(backend, self._require().record, trail),
                name=record.spec.name,
                timeout_s=deadline,
            )

    # Ending

    def kill(self) -> None:
        """End the allocation and everything on it, and forget it: record, logs and all. Gone already is fine."""
        self._end(lambda backend, held: recording.end_held(backend, held.record, held.file))

    def _give_back(self) -> None:
        """The same where nobody has asked for it now: what another client has recorded meanwhile is left."""
        self._end(orphans.give_back)

    def _end(self, end: Callable[[Backend, Held], None]) -> None:
        if (held := self._held) is not None:
            backend = self._backend()
            self._let_go()
            end(backend, held)
            held.unrecorded, self._held = False, None

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
