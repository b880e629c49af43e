"""How far a run has come: what each step's journal says, as values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..options import Data
from .graph import NeedKind
from .plan import Plan

CANCELLED = 143
"""The exit code of a run that was cancelled: what a shell says of SIGTERM."""
LOST = 1


class State(enum.Enum):
    """How a step is."""

    WAITING = "waiting"
    """Not handed over yet."""
    PENDING = "pending"
    """Handed over, not started."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Never to be done: what it needs did not come true."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """It is over, and nobody saw how it ended: it neither went well nor failed."""
    UNKNOWN = "unknown"
    """Nobody answered, or nobody looks any more."""

    @property
    def over(self) -> bool:
        """Whether nothing follows."""
        return self in _OVER


_OVER = frozenset({State.DONE, State.FAILED, State.SKIPPED, State.CANCELLED, State.LOST})
_STARTED = frozenset({State.RUNNING, State.DONE, State.FAILED, State.LOST})


@dataclass(frozen=True, slots=True)
class StepStatus:
    """How one step is."""

    state: State
    code: int | None = None
    """Its exit code, once there is one."""
    reason: str = ""

    def describe(self) -> str:
        """It in a few words."""
        code = f" ({self.code})" if self.code else ""
        return f"{self.state.value}{code}" + (f": {self.reason}" if self.reason else "")


WAITING = StepStatus(State.WAITING)
DONE = StepStatus(State.DONE, 0)


def ended(code: int, reason: str = "") -> StepStatus:
    """The status of a step that ended with a code."""
    return StepStatus(State.FAILED if code else State.DONE, code, reason)


_FIRST = (State.UNKNOWN, State.FAILED, State.CANCELLED, State.LOST, State.SKIPPED, State.DONE)
"""What is told of several jobs that stand for one step."""


def join_statuses(found: Sequence[StepStatus]) -> StepStatus:
    """One status for several jobs: while some are not over, how far they are; then that of a failed one first."""
    states = {status.state for status in found}
    if State.UNKNOWN not in states and not all(state.over for state in states):
        if states <= {State.PENDING, State.WAITING}:
            return found[0]
        return StepStatus(State.RUNNING)
    return min(
        found, key=lambda status: _FIRST.index(status.state) if status.state in _FIRST else 9
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one step."""

    status: StepStatus = WAITING
    handle: Mapping[str, Data] | None = None
    """What was submitted for it; None: nothing, or nobody knows yet."""
    intended: bool = False
    """Somebody was about to submit it."""
    refused: bool = False
    """It failed before it was handed over: nobody took it."""

    @property
    def handed_over(self) -> bool:
        """Whether nobody has to start it any more."""
        return self.status.state is not State.WAITING


@dataclass
class Progress:
    """What is known of all steps, in the order of the plan; lines of the journal are added one by one."""

    entries: dict[str, Entry]
    failed: list[str] = field(default_factory=list[str])
    """The steps that failed, the first one first."""

    @classmethod
    def of(cls, plan: Plan) -> Progress:
        """Nothing has happened yet."""
        return cls({action.id: Entry() for action in plan.actions})

    def add(self, line: Mapping[str, Any]) -> None:
        """Take one line of a journal; one that is not about a step of the plan says nothing."""
        step_id = line.get("id")
        entry = self.entries.get(step_id) if isinstance(step_id, str) else None
        if entry is None or not isinstance(step_id, str):
            return
        if line["event"] == "intent":
            self.entries[step_id] = replace(entry, intended=True)
        elif line["event"] == "submitted":
            status = entry.status if entry.handed_over else StepStatus(State(line["state"]))
            self.entries[step_id] = Entry(status, line["handle"], intended=True)
        elif line["event"] == "state":
            self._set(step_id, entry, line)

    def _set(self, step_id: str, entry: Entry, line: Mapping[str, Any]) -> None:
        status = StepStatus(State(line["state"]), line.get("code"), line.get("reason", ""))
        if status.state is State.FAILED and step_id not in self.failed:
            self.failed.append(step_id)
        refused = bool(line.get("refused", entry.refused))
        self.entries[step_id] = replace(entry, status=status, refused=refused)

    @property
    def over(self) -> bool:
        """Whether nothing will happen any more."""
        return all(entry.status.state.over for entry in self.entries.values())

    def exit_code(self) -> int:
        """The code of the run: that of the first step that failed; 0 when all went well."""
        for step_id in self.failed:
            return self.entries[step_id].status.code or 1
        states = {entry.status.state for entry in self.entries.values()}
        if State.CANCELLED in states:
            return CANCELLED
        return LOST if states & {State.UNKNOWN, State.LOST} else 0


def judge_need(kind: NeedKind, entry: Entry) -> bool | None:
    """Whether a need has come true; None: not yet. False means never."""
    state = entry.status.state
    if kind in {"submitted", "after"} and entry.refused:
        return False
    if kind == "submitted":
        if state in {State.SKIPPED, State.CANCELLED}:
            return False
        return True if entry.handed_over else None
    if kind == "after":
        return True if state in _STARTED else False if state.over else None
    if not state.over:
        return None
    if kind == "afterany":
        return True
    if kind == "afterok":
        return state is State.DONE
    return state is State.FAILED
