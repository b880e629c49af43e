"""Joining the hosts of an allocation: through the queue, while they start, and when some never come."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed.errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    UnreachableError,
)
from milkweed.job import leaving
from milkweed.job.connection import START_TIMEOUT_S
from milkweed.spec import JobSpec, MeshSpec
from milkweed.testing import FakeClock
from unit.joining import ENDED, PENDING, RUNNING, SPEC, UNKNOWN, World
from unit.keepers import WAIT_S, host


@pytest.fixture
def world(tmp_path: Path, clock: FakeClock) -> Generator[World]:
    made = World(tmp_path, clock)
    yield made
    made.close()


# Through the queue


def test_hosts_that_are_there_are_joined_at_once(world: World) -> None:
    """Every keeper is greeted once, however often somebody joins."""
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    world.connection.join(None)
    assert world.joined() == [1, 1]
    assert world.clock.slept == []
    assert world.connection.usable


def test_a_queue_is_waited_for_however_long(world: World) -> None:
    """Days if need be, without a deadline; the scheduler is looked at every five seconds in the end."""
    world.backend.says = lambda s: RUNNING if s > 100_000 else PENDING
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    assert world.joined() == [1, 1]
    assert world.backend.looks < 100_000 / 4


def test_silence_of_the_scheduler_is_waited_for(world: World) -> None:
    """Nobody knows: that is no reason to give up."""
    world.backend.says = lambda s: RUNNING if s > 600 else UNKNOWN
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    assert world.joined() == [1, 1]


def test_a_wait_in_the_queue_has_the_deadline_that_was_given(world: World) -> None:
    """The error has the scheduler's reason, and nothing was cancelled."""
    world.backend.says = lambda _s: PENDING
    with pytest.raises(DeadlineError) as caught:
        world.connection.join(world.clock.now_s + 30.0)
    assert "Priority" in caught.value.seen
    assert "nothing was cancelled" in caught.value.hint
    assert world.clock.now_s == pytest.approx(1030.0)


def test_an_end_in_the_queue_ends_the_wait(world: World) -> None:
    """With the scheduler's reason."""
    world.backend.says = lambda s: ENDED if s > 10 else PENDING
    with pytest.raises(AllocationEndedError) as caught:
        world.connection.join(None)
    assert caught.value.seen == ENDED.reason
    assert "makes another" in caught.value.hint


# While hosts start


def test_hosts_that_come_one_by_one_are_joined_as_they_come(world: World) -> None:
    """The first is not greeted twice because the second is late."""
    world.backend.gives = lambda s: world.addresses[: 1 if s < 20 else 2]
    world.connection.join(None)
    assert world.joined() == [1, 1]


def test_the_scheduler_is_asked_seldom_while_hosts_start(world: World) -> None:
    """Hosts are tried twice a second, the scheduler is asked once."""
    world.backend.gives = lambda s: world.addresses[: 1 if s < 60 else 2]
    world.connection.join(None)
    assert world.backend.looks <= 65


def test_hosts_that_wait_to_be_let_in_are_let_in(world: World) -> None:
    """Those that do not answer are named to the backend, as long as they do not."""
    world.backend.gives = lambda s: [
        world.addresses[0],
        world.gone if s < 10 else world.addresses[1],
    ]
    world.connection.join(None)
    assert world.backend.admitted
    assert all(hosts == ["w/1"] for hosts in world.backend.admitted)


def test_a_host_of_which_the_scheduler_knows_more_ends_the_wait(world: World) -> None:
    """A task that has ended, or a node that is down, will not answer: its reason is told at once."""
    world.backend.gives = lambda _s: [world.addresses[0], world.gone]
    world.backend.failed = {"w/1": "its task on node n2 ended: Exited with exit code 1"}
    with pytest.raises(HostFailedError, match="host w/1 did not start") as caught:
        world.connection.join(None)
    assert "exit code 1" in caught.value.seen
    assert "replace it" in caught.value.hint
    assert world.backend.now_s < 5


def test_a_node_that_the_scheduler_does_not_hear_now_is_waited_for(world: World) -> None:
    """It may be the network, and pass: no reason to give up hosts that took a queue to get."""
    world.backend.gives = lambda s: [
        world.addresses[0],
        world.gone if s < 20 else world.addresses[1],
    ]
    world.backend.failed = {"w/1": "Slurm says that node n2 is idle*"}
    world.backend.unheard = True
    world.connection.join(None)
    assert world.joined() == [1, 1]


def test_a_host_that_never_answers_has_a_deadline(world: World) -> None:
    """Without one that was given, five minutes; the error says what was tried."""
    world.backend.gives = lambda _s: [world.addresses[0], world.gone]
    with pytest.raises(DeadlineError) as caught:
        world.connection.join(None)
    assert caught.value.seen
    assert START_TIMEOUT_S <= world.backend.now_s <= START_TIMEOUT_S + 1


