"""Carrying out a plan: each action as soon as what it needs has come true, everything written down."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import identity
from ..errors import MilkweedError, StateBusyError, UnreachableError, UnsupportedError
from .plan import Action, Plan
from .progress import (
    CANCELLED,
    DONE,
    Progress,
    State,
    StepStatus,
    judge_need,
)
from .runs import Run, create_run
from .steps import Handle, StepBase
from .tail import Show, Tail
from .wake import Wake

if TYPE_CHECKING:
    from .transformer import TransformerBase

CANCEL_S = 15.0
"""How long a driver is given to end what it started."""


@dataclass(frozen=True, slots=True)
class Running:
    """A step that was handed over and is not over."""

    step: StepBase
    handle: Handle
    status: StepStatus


class Driver:
    """Carries one run on, from whatever its journal says."""

    def __init__(self, transformer: TransformerBase, run: Run, wake: Wake) -> None:
        self._transformer = transformer
        self._run = run
        self._wake = wake
        self._actions = {action.id: action for action in run.plan.actions}
        self._dependents: dict[str, list[Action]] = {}
        for action in run.plan.actions:
            for need in action.needs:
                self._dependents.setdefault(need.id, []).append(action)
        self.progress = run.progress()
        self._running: dict[str, Running] = {}
        self._ready: deque[str] = deque()
        self._queued: set[str] = set()
        self._unsure: set[str] = set()
        """Steps that were handed to a scheduler that did not answer: nobody knows whether it took them."""
        self._patient = self._told = False
        self._waiting = {
            step_id for step_id, each in self.progress.entries.items() if not each.handed_over
        }

    def drive(self, *, until_over: bool) -> None:
        """Go on until everything is over; else until everything is handed over, and what says `wait` is over.

        Whoever stays until everything is over also waits for a scheduler that does not answer.
        """
        self._patient = until_over
        self.take_up()
        for action in self._actions.values():  # in the order of the plan
            self._consider(action)
        while not self._wake.stopped:
            self._start_ready()
            if self._may_leave(until_over=until_over):
                return
            self._check_alive()
            for step_id, status in self._transformer.poll(self._running, self._wake).items():
                self._note(step_id, status)
            self._ask_again()
        if not self._transformer.leaves:
            self.cancel(self._wake.stopped)

    def take_up(self, *, to_end: bool = False) -> None:
        """Find what an earlier driver left: what runs, and what it was about to submit.

        What nobody can tell about is an error; `to_end`: it is noted, and the rest is found.
        """
        for step_id, entry in list(self.progress.entries.items()):
            if entry.status.state.over or not entry.intended:
                continue
            step = self._make_step(self._actions[step_id])
            try:
                handle = entry.handle if entry.handle is not None else step.find()
            except UnreachableError as error:
                self._leave_open(step_id, error)
                continue
            except UnsupportedError as error:
                if not to_end:
                    raise
                self._note(step_id, StepStatus(State.UNKNOWN, None, error.what))
                continue
            if handle is not None:
                self._submitted(step_id, step, handle)

    def _make_step(self, action: Action) -> StepBase:
        before = {need.id: self.progress.entries[need.id] for need in action.needs}
        return self._transformer.steps[action.kind](action, self._run, before, self._transformer)

    def _consider(self, action: Action) -> None:
        """Queue an action if all it needs has come true; skip it if something never will."""
        if action.id not in self._waiting or action.id in self._queued:
            return
        if self._skip(action):
            return
        if all(self._judge(action, need.id, need.kind) for need in action.needs):
            self._queued.add(action.id)
            self._ready.append(action.id)

    def _skip(self, action: Action) -> bool:
        """Leave an action out if something that it needs never comes true; whether it did."""
        for need in action.needs:
            if self._judge(action, need.id, need.kind) is False:
                state = self.progress.entries[need.id].status.state.value
                reason = f"it needs {need.kind}:{need.id}, which is {state}"
                self._note(action.id, StepStatus(State.SKIPPED, None, reason))
                return True
        return False

    def _judge(self, action: Action, needed: str, kind: Any) -> bool | None:
        entry = self.progress.entries[needed]
        verdict = judge_need(kind, entry)
        if verdict is None and entry.handle is not None and self._is_native(action, needed, kind):
            return True
        return verdict

    def _is_native(self, action: Action, needed: str, kind: str) -> bool:
        steps = self._transformer.steps
        return (
            kind in steps[action.kind].native and kind in steps[self._actions[needed].kind].native
        )

    def _start_ready(self) -> None:
        held: deque[str] = deque()
        while self._ready and not self._wake.stopped:
            action = self._actions[self._ready.popleft()]
            if self._transformer.can_start(action, self._running):
                self._start(action)
            else:
                held.append(action.id)
        self._ready.extend(held)

    def _start(self, action: Action) -> None:
        if self._skip(
            action
        ):  # what the scheduler was to wait for may have ended since it was queued
            return
        self._write("intent", id=action.id, durable=self._transformer.durable)
        step = self._make_step(action)
        try:
            result = step.run(self._run.files)
        except UnreachableError as error:
            self._leave_open(action.id, error)
            return
        except (MilkweedError, OSError) as error:
            status = StepStatus(State.FAILED, 1, describe(error))
            self._note(action.id, status, refused=True)
            return
        except Exception as error:  # noqa: BLE001  the class of a plugin may fail in any way; others go on
            self._note_mistake(step, error)
            return
        if isinstance(result, StepStatus):
            self._note(action.id, result)
        elif result is None:
            self._note(action.id, DONE)
        else:
            handle = {"id": result} if isinstance(result, str) else result
            self._submitted(action.id, step, handle)

    def _note_mistake(self, step: StepBase, error: Exception) -> None:
        """A step's class is wrong: the step has failed, unless what it submitted is found by its mark."""
        where = f"{type(step).__module__}.{type(step).__qualname__}.run"
        reason = f"a mistake in {where}: {type(error).__name__}: {error}"
        try:
            handle = step.find()
        except UnreachableError as silence:
            self._leave_open(step.action.id, silence)
            return
        except Exception:  # noqa: BLE001  the class that is wrong may be wrong here, too
            handle = None
            reason += f"; whether it submitted anything nobody can tell, look for {step.mark}"
        if handle is not None:
            self._submitted(step.action.id, step, handle)
            return
        self._note(step.action.id, StepStatus(State.FAILED, 1, reason), refused=True)

    def _leave_open(self, step_id: str, error: UnreachableError) -> None:
        """Nobody knows whether a step was taken: the intent stays, and whoever waits asks again later."""
        if not self._patient:
            raise error
        if not self._told:
            seen = f" ({error.seen})" if error.seen else ""
            self._transformer.tail.say(f"{error.what}{seen}: waiting for an answer")
        self._told = True
        self._unsure.add(step_id)
        self._queued.add(step_id)

    def _ask_again(self) -> None:
        """Look for what was handed over without an answer; what is certainly not there is handed over again."""
        for step_id in sorted(self._unsure):
            step = self._make_step(self._actions[step_id])
            try:
                handle = step.find()
            except UnreachableError:
                return
            self._unsure.discard(step_id)
            if handle is not None:
                self._submitted(step_id, step, handle)
            else:
                self._start(self._actions[step_id])

    def _submitted(self, step_id: str, step: StepBase, handle: Handle) -> None:
        state = State.RUNNING if step.at_once else State.PENDING
        facts = {"id": step_id, "state": state.value, "handle": dict(handle)}
        self._write("submitted", durable=self._transformer.durable, **facts)
        self._told = False
        self._waiting.discard(step_id)
        self._running[step_id] = Running(step, handle, self.progress.entries[step_id].status)
        self._tell(step_id)

    def _note(self, step_id: str, status: StepStatus, *, refused: bool = False) -> None:
        """Write down how a step is, if that is new."""
        entry = self.progress.entries[step_id]
        if status == entry.status or entry.status.state.over:
            return
        facts: dict[str, Any] = {
            "state": status.state.value,
            "code": status.code,
            "reason": status.reason,
            **({"refused": True} if refused else {}),
        }
        self._write("state", id=step_id, **facts)
        self._waiting.discard(step_id)
        if status.state.over:
            self._running.pop(step_id, None)
        if status.state is not State.UNKNOWN:
            self._tell(step_id)

    def _write(self, event: str, **facts: Any) -> None:
        self.progress.add(self._run.journal.write(event, **facts))

    def _tell(self, step_id: str) -> None:
        for action in self._dependents.get(step_id, ()):
            self._consider(action)

    def _may_leave(self, *, until_over: bool) -> bool:
        if self._waiting or (until_over and self._running):
            return False
        return not any(self._actions[step_id].wait for step_id in self._running)

    def _check_alive(self) -> None:
        if not self._running and not self._ready and not self._unsure:
            left = ", ".join(sorted(self._waiting)[:5])
            raise RuntimeError(f"nothing runs, and these steps wait for nothing: {left}")

    def cancel(self, reason: str) -> None:
        """End what runs, and let nothing else begin."""
        for step_id in sorted(self._unsure):
            self._settle(step_id)
        for step_id in list(self._waiting):
            self._note(step_id, StepStatus(State.CANCELLED, None, reason))
        self._transformer.end(self._running)
        for step_id in list(self._running):
            self._note(step_id, StepStatus(State.CANCELLED, CANCELLED, reason))

    def _settle(self, step_id: str) -> None:
        """Find what was handed over without an answer; as long as there is none, nothing can be said of it."""
        step = self._make_step(self._actions[step_id])
        try:
            handle = step.find()
        except MilkweedError as error:
            self._note(step_id, StepStatus(State.UNKNOWN, None, error.what))
            return
        if handle is not None:
            self._submitted(step_id, step, handle)


