"""How often Slurm is asked by who waits, whatever the wait is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.base import Handle
from milkweed.backends.slurm import backend as module, commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import DeadlineError
from milkweed.job.waiting import Trail, look, wait_until
from milkweed.state import Record
from milkweed.status import HostState, HostStatus
from milkweed.testing import FakeClock
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, save_part_file
from unit.slurm_jobs import create

WAIT_S = 600.0
MOST = 100
"""So many looks at the queue are worth it in ten minutes."""
FOLLOWS = line(9, generation=1, state="PENDING", reason="Priority")
Wait = Callable[..., "Counter[str]"]


@pytest.fixture
def record(cluster: FakeSlurm, folder: Path) -> Record:
    """A job that has a follow-up."""
    del cluster, folder
    made = create()
    for number in ("0.0", "1.0"):
        save_part_file(registry.folder_of(APPLY_ID), part("w/0", "w/1", number=number))
    return replace(made, handle={**(made.handle or {}), "jobs": [7, 9]})


@pytest.fixture
def wait(cluster: FakeSlurm, record: Record, clock: FakeClock) -> Wait:
    """Wait ten minutes in vain, with these jobs in the queue; how often each command was called."""

    def wait(*rows: str, until: str = "running", at: Handle | None = None) -> Counter[str]:
        cluster.jobs(*rows)
        commands.queue.wake()
        before, trail, backend = len(cluster.calls), Trail(), SlurmBackend()
        now = replace(record, handle={**(record.handle or {}), **(at or {})})
        with pytest.raises(DeadlineError):
            wait_until(
                until,
                lambda: look(backend, now, trail),
                name="demo",
                timeout_s=WAIT_S,
                sleep=clock.sleep,
                clock=clock,
            )
        return Counter(call[0] for call in cluster.calls[before:])

    return wait


def test_a_follow_up_that_waits_is_asked_for_at_the_pace_of_any_wait(wait: Wait) -> None:
    """Hours in the queue cost what they cost when the record has gone over; the end is explained once."""
    moved = wait(FOLLOWS, at={"generation": 1})
    assert set(moved) == {"squeue"}
    assert moved["squeue"] <= MOST
    asked = wait(line(7, state="TIMEOUT"), FOLLOWS)
    assert asked["squeue"] <= moved["squeue"] + 2
    assert (asked["scontrol"], asked["sacct"]) == (1, 1)


@pytest.mark.parametrize("follow", [[], [FOLLOWS]])
def test_a_job_that_hangs_in_its_end_is_asked_for_at_that_pace(
    wait: Wait, follow: list[str]
) -> None:
    """With a follow-up, which may be ready meanwhile, as without one."""
    asked = wait(line(7, state="COMPLETING"), *follow)
    assert set(asked) == {"squeue"}
    assert asked["squeue"] <= MOST


def test_a_follow_up_that_hangs_in_its_end_is_asked_for_at_that_pace(wait: Wait) -> None:
    """It is where the job is now, so it is looked at as the first one is."""
    follow = line(9, generation=1, state="COMPLETING")
    asked = wait(line(7, state="TIMEOUT"), follow)
    assert asked["squeue"] <= MOST
    assert asked["scontrol"] <= 2


def test_the_end_of_a_job_that_runs_is_waited_for_at_that_pace(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hosts are asked how they are, and Slurm no more often for it."""
    ready = [HostStatus(host=f"w/{rank}", state=HostState.READY) for rank in (0, 1)]
    monkeypatch.setattr(module, "judge_hosts", lambda *_: [(None, host) for host in ready])
    monkeypatch.setattr(SlurmBackend, "_ask", lambda *_: [], raising=False)
    asked = wait(line(7, nodes="n[1-2]"), until="ended")
    assert set(asked) == {"squeue"}
    assert asked["squeue"] <= MOST


def test_a_host_that_is_lost_is_news_of_which_slurm_is_asked_at_once(
    cluster: FakeSlurm, record: Record, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of the queue may be older than a requeue, which ends keepers and is no loss."""
    lost = HostStatus(host="w/0", state=HostState.FAILED, reason="its keeper on node n1 is gone")
    monkeypatch.setattr(module, "judge_hosts", lambda *_: [(None, lost)])
    monkeypatch.setattr(SlurmBackend, "_ask", lambda *_: [], raising=False)
    cluster.jobs(line(7, nodes="n[1-2]"))
    backend = SlurmBackend()
    for _ in range(2):  # now it is hours since anything changed
        assert look(backend, record, Trail()).lost_hosts == (lost,)
        clock.now_s += 36000.0
    look(backend, record, Trail())
    clock.now_s += 5.0
    cluster.jobs(line(7, state="PENDING", reason="BeginTime"))
    assert "BeginTime" in look(backend, record, Trail()).reason
