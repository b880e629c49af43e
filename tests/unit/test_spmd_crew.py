"""Gathering the hosts of a run: through a queue, with a last call, without those that are lost."""

from __future__ import annotations

import queue
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from milkweed.backends.fake import FakeBackend
from milkweed.errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    SpecError,
    UnreachableError,
    UnsupportedError,
)
from milkweed.spec import JobSpec, make_meshes
from milkweed.spmd.crew import LOST_PATIENCE_S, Crew
from milkweed.spmd.inbox import Interrupted
from milkweed.spmd.target import Target, choose_mesh
from milkweed.testing import FakeClock, FakeScheduler
from unit.crew_keepers import ENDED, PENDING, RUNNING, UNKNOWN, World, until
from unit.keepers import host
from unit.watching import FakeSession


@pytest.fixture
def world(tmp_path: Path, clock: FakeClock) -> Generator[World]:
    made = World(tmp_path, clock)
    yield made
    made.close()


def spec(**sizes: int) -> JobSpec:
    return JobSpec(name="demo", backend="fake", meshes=make_meshes(sizes))


# Which hosts


def test_the_only_mesh_need_not_be_named() -> None:
    """One of several must be, and one that is not there is an error."""
    assert choose_mesh(spec(w=2), None) == "w"
    assert choose_mesh(spec(a=1, b=2), "b") == "b"
    with pytest.raises(SpecError) as caught:
        choose_mesh(spec(a=1, b=2), None)
    assert str(caught.value) == (
        "job 'demo' has several meshes, and none was named\n"
        "  seen: a, b\n"
        "  do:   say which: --mesh a"
    )
    with pytest.raises(SpecError, match="job 'demo' has no mesh 'c'"):
        choose_mesh(spec(a=1), "c")


def test_hosts_of_a_mesh_are_in_order(world: World) -> None:
    """By number, not by letter; a mesh whose name begins the same is another one."""
    target = world.target({"w": 11, "ww": 1})
    assert target.labels == [f"w/{number}" for number in range(11)]
    assert target.pick(["w/10", "w/9", "ww/0", "w"]) == ["w/9", "w/10"]


def test_a_backend_without_keepers(world: World) -> None:
    """Hosts that take no orders are refused before anything is waited for."""
    backend = FakeBackend(FakeScheduler())
    target = Target(backend=cast("Any", backend), handle={}, spec=spec(w=1), mesh="w")
    with pytest.raises(UnsupportedError, match="fake hosts cannot run torchrun programs"):
        Crew(target, world.shown.append)


# Gathering


def test_all_hosts_are_there(world: World) -> None:
    """Nobody waits, and each keeper is greeted once, by a guest that wants to see output."""
    keepers = [world.keeper(f"w/{number}") for number in range(2)]
    assert world.gather(2, 2) == ["w/0", "w/1"]
    assert world.gather(2, 2) == ["w/0", "w/1"]
    assert world.waited_s == 0.0
    assert world.made
    for keeper in keepers:
        assert keeper.orders == [
            {"op": "hello", "client": world.made.client, "owner": False, "output": True}
        ]


def test_one_keeper_may_have_several_hosts(world: World) -> None:
    """Hosts of a machine are one session, in the order of their numbers."""
    world.keeper("w/10", "w/9")
    world.crew(11)
    assert world.gather(2, 2, last_call_s=1) == ["w/9", "w/10"]


def test_the_first_hosts_are_taken(world: World) -> None:
    """Of more than may take part, the first ones."""
    for number in (2, 0, 1):
        world.keeper(f"w/{number}")
    world.crew(3)
    assert world.gather(1, 2) == ["w/0", "w/1"]
    assert world.waited_s == 0.0


