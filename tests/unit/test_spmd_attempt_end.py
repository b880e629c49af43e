"""How one attempt ends: which failure was the first, who is lost, and that nobody stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.spmd.attempt import SLACK_S, Ending, Outcome
from milkweed.spmd.inbox import Interrupted
from milkweed.testing import FakeClock
from unit.crews import GRACE_S, TWO, Attempts, make_exit


@pytest.fixture
def world(clock: FakeClock) -> Attempts:
    return Attempts(clock)


def leave(world: Attempts, *labels: str) -> None:
    """Let hosts take no orders any more once ranks run, though nobody has noticed it."""
    world.crew.inbox.after(0.5, lambda: world.crew.gone.update(labels))


def ranks(outcome: Outcome) -> list[tuple[int, int]]:
    """Who failed, and how."""
    return [(failure["rank"], failure["code"]) for failure in outcome.failures]


# A rank fails


def test_a_failure_ends_the_others(world: Attempts) -> None:
    """The first one is named first, and those that were ended for it come after."""
    world.script(lambda: world.crew.exit(2, 3))
    outcome = world.run()
    assert (outcome.ending, outcome.size) == (Ending.FAILED, 4)
    assert ranks(outcome) == [(2, 3), (0, -15), (1, -15), (3, -15)]
    assert [failure["halted"] for failure in outcome.failures] == [False, True, True, True]
    assert world.crew.told("halt", "done") == ["halt w/0", "halt w/1", "done w/0", "done w/1"]
    assert not world.crew.live


def test_success_of_some_is_no_end(world: Attempts) -> None:
    """Ranks that succeeded are not failures, though another fails much later."""
    world.script(
        lambda: world.crew.exit(0, 0),
        lambda: world.crew.exit(1, 0, 50.0),
        lambda: world.crew.exit(3, 9, 80.0),
    )
    assert ranks(world.run()) == [(3, 9), (2, -15)]


def test_the_first_by_time_is_the_first(world: Attempts) -> None:
    """A failure that was heard later, and happened earlier, is the reason."""
    world.script(
        lambda: world.crew.exit(0, 1, 1.0, at=1001.0),
        lambda: world.crew.exit(3, 7, 1.005, at=1000.9),
    )
    assert ranks(world.run())[:2] == [(3, 7), (0, 1)]


def test_a_rank_that_was_halted_is_never_the_first(world: Attempts) -> None:
    """Clocks of hosts differ: what ended because it was told to did not begin it."""
    world.script(lambda: world.crew.exit(3, 7, 1.0, at=5000.0))
    assert ranks(world.run())[0] == (3, 7)


def recorded(timestamp: Any) -> str:
    """An error file as torch's `record` writes it."""
    return json.dumps({"message": {"message": "E", "extraInfo": {"timestamp": timestamp}}})


def test_the_time_of_an_exception_is_better_than_that_of_an_end(world: Attempts) -> None:
    """A rank that recorded when it failed may have taken its time to end, and may have been halted."""
    world.script(
        lambda: world.crew.exit(0, 1, 1.0, at=2000.0, error=recorded("1999")),
        lambda: world.crew.exit(1, 1, 1.001, at=2000.1, error=recorded(1990)),
        lambda: world.crew.exit(2, 1, 1.002, at=2000.2, error=recorded("1980"), halted=True),
    )
    assert ranks(world.run()) == [(2, 1), (1, 1), (0, 1), (3, -15)]


@pytest.mark.parametrize(
    "error", ["", "no JSON", "[]", "null", '{"message": "E"}', recorded(None), recorded("soon")]
)
def test_without_such_a_time_the_end_counts(world: Attempts, error: str) -> None:
    """Whatever else a program has written there."""
    world.script(
        lambda: world.crew.exit(0, 1, 1.0, at=2000.2, error=error),
        lambda: world.crew.exit(3, 7, 1.001, at=2000.1),
    )
    assert ranks(world.run())[:2] == [(3, 7), (0, 1)]


@given(st.permutations(range(4)), st.integers(1, 4))
def test_any_order_gives_the_same_report(order: list[int], failed: int) -> None:
    """However messages overtake each other, failures are sorted by their time."""
    world = Attempts(FakeClock())

    def happen() -> None:
        for turn, rank in enumerate(order[:failed]):
            world.crew.exit(rank, rank + 1, 1.0 + turn / 1000, at=float(rank))

    world.script(happen)
    found = [rank for rank, code in ranks(world.run()) if code > 0]
    assert found == sorted(order[:failed])


def test_failures_before_all_ranks_are_launched(world: Attempts) -> None:
    """A rank may fail while another host still starts its own."""
    world.crew.silent = {("launch", "w/1")}
    answer = {"ev": "launched", "id": "T.0", "host": "w/1"}
    world.script(
        lambda: world.crew.exit(0, 5, 0.5),
        lambda: world.crew.inbox.after(2.0, answer),
        lambda: world.crew.inbox.after(3.0, make_exit("T.0", 2, 0, ("w/1", 0), 0.0, {})),
        lambda: world.crew.inbox.after(3.0, make_exit("T.0", 3, 0, ("w/1", 1), 0.0, {})),
    )
    outcome = world.run()
    assert (outcome.ending, ranks(outcome)) == (Ending.FAILED, [(0, 5), (1, -15)])


