"""Hearing hosts: what is shown, who is lost, who is back, and what that means for whole runs."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import BackendError
from milkweed.spmd import run as run_module
from milkweed.spmd.crew import REJOIN_S, RETRY_S, Crew
from milkweed.status import Status
from milkweed.testing import FakeClock
from unit.crew_keepers import ENDED, PENDING, UNKNOWN, World, until
from unit.crews import read_launch
from unit.keepers import FakeKeeper, host


@pytest.fixture
def world(tmp_path: Path, clock: FakeClock) -> Generator[World]:
    made = World(tmp_path, clock)
    yield made
    made.close()


def test_output_of_ranks_is_shown(world: World) -> None:
    """What procs and workers print is for others."""
    keeper = world.keeper("w/0")
    world.gather(1, 1)
    for kind in ("proc", "host", "rank"):
        keeper.tell({"ev": "out", "kind": kind, "lines": [kind]})
    until(lambda: world.shown)  # the last of them: what overtakes it would be shown before it
    assert [message["kind"] for message in world.shown] == ["rank"]


def test_a_host_that_fails_is_lost_once(world: World) -> None:
    """It is told once, and again only when it was there in between."""
    keeper = world.keeper("w/0", "w/1")
    crew = world.crew()
    world.gather(2, 2)
    failed = {"ev": "host", **host("w/1", "failed", reason="its worker ended")}
    for message in (failed, failed, {"ev": "host", **host("w/1")}, failed, {"ev": "last"}):
        keeper.tell(message)
    lost = {"ev": "lost", "host": "w/1", "reason": "its worker ended"}
    assert [world.heard() for _ in range(3)] == [lost, lost, {"ev": "last"}]
    assert (crew.present, crew.lost) == (["w/0"], {"w/1": "its worker ended"})


def test_a_host_that_starts_is_neither_lost_nor_back(world: World) -> None:
    """One that is started again is lost until it is ready."""
    keeper = world.keeper("w/0", host("w/1", "failed", reason="gone"))
    crew = world.crew()
    crew.look()
    keeper.tell({"ev": "host", **host("w/1", "starting")})
    keeper.tell({"ev": "last"})
    assert [world.heard()["ev"] for _ in range(2)] == ["lost", "last"]
    assert crew.present == ["w/0"]
    keeper.tell({"ev": "host", **host("w/1")})
    keeper.tell({"ev": "last"})
    world.heard()
    assert crew.present == ["w/0", "w/1"]


def test_reviving_is_asked_of_keepers_that_are_there(world: World) -> None:
    """A host whose machine is gone cannot be started."""
    keeper = world.keeper(host("w/0", "failed", reason="gone"))
    world.backend.failed["w/1"] = "node n1 is down"
    world.backend.gives = lambda _s: [keeper.address, world.away("w/1")]
    crew = world.crew()
    crew.look()
    assert set(crew.lost) == {"w/0", "w/1"}
    crew.revive()
    assert keeper.wait_for("revive") == [{"op": "revive", "host": "w/0"}]


# Connections that break


@pytest.mark.parametrize(
    ("node", "known", "reason"),
    [
        ("n1", "", "its machine n1 does not answer"),
        ("", "", "its machine does not answer"),
        ("n1", "out of memory", "out of memory"),
    ],
)
def test_a_keeper_of_this_machine_is_lost_at_once(
    world: World, node: str, known: str, reason: str
) -> None:
    """Its socket breaks only when it ends; all its hosts are lost, with the best reason there is."""
    keeper = world.keeper("w/0", "w/1", node=node)
    keeper.node = node
    crew = world.crew()
    world.gather(2, 2)
    if known:
        world.backend.failed = dict.fromkeys(["w/0", "w/1"], known)
    keeper.hang_up()
    heard = [world.heard() for _ in range(2)]
    assert heard == [{"ev": "lost", "host": f"w/{n}", "reason": reason} for n in range(2)]
    assert crew.present == []
    assert world.waited_s == 0.0


def test_leaving_loses_nobody(world: World) -> None:
    """The end of a session that this side wants is no news."""
    world.keeper("w/0")
    crew = world.crew(1)
    world.gather(1, 1)
    crew.close()
    assert crew.inbox.empty()
    assert crew.lost == {}


def join_remote(world: World) -> tuple[FakeKeeper, Crew]:
    """A crew with one host on another machine, where an attempt runs."""
    keeper = world.remote("w/0")
    crew = world.crew(1)
    world.gather(1, 1)
    crew.begin("T.3")
    return keeper, crew


def test_a_connection_that_is_mended(world: World) -> None:
    """Nobody is lost; the host is told again what it may have missed, and asked what became of it."""
    keeper, crew = join_remote(world)
    crew.order("w/0", {"op": "prepare", "id": "T.2"})
    crew.order("w/0", {"op": "prepare", "id": "T.3"})
    keeper.wait_for("prepare", 2)
    keeper.hang_up(abruptly=True)
    report = {"op": "report", "id": "T.3", "number": 0, "host": "w/0"}
    assert keeper.wait_for("report") == [report]
    assert ops(keeper) == [*["prepare w/0"] * 3, "report w/0"]
    assert keeper.wait_for("prepare")[-1]["id"] == "T.3"
    assert len(keeper.wait_for("hello", 2)) == 2
    assert {order["client"] for order in keeper.wait_for("hello")} == {crew.client}
    assert (crew.present, crew.lost) == (["w/0"], {})


def test_a_connection_that_breaks_again_and_again(world: World) -> None:
    """Each time the same."""
    keeper, crew = join_remote(world)
    for count in (1, 2, 3):
        keeper.hang_up(abruptly=True)
        keeper.wait_for("report", count)
    assert crew.present == ["w/0"]
    assert crew.inbox.empty()


def test_a_machine_that_is_back_in_time(world: World) -> None:
    """It is tried again and again; ten seconds of silence cost nothing."""
    keeper, crew = join_remote(world)
    port = keeper.port

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if len(world.keepers) == 1 and world.waited_s > 10:
            world.remote("w/0", port=port)

    world.sleep = sleep
    keeper.close()
    until(lambda: len(world.keepers) == 2)
    world.keepers[1].wait_for("report")
    assert crew.lost == {}
    assert 10 <= world.waited_s < REJOIN_S


def test_a_machine_that_stays_away_is_lost(world: World) -> None:
    """After a while, so that its ranks, which wait a little longer, can still be counted on."""
    keeper, crew = join_remote(world)
    keeper.close()
    assert world.heard() == {
        "ev": "lost",
        "host": "w/0",
        "reason": "its machine n0 does not answer",
    }
    assert REJOIN_S <= world.waited_s <= REJOIN_S + RETRY_S
    assert crew.present == []


@pytest.mark.parametrize("status", [ENDED, PENDING])
def test_a_job_that_is_over_is_not_tried_again(world: World, status: Status) -> None:
    """What the scheduler took away, or queued anew, does not come back."""
    keeper, _crew = join_remote(world)
    world.backend.says = lambda _s: status
    keeper.close()
    assert world.heard()["ev"] == "lost"
    assert world.waited_s == 0.0


def test_a_node_that_is_known_to_be_down_is_not_tried_again(world: World) -> None:
    """The scheduler's word is final."""
    keeper, _crew = join_remote(world)
    world.backend.failed["w/0"] = "node n0 is down"
    keeper.close()
    assert world.heard()["reason"] == "node n0 is down"
    assert world.waited_s == 0.0