def test_hosts_that_were_added_wait_in_the_queue_like_any(world: World) -> None:
    """Some run and some are still in the queue: that takes as long as it takes."""
    world.backend.gives = lambda s: world.addresses[: 1 if s < 5000 else 2]
    world.connection.join(None)
    assert world.joined() == [1, 1]


def test_an_added_host_whose_job_has_ended_ends_the_wait(world: World) -> None:
    """It has no node and never will: the scheduler is asked about those, too, and in turn about each."""
    world.connection._spec = replace(SPEC, meshes=(MeshSpec(name="w", hosts=30),))
    world.backend.gives = lambda _s: world.addresses
    world.backend.failed = {"w/20": "Slurm job 9 is CANCELLED: it was cancelled"}
    with pytest.raises(HostFailedError, match="host w/20 did not start") as caught:
        world.connection.join(None)
    assert "CANCELLED" in caught.value.seen
    assert world.backend.now_s < 60


def test_a_scheduler_that_goes_away_while_hosts_start_is_waited_for(world: World) -> None:
    """Not knowing where hosts are for a moment is no reason to give up on them."""

    def gives(s: float) -> Sequence[str]:
        if 2 < s < 30:
            raise UnreachableError("Slurm's controller did not answer")
        return world.addresses[: 1 if s < 40 else 2]

    world.backend.gives = gives
    world.connection.join(None)
    assert world.joined() == [1, 1]


def test_a_scheduler_that_goes_away_while_hosts_are_let_in_is_waited_for(world: World) -> None:
    """They are let in when it answers again; the wait for them goes on."""
    world.backend.mute = True
    world.backend.gives = lambda s: [
        world.addresses[0],
        world.gone if s < 20 else world.addresses[1],
    ]
    world.connection.join(None)
    assert world.backend.admitted
    assert world.joined() == [1, 1]


def test_hosts_that_stand_still_are_waited_for(world: World) -> None:
    """A job that is suspended may be resumed tomorrow; its hosts are the same then."""
    halted = replace(RUNNING, halted=True)
    world.backend.says = lambda s: halted if s < 5000 else RUNNING
    world.backend.gives = lambda s: [
        world.addresses[0],
        world.gone if s < 5000 else world.addresses[1],
    ]
    world.connection.join(None)
    assert world.joined() == [1, 1]


# Being there


def test_ready_hosts_are_described(world: World) -> None:
    """Name of the machine, mesh, rank and both addresses, as the keepers said."""
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    found = sorted(world.connection._wait_ready(None), key=lambda each: each.label)
    assert [(each.label, each.name, each.address, each.control) for each in found] == [
        (f"w/{rank}", f"n{rank}", f"tls://w/{rank}:1", world.addresses[rank]) for rank in range(2)
    ]


def test_a_host_that_fails_while_it_starts_ends_the_wait(world: World) -> None:
    """With the end of its log, and how many more there are."""
    for rank, keeper in enumerate(world.keepers):
        keeper.hosts = [host(f"w/{rank}", "failed", reason="it died", tail=["Traceback", "oh"])]
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    expected = r"host w/[01] did not start: it died \(1 more failed\)"
    with pytest.raises(HostFailedError, match=expected) as caught:
        world.connection._wait_ready(None)
    assert caught.value.seen == "Traceback\noh"


def test_hosts_are_kept_when_they_are_recorded(world: World) -> None:
    """Every keeper hears how long it may idle."""
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    world.connection.keep()
    for keeper in world.keepers:
        assert keeper.wait_for("keep") == [{"op": "keep", "idle_timeout_s": 3600.0}]


def test_hosts_that_come_after_the_record_are_kept_too(world: World) -> None:
    """Those that are joined then, and those that come anew when their scheduler has taken the first back."""
    world.connection.keep()
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    world.connection._begin_anew()
    world.connection.join(None)
    for keeper in world.keepers:
        assert len(keeper.wait_for("keep", 2)) == 2


def test_other_sizes_join_the_new_hosts_only(world: World) -> None:
    """After growing, the sessions that are there stay, and the next join adds the new ones."""
    world.backend.gives = lambda _s: world.addresses
    grown = JobSpec(name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=2),))
    world.connection.join(None)
    world.connection.change(grown, {"newer": True})
    world.connection.join(None)
    assert world.joined() == [1, 1]
    assert world.connection._watch.handle == {"newer": True}


def test_released_hosts_are_no_loss(world: World) -> None:
    """Their keeper ends, and the connection is as good as before."""
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    sessions = world.connection._presence.sessions
    world.connection.release(["w/1"])
    world.keepers[1].close()
    for session in sessions:
        if session.labels == ["w/1"]:
            session._thread.join(WAIT_S)
            session.close()
    assert world.connection.usable
    assert world.connection.lost == {}


def test_leaving_closes_everything(world: World) -> None:
    """Afterwards nobody is counted as a client, and the end of hosts is no news."""
    world.backend.gives = lambda _s: world.addresses
    world.connection.join(None)
    world.connection.close()
    assert not world.connection.alive
    assert world.connection not in leaving.connections
    for keeper in world.keepers:
        assert keeper.orders[-1]["op"] == "sync"