def test_success_before_all_ranks_are_launched(world: Attempts) -> None:
    """A short program may be over before the last host has answered."""
    world.script(lambda: world.crew.exit_all(after_s=0.0))
    world.crew.silent = {("launch", "w/1")}
    answer = {"ev": "launched", "id": "T.0", "host": "w/1"}
    ends = [make_exit("T.0", rank, 0, ("w/1", rank - 2), 0.0, {}) for rank in (2, 3)]
    world.script(lambda: None)
    for number, message in enumerate([*ends, answer]):
        world.crew.inbox.after(1.0 + number, message)
    assert world.run() == Outcome(ending=Ending.DONE, size=4)


def test_what_is_told_twice_counts_once(world: Attempts) -> None:
    """After a broken connection a host tells everything again: no failure is doubled."""
    again = make_exit("T.0", 2, 3, ("w/1", 0), 1.0, {})
    success = make_exit("T.0", 1, 0, ("w/0", 1), 1.0, {})
    world.script(
        lambda: world.crew.exit(1, 0, 1.0),
        lambda: world.crew.inbox.after(1.001, success),
        lambda: world.crew.inbox.after(1.002, {**success, "code": 1}),
        lambda: world.crew.exit(2, 3, 2.0),
        lambda: world.crew.inbox.after(2.001, again),
        lambda: world.crew.inbox.after(2.002, again),
    )
    assert ranks(world.run()) == [(2, 3), (0, -15), (3, -15)]


def test_ranks_that_take_all_their_time(world: Attempts, clock: FakeClock) -> None:
    """Those that end only after the grace time are waited for."""
    world.crew.stubborn = {"w/1"}
    world.script(lambda: world.crew.exit(0, 1))
    assert ranks(world.run()) == [(0, 1), (1, -15), (2, -9), (3, -9)]


def test_a_host_that_never_tells_of_the_end(world: Attempts, clock: FakeClock) -> None:
    """It is not waited for longer than its grace time and a little more."""
    world.script(lambda: world.crew.exit(0, 1), lambda: leave(world, "w/1"))
    began_s = clock()
    assert ranks(world.run()) == [(0, 1), (1, -15)]
    assert clock() - began_s <= 1.0 + GRACE_S + SLACK_S + 1.0


@pytest.mark.parametrize("grace", [0, 5])
def test_the_grace_time_is_the_person_s(world: Attempts, grace: int) -> None:
    """`--shutdown-timeout` is what hosts are told."""
    world.line = f"--nnodes=2 --shutdown-timeout={grace}"
    world.script(lambda: world.crew.exit(0, 1))
    world.run()
    assert {order["grace_s"] for order in world.crew.messages("halt")} == {grace}


# A host is lost


def test_a_host_lost_while_ranks_run(world: Attempts, clock: FakeClock) -> None:
    """The others end, nobody waits for the ranks of the lost one, and the reason is told."""
    world.script(lambda: world.crew.lose("w/1", reason="node n1 is down"))
    began_s = clock()
    outcome = world.run()
    assert outcome == Outcome(ending=Ending.LOST, host="w/1", reason="node n1 is down")
    assert not world.crew.live
    assert clock() - began_s < 3.0
    assert world.crew.told()[-2:] == ["done w/0", "done w/1"]


def test_a_host_lost_before_it_begins(world: Attempts) -> None:
    """That it is lost is known, though the word of it is forgotten: nobody prepares."""
    world.crew.lose("w/1", 0.0)
    assert world.run() == Outcome(ending=Ending.LOST, host="w/1", reason="it is down")
    assert world.crew.told() == ["done w/0", "done w/1"]


def test_others_lost_before_it_begins(world: Attempts) -> None:
    """A spare host that is lost is not missed."""
    world.crew.lost = {"w/2": "it is down"}
    world.script(world.crew.exit_all)
    assert world.run().ending is Ending.DONE


def test_a_host_lost_while_hosts_prepare(world: Attempts) -> None:
    """Nothing was started, so nothing is halted."""
    world.crew.silent = {("prepare", "w/1")}
    world.crew.lose("w/1")
    assert world.run() == Outcome(ending=Ending.LOST, host="w/1", reason="it is down")
    assert world.crew.told("launch", "halt", "done") == ["done w/0", "done w/1"]


def test_a_host_lost_while_ranks_are_launched(world: Attempts, clock: FakeClock) -> None:
    """Its ranks never were; those of the others end."""
    world.crew.silent = {("launch", "w/1")}
    world.script(lambda: world.crew.lose("w/1"))
    began_s = clock()
    assert world.run().ending is Ending.LOST
    assert world.crew.told("halt") == ["halt w/0", "halt w/1"]
    assert clock() - began_s < 3.0