def test_a_queue_is_waited_for(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """However long it takes; nobody is called before the scheduler gives hosts, and the wait is told."""
    keeper = world.keeper("w/0")
    world.backend.says = lambda s: RUNNING if s > 5000 else PENDING
    world.crew(1)
    assert world.gather(1, 1) == ["w/0"]
    assert 5000 < world.waited_s < 5010
    assert len(keeper.wait_for("hello")) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(
        "milkweed: waiting for hosts of job 'demo': hosts there: 0, needed: 1; pending (Slurm job 7"
    )
    assert len(told) < 5000 / 60 + 5


def test_a_scheduler_that_does_not_answer_is_waited_for(world: World) -> None:
    """Nobody knows is not over."""
    world.keeper("w/0")
    world.backend.says = lambda s: RUNNING if s > 100 else UNKNOWN
    world.crew(1)
    assert world.gather(1, 1, timeout_s=500) == ["w/0"]


def test_an_allocation_that_has_ended(world: World) -> None:
    """It is over, with the scheduler's own words."""
    world.backend.says = lambda s: ENDED if s > 10 else PENDING
    world.crew(1)
    with pytest.raises(AllocationEndedError) as caught:
        world.gather(1, 1)
    assert caught.value.what == "the allocation of job 'demo' has ended"
    assert caught.value.seen == "Slurm job 7 is CANCELLED"
    assert "makes another" in caught.value.hint


def test_the_time_to_join(world: World) -> None:
    """Too few hosts in the time that the person gives: nothing is cancelled."""
    world.keeper("w/0")
    doors = [world.keepers[0].address, world.away("w/1")]
    world.backend.gives = lambda _s: doors
    world.crew(2)
    with pytest.raises(DeadlineError) as caught:
        world.gather(2, 2, timeout_s=20)
    assert caught.value.what.startswith("only 1 of 2 hosts were there after 2")
    assert caught.value.seen == "hosts there: 1, needed: 2; running"
    assert "nothing was cancelled" in caught.value.hint
    assert 20 <= world.waited_s < 25


def test_controls_that_cannot_be_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that is away while it is asked where keepers are is asked again."""
    keeper = world.keeper("w/0")
    answers: list[Any] = [UnreachableError("away"), [keeper.address]]

    def controls(_handle: object) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(world.backend, "controls", controls)
    world.crew(1)
    assert world.gather(1, 1) == ["w/0"]


# The last call


def test_more_hosts_are_waited_for_a_while(world: World) -> None:
    """With enough hosts there is a last call, and it has an end."""
    keeper = world.keeper("w/0")
    world.backend.gives = lambda _s: [keeper.address, world.away("w/1")]
    world.crew(2)
    assert world.gather(1, 2, last_call_s=30) == ["w/0"]
    assert 30 <= world.waited_s < 34


def test_who_comes_at_the_last_call_takes_part(world: World) -> None:
    """And then nobody waits any longer."""
    first, second = world.keeper("w/0"), world.keeper("w/1")
    world.backend.gives = lambda s: [first.address, *([second.address] if s > 8 else [])]
    world.crew(2)
    assert world.gather(1, 2, last_call_s=30) == ["w/0", "w/1"]
    assert 8 < world.waited_s < 12


def test_no_last_call_for_the_lost(world: World) -> None:
    """A host that will not come is not waited for."""
    keeper = world.keeper("w/0")
    world.backend.gives = lambda _s: [keeper.address, world.away("w/1")]
    world.backend.failed["w/1"] = "node n1 is down"
    world.crew(2)
    assert world.gather(1, 2) == ["w/0"]
    assert world.waited_s == 0.0
    assert world.made
    assert world.made.lost == {"w/1": "node n1 is down"}


def test_the_first_hosts_are_waited_for_at_the_last_call(world: World) -> None:
    """Two of three would do, and the first two are chosen if they come in time."""
    late, *others = (world.keeper(f"w/{number}") for number in range(3))
    there = [keeper.address for keeper in others]
    world.backend.gives = lambda s: [*there, *([late.address] if s > 8 else [])]
    world.crew(3)
    assert world.gather(2, 2) == ["w/0", "w/1"]


def test_hosts_that_wait_to_be_let_in(world: World) -> None:
    """Those that do not answer are let in, again and again; those that do are not."""
    keeper = world.keeper("w/0")
    world.backend.gives = lambda _s: [keeper.address, world.away("w/1")]
    world.crew(2)
    world.gather(1, 2, last_call_s=1)
    assert len(world.backend.admitted) > 1
    assert {tuple(hosts) for hosts in world.backend.admitted} == {("w/1",)}


# Lost before it began


def test_a_lost_host_is_not_waited_for_like_a_queue(world: World) -> None:
    """It gets a moment to be back, and then its reason is the error."""
    keeper = world.keeper("w/0")
    world.backend.gives = lambda _s: [keeper.address, world.away("w/1")]
    world.backend.failed["w/1"] = "node n1 is down"
    world.crew(2)
    with pytest.raises(HostFailedError) as caught:
        world.gather(2, 2)
    assert (caught.value.what, caught.value.seen) == ("host w/1 is lost", "node n1 is down")
    assert "replace it" in caught.value.hint
    assert LOST_PATIENCE_S <= world.waited_s < LOST_PATIENCE_S + 3


def test_a_failed_host_is_started_again(world: World) -> None:
    """Its machine is there: its keeper is told, and it takes part."""
    keeper = world.keeper("w/0", host("w/1", "failed", reason="its worker ended"))
    crew = world.crew(2)
    world.sleep = lambda s: (world.clock.sleep(s), until(lambda: not crew.lost))
    assert world.gather(2, 2) == ["w/0", "w/1"]
    assert {"op": "revive", "host": "w/1"} in keeper.orders


def test_a_failed_host_has_its_time_after_a_queue_too(world: World) -> None:
    """Hours in a queue take nothing from the ten seconds that a host may need to be back."""
    keeper = world.keeper("w/0", host("w/1", "failed", reason="its worker ended"))
    world.backend.says = lambda s: RUNNING if s > 60 else PENDING
    crew = world.crew(2)

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if any(order["op"] == "hello" for order in keeper.orders):
            until(lambda: not crew.lost)

    world.sleep = sleep
    assert world.gather(2, 2) == ["w/0", "w/1"]


# Meshes, and jobs that grew


def test_hosts_of_other_meshes_are_no_concern(world: World) -> None:
    """They are neither there nor lost, though their keeper has both."""
    world.keeper("w/0", "v/0", host("v/1", "failed", reason="gone"))
    crew = world.crew(1, v=2)
    assert world.gather(1, 1) == ["w/0"]
    assert (crew.labels, crew.present, crew.lost) == (["w/0"], ["w/0"], {})


def test_a_job_that_was_made_larger(world: World) -> None:
    """Hosts that were not declared when the program began take part, in their order."""
    for number in (2, 0, 1):
        world.keeper(f"w/{number}")
    crew = world.crew(2)
    assert world.gather(1, 3, last_call_s=5) == ["w/0", "w/1", "w/2"]
    assert crew.labels == ["w/0", "w/1", "w/2"]


def test_a_new_host_that_is_lost_again(world: World) -> None:
    """It came and went; those who were declared are still waited for."""
    first, second = world.keeper("w/0"), world.keeper("w/1")
    world.backend.gives = lambda s: [first.address, *([second.address] if s > 8 else [])]
    crew = world.crew(2)
    crew._saw_host({"host": "w/2", "state": "failed", "reason": "gone"})
    assert world.gather(1, 3, last_call_s=30) == ["w/0", "w/1"]


# Signals


def test_a_person_who_waits_no_longer(world: World) -> None:
    """A signal ends the wait soon."""
    world.backend.says = lambda _s: PENDING
    crew = world.crew(1)

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if world.waited_s > 50:
            crew.inbox.put({"ev": "signal", "name": "SIGTERM"})

    world.sleep = sleep
    with pytest.raises(Interrupted) as caught:
        world.gather(1, 1)
    assert caught.value.name == "SIGTERM"
    assert world.waited_s < 51


def test_what_else_was_said_stays(world: World) -> None:
    """Looking for a signal takes nothing away, and changes no order."""
    crew = world.crew(1)
    for number in range(3):
        crew.inbox.put({"ev": "rank-exit", "rank": number})
    crew.inbox.raise_signal()
    assert [crew.inbox.get_nowait()["rank"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(queue.Empty):
        crew.inbox.get_nowait()


# Preparing


def test_a_host_is_brought_to_its_image_once(world: World) -> None:
    """However often the crew looks; a keeper that takes the place of another is new, and brought there too."""
    first = world.remote("w/0")
    crew = world.crew(1)
    world.gather(1, 1)
    crew.look()
    assert world.prepared == [[world.door(first)]]
    first.close()
    second = world.remote("w/0", port=first.port)
    second.keeper = "another"
    until(lambda: crew.look() and len(world.prepared) == 2)
    assert world.prepared[1] == [world.door(second)]


# Addresses and orders


def hear(crew: Crew, **machines: str) -> None:
    """Let the crew hear something of these hosts."""
    for label, machine in machines.items():
        session: Any = FakeSession(label.replace("_", "/"))
        session.address = f"tls://{machine}:1/{session.labels[0]}#x" if machine else "unix:///x"
        crew._hear(session, {"ev": "prepared"})


def test_how_ranks_reach_the_first_host(world: World) -> None:
    """By its machine's name, or as their own machine when there is only one."""
    crew = world.crew(3)
    hear(crew, w_0="n0", w_1="n1", w_2="n0")
    assert crew.address("w/0", ["w/0", "w/1"]) == "n0"
    assert crew.address("w/1", ["w/1", "w/0"]) == "n1"
    assert crew.address("w/0", ["w/0", "w/2"]) == "localhost"
    assert crew.address("w/0", ["w/0"]) == "localhost"
    hear(crew, w_0="", w_1="")
    assert crew.address("w/0", ["w/0", "w/1"]) == "localhost"


def test_a_host_whose_connection_just_broke_has_its_address(world: World) -> None:
    """It has prepared, and may be back in a moment: what it does not answer then is noticed elsewhere."""
    keeper = world.remote("w/0")
    crew = world.crew(1)
    world.gather(1, 1)
    keeper.tell({"ev": "prepared"})
    world.heard()
    world.backend.says = lambda _s: ENDED
    keeper.close()
    until(lambda: not crew.present)
    assert crew.address("w/0", ["w/0"]) == "localhost"


def test_orders_go_to_the_keeper_of_a_host(world: World) -> None:
    """With the name of the host; an order for nobody is no error."""
    one, two = world.keeper("w/0", "w/1"), world.keeper("w/2")
    crew = world.crew(3)
    world.gather(3, 3)
    crew.order("w/1", {"op": "halt", "id": "T.0"})
    crew.order("w/9", {"op": "halt", "id": "T.0"})
    assert one.wait_for("halt") == [{"op": "halt", "id": "T.0", "host": "w/1"}]
    assert [order["op"] for order in two.orders] == ["hello"]