@pytest.mark.parametrize("back", [True, False])
def test_a_node_that_its_scheduler_does_not_hear_either(world: World, back: bool) -> None:
    """It may only be out of reach: it is tried as any other, and lost with those words if it stays away."""
    keeper, crew = join_remote(world)
    world.backend.failed["w/0"] = "node n0 is allocated*"
    world.backend.unheard.add("w/0")

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if back and len(world.keepers) == 1 and world.waited_s > 10:
            world.remote("w/0", port=keeper.port)

    world.sleep = sleep
    keeper.close()
    if back:
        until(lambda: len(world.keepers) == 2)
        world.keepers[1].wait_for("report")
        assert crew.lost == {}
    else:
        assert world.heard()["reason"] == "node n0 is allocated*"
        assert world.waited_s >= REJOIN_S


def test_a_scheduler_that_cannot_be_asked_ends_nothing(world: World) -> None:
    """Its commands may be missing for a moment, while somebody puts newer ones there."""
    keeper, crew = join_remote(world)

    def says(_s: float) -> Status:
        raise BackendError("squeue cannot be run", seen="no such file")

    world.backend.says = says

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if len(world.keepers) == 1 and world.waited_s > 10:
            world.remote("w/0", port=keeper.port)

    world.sleep = sleep
    keeper.close()
    until(lambda: len(world.keepers) == 2)
    world.keepers[1].wait_for("report")
    assert crew.lost == {}


def test_a_scheduler_that_is_silent_ends_nothing(world: World) -> None:
    """Both may be out of reach for a while: the machine is tried."""
    keeper, crew = join_remote(world)
    world.backend.says = lambda _s: UNKNOWN
    keeper.hang_up(abruptly=True)
    keeper.wait_for("report")
    assert crew.lost == {}


