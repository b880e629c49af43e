"""The second look before something from a queue is given up: Slurm and the keepers are asked anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import UnreachableError
from milkweed.job import lifecycle
from milkweed.job.observing import observe
from milkweed.plan import Action, Renewal
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import StateFile
from milkweed.status import HostState, Liveness
from unit.slurm_fake import FakeSlurm, line
from unit.slurm_jobs import create, handle_of

SPEC = JobSpec(
    name="demo",
    backend="slurm",
    meshes=(MeshSpec(name="w", hosts=1),),
    client={"renew": "30m"},
)
RUNS = line(7, nodes="n1", left="5:00")
FOLLOWS = line(9, generation=1, nodes="n3", left="1:00:00")


@pytest.fixture(autouse=True)
def _runs(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """Job 7 runs on n1, whose keeper does not answer."""
    create(SPEC)
    cluster.jobs(RUNS)
    commands.queue.wake()
    commands._nodes.clear()


def show(cluster: FakeSlurm, state: str) -> None:
    """What Slurm says of all nodes from now on; what was read a moment ago is not forgotten."""
    cluster.nodes("n1", "n2", "n3", address="127.0.0.1", state=state)


def state_of(look: Any) -> HostState:
    [host] = look(handle_of()).hosts
    return host.state


def test_nodes_are_read_anew(cluster: FakeSlurm) -> None:
    """Many looks go by one answer of sinfo, which may be some seconds old; a second look does not."""
    backend = SlurmBackend()
    show(cluster, "down")
    assert state_of(backend.poll) is HostState.FAILED
    show(cluster, "allocated")
    assert state_of(backend.poll) is HostState.FAILED
    assert state_of(backend.look_again) is HostState.STARTING


def test_the_queue_is_read_anew(cluster: FakeSlurm) -> None:
    """The job may have been put back into the queue since, and its hosts are not lost."""
    backend = SlurmBackend()
    backend.poll(handle_of())
    cluster.jobs(line(7, state="PENDING"))
    assert backend.poll(handle_of()).liveness is Liveness.RUNNING
    assert backend.look_again(handle_of()).liveness is Liveness.PENDING


def test_a_controller_that_is_silent_now_agrees_with_nothing(cluster: FakeSlurm) -> None:
    """What it said before is not taken for a second answer."""
    backend = SlurmBackend()
    show(cluster, "down")
    assert state_of(backend.poll) is HostState.FAILED
    cluster.answer("sinfo", err="Unable to contact slurm controller\n", code=1)
    assert state_of(backend.look_again) is HostState.STARTING


def test_a_follow_up_whose_node_is_back_is_kept(cluster: FakeSlurm) -> None:
    """One look saw its node down: it is not cancelled for that."""
    cluster.answer("sbatch", "9\n")
    handle = SlurmBackend().renew(handle_of(), SPEC)
    cluster.jobs(RUNS, FOLLOWS)
    commands.queue.wake()
    show(cluster, "down")
    commands._nodes.clear()
    assert SlurmBackend().renewal(handle, "30m") is Renewal.FAILED
    show(cluster, "allocated")
    assert SlurmBackend().renew(handle, SPEC) == handle
    assert cluster.called("scancel") == []


def test_hosts_whose_node_is_back_are_not_replaced(cluster: FakeSlurm) -> None:
    """A person has asked for others in place of lost ones, and none is lost any more."""
    wish = lifecycle.Wish(spec=SPEC, backend=SlurmBackend(), on_change="replace")
    file = StateFile("job.json")
    cluster.jobs(line(7, nodes="n1"))
    show(cluster, "down")
    record, seen = observe(wish.backend, file.load(), file, wish)
    plan = lifecycle.plan_for(wish, seen)
    assert plan.action is Action.REPLACE
    show(cluster, "allocated")
    with pytest.raises(UnreachableError, match="two looks"):
        lifecycle.execute(plan, wish, record, file)
    assert cluster.called("scancel") == []


def test_a_repair_goes_by_a_look_of_its_own(cluster: FakeSlurm) -> None:
    """What was seen when it was planned gives back no host whose node is there again."""
    show(cluster, "down")
    assert state_of(SlurmBackend().poll) is HostState.FAILED
    show(cluster, "allocated")
    before = len(cluster.submitted)
    SlurmBackend().resize(handle_of(), SPEC)
    assert len(cluster.submitted) == before