def describe(error: Exception) -> str:
    """Why a step failed, on one line."""
    if isinstance(error, MilkweedError):
        return f"{error.what} ({error.seen})" if error.seen else error.what
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def carry_out(
    transformer: TransformerBase, plan: Plan, *, wait: bool, show: Show | None = None
) -> Run:
    """Record a plan, then carry it out here, or in a process of its own when nobody waits to the end."""
    run = create_run(plan)
    carry_on(transformer, run, wait=wait, show=show)
    return run


def carry_on(
    transformer: TransformerBase, run: Run, *, wait: bool, show: Show | None = None
) -> None:
    """Carry a recorded run on, from where it is."""
    everything = wait or all(action.wait or not _is_work(action) for action in run.plan.actions)
    if transformer.launch is not None:
        transformer.launch(run)
    elif transformer.detaches and (transformer.leaves or not everything):
        from .runner import follow, start_runner

        start_runner(run)
        follow(run, show, until_over=everything)
    else:
        drive_here(transformer, run, until_over=wait or transformer.detaches, show=show)


def _is_work(action: Action) -> bool:
    return "argv" in action.details


def drive_here(
    transformer: TransformerBase,
    run: Run,
    *,
    until_over: bool,
    show: Show | None = None,
    held: Callable[[], None] = lambda: None,
) -> None:
    """Carry a run on in this process; `held` is called when nobody else can."""
    wake = Wake()
    with contextlib.closing(wake), run.hold(), wake.signals(signal.SIGINT, signal.SIGTERM):
        held()
        driver = Driver(transformer, run, wake)
        transformer.tail = Tail(show, everything=until_over)
        try:
            driver.drive(until_over=until_over)
        except BaseException:  # whatever it was, what runs on this machine is not left alone
            if transformer.detaches and not transformer.durable:
                driver.cancel("the driver failed")
            raise
        finally:
            transformer.let_go()
            transformer.tail.pump(last=True)
            if driver.progress.over:
                transformer.finish(run)
        if wake.stopped and transformer.leaves:
            raise KeyboardInterrupt(wake.stopped)


def cancel_run(
    transformer: TransformerBase,
    run: Run,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Ask the driver to stop, then end whatever is still there."""
    deadline_s = clock() + CANCEL_S
    while (driver := run.driver()) is not None:
        identity.send_signal(driver, signal.SIGTERM)
        if clock() > deadline_s:
            raise StateBusyError(
                f"run {run.id} is not over: its driver does not end",
                seen=f"process {driver['pid']}, told to end {CANCEL_S:.0f} s ago",
                hint="try again, or end that process",
            )
        sleep(0.02)
    wake = Wake()
    with contextlib.closing(wake), run.hold():
        left = Driver(transformer, run, wake)
        left.take_up(to_end=True)
        left.cancel("cancelled")
        transformer.finish(run)
        return left.progress