def test_a_lost_machine_that_comes_back_is_there_again(world: World) -> None:
    """The next look finds it, and it may take part anew."""
    keeper, crew = join_remote(world)
    keeper.close()
    world.heard()
    world.remote("w/0", port=keeper.port)
    crew.look()
    assert (crew.present, crew.lost) == (["w/0"], {})


def test_a_host_is_greeted_once_when_it_is_back(world: World) -> None:
    """Whoever finds it first; two sessions would show every line twice."""
    keeper, crew = join_remote(world)

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if len(world.keepers) == 1:
            world.remote("w/0", port=keeper.port)
            crew.look()  # as the run itself does meanwhile, when more hosts may come

    world.sleep = sleep
    keeper.close()
    until(lambda: len(world.keepers) == 2)
    world.keepers[1].wait_for("report")
    try:
        assert len(world.keepers[1].wait_for("hello")) == 1
    finally:
        world.keepers[1].hang_up()


def test_a_host_that_is_out_of_reach_is_unsure(world: World) -> None:
    """Until it is back or lost; one that answers is not."""
    keeper, crew = join_remote(world)
    crew.probe(["w/0"])
    assert crew.unsure(["w/0"]) == []
    seen: list[list[str]] = []

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        seen.append(crew.unsure(["w/0"]))

    world.sleep = sleep
    keeper.close()
    crew.probe(["w/0"])
    assert world.heard()["ev"] == "lost"
    assert seen
    assert all(hosts == ["w/0"] for hosts in seen)
    assert crew.unsure(["w/0"]) == []


def test_orders_for_a_host_that_is_out_of_reach(world: World) -> None:
    """It is told when it is back: ranks that must end would else go on until `done` kills them."""
    keeper, crew = join_remote(world)

    def sleep(seconds: float) -> None:
        world.clock.sleep(seconds)
        if len(world.keepers) == 1:
            crew.order("w/0", {"op": "halt", "id": "T.3"})
            world.remote("w/0", port=keeper.port)

    world.sleep = sleep
    keeper.close()
    until(lambda: len(world.keepers) == 2)
    world.keepers[1].wait_for("report")
    crew.order("w/0", {"op": "done", "id": "T.3"})
    world.keepers[1].wait_for("done")
    assert "halt" in [order["op"] for order in world.keepers[1].orders]


# Whole runs


def run(world: World, line: str, hosts: int = 2) -> None:
    doors = [world.door(keeper) for keeper in world.keepers]
    world.backend.gives = lambda _s: doors
    run_module.run(world.target({"w": hosts}), read_launch(line))


def ops(keeper: FakeKeeper) -> list[str]:
    """What a keeper was told of ranks."""
    known = ("prepare", "launch", "halt", "report", "done")
    return [f"{order['op']} {order['host']}" for order in keeper.orders if order["op"] in known]


def test_a_run_over_real_sessions(world: World) -> None:
    """Two keepers, one of them with two hosts: each host is told its part, and the end."""
    one, two = world.keeper("w/0", "w/1"), world.keeper("w/2")
    run(world, "--nnodes=3", 3)
    assert ops(one) == [f"{op} w/{n}" for op in ("prepare", "launch", "done") for n in range(2)]
    assert ops(two) == ["prepare w/2", "launch w/2", "done w/2"]
    ranks = [order["ranks"][0]["rank"] for order in [*one.orders, *two.orders] if "ranks" in order]
    assert ranks == [0, 1, 2]


def test_a_host_that_was_lost_before_the_run(world: World) -> None:
    """It is started again and takes part: that it was lost is of no concern any more."""
    keeper = world.keeper("w/0", host("w/1", "failed", reason="its worker ended"))
    run(world, "--nnodes=2")
    assert "launch w/1" in ops(keeper)


def test_a_spare_host_that_is_lost(world: World) -> None:
    """`--nnodes 1` of two hosts runs on the one that is there."""
    keeper = world.keeper("w/0", host("w/1", "failed", reason="its worker ended"))
    run(world, "--nnodes=1")
    assert ops(keeper) == ["prepare w/0", "launch w/0", "done w/0"]


def test_an_elastic_run_without_a_lost_host(world: World, capsys: Any) -> None:
    """One of two hosts is lost from the beginning: the other runs it."""
    one = world.keeper("w/0")
    world.backend.failed["w/1"] = "node n1 is down"
    doors = [one.address, world.away("w/1")]
    world.backend.gives = lambda _s: doors
    run_module.run(world.target({"w": 2}), read_launch("--nnodes=1:2"))
    assert ops(one)[-3:] == ["prepare w/0", "launch w/0", "done w/0"]
