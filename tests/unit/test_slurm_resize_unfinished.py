"""Changes of sizes that were begun and then refused: the next one finishes them, and nothing is left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.start import load_parts
from milkweed.errors import BackendError
from milkweed.job import lifecycle
from milkweed.job.observing import observe
from milkweed.plan import Action, Plan
from milkweed.state import StateFile
from milkweed.status import HostState
from unit.slurm_fake import APPLY_ID, FakeSlurm, line
from unit.slurm_world import World
from unit.test_slurm_resize_faults import refuse_growth, states


@pytest.fixture
def job(
    slurm: FakeSlurm, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[World]:
    """All three hosts serve, and their nodes are known."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    made = World(slurm, home)
    made.backend._sleep = lambda _seconds: None
    for rank in range(3):
        made.answer(rank)
    made.backend.places(made.handle, note=True)
    yield made
    made.close()


def declare(job: World, hosts: int) -> Plan:
    """A program that wants so many hosts: what was planned, and carried out unless it was refused."""
    wish = lifecycle.Wish(spec=job.spec(hosts), backend=job.backend)
    file = StateFile("job.json")
    commands.queue.wake()
    record, seen = observe(job.backend, file.load(), file, wish)
    plan = lifecycle.plan_for(wish, seen)
    with contextlib.suppress(BackendError):
        lifecycle.execute(plan, wish, record, file)
    return plan


def is_unfinished() -> bool:
    return registry.resizing_path(APPLY_ID).exists()


def test_a_refusal_does_not_hide_what_was_cut_off_before(
    job: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program died before it could record a host, and the next one's wish is refused: the host is given back."""

    def die(_file: StateFile, _record: object) -> None:
        raise KeyboardInterrupt

    job.slurm.would_take()
    job.slurm.answer("sbatch", "9\n")
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "save", die)
        with pytest.raises(KeyboardInterrupt):
            declare(job, 4)
    both = line(7, nodes="n[1-3]"), line(9, component=1, state="PENDING")
    job.slurm.jobs(*both)
    refuse_growth(job)
    assert declare(job, 5).action is Action.RESIZE
    assert is_unfinished()
    plan = declare(job, 3)
    assert (plan.action, plan.approved) == (Action.RESIZE, True)
    assert job.slurm.called("scancel") == [["9"]]
    assert not is_unfinished()


def test_hosts_whose_nodes_slurm_does_not_take_back_are_asked_for_anew(job: World) -> None:
    """They were stopped before it said so: a program that declares them as before needs nobody's word."""
    job.slurm.answer("scontrol", err="Requested operation is presently disabled\n", code=1)
    assert declare(job, 2).action is Action.RESIZE
    assert (is_unfinished(), states(job)["w/2"]) == (True, HostState.FAILED)
    job.slurm.would_take()
    job.slurm.answer("sbatch", "9\n")
    plan = declare(job, 3)
    assert (plan.action, plan.approved) == (Action.RESIZE, True)
    assert [each["rank"] for each in load_parts(job.folder, 0)[1]["hosts"]] == [2]
    assert not is_unfinished()


def test_what_was_refused_at_once_leaves_nothing_to_be_finished(job: World) -> None:
    """No host was asked for, and none was given back: the same declaration as before changes nothing."""
    job.slurm.would_take()
    refuse_growth(job)
    assert declare(job, 4).action is Action.RESIZE
    assert not is_unfinished()
    assert declare(job, 3).action is Action.REUSE
