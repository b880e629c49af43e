"""Looking twice before an allocation from a queue is ended."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.errors import UnreachableError
from milkweed.job.second_look import look_again
from milkweed.plan import Action, Change, Plan
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import Record
from milkweed.status import HostState, HostStatus, Liveness, Status

SPEC = JobSpec(name="demo", backend="fake", meshes=(MeshSpec(name="w", hosts=1),))
LOST = Status(
    liveness=Liveness.RUNNING,
    hosts=(HostStatus(host="w/0", state=HostState.FAILED, reason="its keeper is gone"),),
)
WELL = Status(
    liveness=Liveness.RUNNING, hosts=(HostStatus(host="w/0", state=HostState.READY, reason=""),)
)
ENDED = Status(liveness=Liveness.ENDED, reason="it was cancelled")
UNKNOWN = Status(liveness=Liveness.UNKNOWN, reason="nobody answers")
PLAN = Plan(action=Action.REPLACE, reasons=("hosts were lost: w/0",), spec=SPEC)
RECORD = Record(spec=SPEC, phase="submitted", apply_id="x", handle={"jobs": [1]})


def look(status: Status, *, queued: bool = True, **changes: Any) -> None:
    backend: Any = SimpleNamespace(
        capabilities=SimpleNamespace(queued=queued), poll=lambda _handle: status
    )
    look_again(replace(PLAN, **changes), backend, RECORD)


@pytest.mark.parametrize("status", [LOST, ENDED])
def test_two_looks_that_agree_are_enough(status: Status) -> None:
    """Hosts are still lost, or all is over by now."""
    look(status)


@pytest.mark.parametrize("status", [WELL, UNKNOWN])
def test_what_a_second_look_does_not_see_ends_nothing(status: Status) -> None:
    """Whoever waits for the scheduler asks again; others are told what was seen both times."""
    with pytest.raises(UnreachableError, match="two looks") as caught:
        look(status)
    assert "hosts were lost: w/0" in caught.value.seen
    assert status.describe() in caught.value.seen


def test_what_a_person_declares_needs_one_look() -> None:
    """Another declaration is no matter of what was seen."""
    look(WELL, changes=(Change(field="meshes.w.hosts", before=1, after=2),))


def test_what_is_had_at_once_needs_one_look() -> None:
    """Local hosts cost nothing to get."""
    look(WELL, queued=False)


def test_a_second_look_is_no_repetition_of_the_first() -> None:
    """A backend that may answer from what it was told before is asked for a look from now on."""
    backend: Any = SimpleNamespace(
        capabilities=SimpleNamespace(queued=True),
        poll=lambda _handle: LOST,
        look_again=lambda _handle: WELL,
    )
    with pytest.raises(UnreachableError, match="two looks"):
        look_again(PLAN, backend, RECORD)