def test_hosts_lost_while_others_end(world: Attempts, clock: FakeClock) -> None:
    """A host that is lost while ranks are halted has none left; the first reason stays."""
    world.crew.stubborn = {"w/1"}
    world.script(lambda: world.crew.exit(0, 4), lambda: world.crew.lose("w/1", 3.0))
    began_s = clock()
    outcome = world.run()
    assert (outcome.ending, ranks(outcome)) == (Ending.FAILED, [(0, 4), (1, -15)])
    assert clock() - began_s < 5.0


def test_hosts_that_are_left_are_waited_for(clock: FakeClock) -> None:
    """One host is lost while ranks are halted: those of the others are still waited for."""
    world = Attempts(clock, "w/0", "w/1", "w/2")
    world.crew.nproc = dict.fromkeys(world.crew.nproc, 1)
    world.crew.stubborn = {"w/1", "w/2"}
    world.script(lambda: world.crew.exit(0, 4), lambda: world.crew.lose("w/1", 3.0))
    assert ranks(world.run(["w/0", "w/1", "w/2"])) == [(0, 4), (2, -9)]


def test_two_hosts_lost_at_once(clock: FakeClock) -> None:
    """The first one is named, and nobody waits for either."""
    world = Attempts(clock, "w/0", "w/1", "w/2")
    world.script(lambda: world.crew.lose("w/2"), lambda: world.crew.lose("w/1"))
    began_s = clock()
    outcome = world.run(["w/0", "w/1", "w/2"])
    assert (outcome.ending, outcome.host) == (Ending.LOST, "w/2")
    assert clock() - began_s < 3.0


def lost(label: str) -> dict[str, Any]:
    return {"ev": "lost", "host": label, "reason": "it is down"}


def test_a_host_of_another_mesh_is_not_missed(world: Attempts) -> None:
    """Programs of other meshes are no concern, before and while ranks run."""
    world.crew.on_begin = lambda: world.crew.inbox.put(lost("other/0"))
    world.script(lambda: world.crew.inbox.put(lost("other/1")), world.crew.exit_all)
    assert world.run().ending is Ending.DONE


def test_a_host_that_does_not_take_part_is_not_missed(world: Attempts) -> None:
    """While ranks run elsewhere, a spare host may come and go."""
    world.script(lambda: world.crew.inbox.after(0.5, lost("w/2")), world.crew.exit_all)
    assert world.run().ending is Ending.DONE


def test_a_spare_host_is_not_missed_while_others_prepare(world: Attempts) -> None:
    """The same from the first moment on: `--nnodes 2` of three hosts needs two."""
    world.crew.on_begin = lambda: world.crew.inbox.put(lost("w/2"))
    world.script(world.crew.exit_all)
    assert world.run().ending is Ending.DONE


# Signals while ranks end


def test_a_second_ctrl_c_makes_ranks_end(world: Attempts, clock: FakeClock) -> None:
    """They were asked; now they are not asked any more."""
    world.crew.stubborn = set(TWO)
    world.script(lambda: world.crew.signal("SIGINT"), lambda: world.crew.signal("SIGINT", 2.0))
    began_s = clock()
    assert world.fails(Interrupted).name == "SIGINT"
    told = [(order["signal"], order["grace_s"]) for order in world.crew.messages("halt")]
    assert told == [("SIGINT", GRACE_S)] * 2 + [("SIGKILL", 0)] * 2
    assert clock() - began_s < 4.0


def test_the_first_signal_is_how_it_ends(world: Attempts) -> None:
    """Somebody who presses Ctrl-C while SIGTERM is obeyed changes the pace, not the reason."""
    world.crew.stubborn = set(TWO)
    world.script(lambda: world.crew.signal("SIGTERM"), lambda: world.crew.signal("SIGINT", 2.0))
    assert world.fails(Interrupted).name == "SIGTERM"


def test_a_third_ctrl_c_waits_for_nobody(world: Attempts, clock: FakeClock) -> None:
    """A host that tells nothing any more cannot keep a person, and `done` ends what is left."""
    world.script(
        lambda: leave(world, *TWO),
        *(lambda after_s=after_s: world.crew.signal("SIGINT", after_s) for after_s in (1, 2, 3)),
    )
    began_s = clock()
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert clock() - began_s < 4.0
    assert world.crew.told("done") == ["done w/0", "done w/1"]


def test_a_signal_while_failed_ranks_end(world: Attempts, clock: FakeClock) -> None:
    """They are made to end, too; nobody waits for their grace time, and the signal is how it ends."""
    world.crew.stubborn = {"w/1"}
    world.script(lambda: world.crew.exit(0, 4), lambda: world.crew.signal("SIGINT", 2.0))
    began_s = clock()
    assert world.fails(Interrupted).name == "SIGINT"
    assert [order["signal"] for order in world.crew.messages("halt")] == [
        *["SIGTERM"] * 2,
        *["SIGKILL"] * 2,
    ]
    assert clock() - began_s < 4.0
