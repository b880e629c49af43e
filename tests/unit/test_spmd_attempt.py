"""One attempt, with hosts that are made up: who is told what and when, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milkweed.errors import AllocationEndedError, DeadlineError, SpecError
from milkweed.spmd.attempt import ANSWER_S, SLACK_S, Ending, Outcome
from milkweed.spmd.inbox import Interrupted
from milkweed.testing import FakeClock
from unit.crews import GRACE_S, PORT, TWO, Attempts, make_exit


@pytest.fixture
def world(clock: FakeClock) -> Attempts:
    return Attempts(clock)


# Starting


def test_orders_of_an_attempt_that_succeeds(world: Attempts) -> None:
    """All hosts prepare before one launches; nobody is halted, and all are told the end."""
    world.script(world.crew.exit_all)
    assert world.run() == Outcome(ending=Ending.DONE, size=4)
    assert world.crew.told() == [
        *("prepare w/0", "prepare w/1"),
        *("launch w/0", "launch w/1"),
        *("done w/0", "done w/1"),
    ]
    assert {message["id"] for _, _, message in world.crew.orders} == {"T.0"}
    assert world.crew.begun == ["T.0"]


def test_only_the_first_host_is_asked_for_a_port(world: Attempts) -> None:
    """Rank 0's host holds it, and all ranks are told."""
    world.script(world.crew.exit_all)
    world.run(["w/1", "w/0"])
    assert [message["port"] for message in world.crew.messages("prepare")] == [True, False]
    envs = [rank["env"] for order in world.crew.messages("launch") for rank in order["ranks"]]
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs} == {("n1", str(PORT))}


def test_a_port_that_was_said_is_not_asked_for(world: Attempts) -> None:
    """`--master-addr` and `--master-port` are the person's."""
    world.line = "--nnodes=2 --master-addr=node7 --master-port=29500"
    world.script(world.crew.exit_all)
    world.run()
    assert [message["port"] for message in world.crew.messages("prepare")] == [False, False]
    env = world.crew.messages("launch")[1]["ranks"][0]["env"]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("node7", "29500")


def test_one_host_may_have_an_address_of_its_own(world: Attempts) -> None:
    """`--local-addr` is where rank 0 listens when there is one host."""
    world.line = "--local-addr=10.0.0.3"
    world.script(world.crew.exit_all)
    world.run(["w/0"])
    env = world.crew.messages("launch")[0]["ranks"][0]["env"]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.3", str(PORT))


def test_hosts_that_differ(world: Attempts, capsys: pytest.CaptureFixture[str]) -> None:
    """Each host says how many ranks it takes, and lines are shown with the right local rank."""
    world.line = "--nnodes=2 --nproc-per-node=gpu"
    world.crew.nproc = {"w/0": 1, "w/1": 3}
    world.script(world.crew.exit_all)
    assert world.run().size == 4
    assert {message["nproc"] for message in world.crew.messages("prepare")} == {"gpu"}
    ranks = [[rank["rank"] for rank in order["ranks"]] for order in world.crew.messages("launch")]
    assert ranks == [[0], [1, 2, 3]]
    world.console.take({"rank": "2", "host": "w/1", "lines": ["x"], "stream": "out"})
    assert capsys.readouterr().out == "[2.1]:x\n"


def test_all_of_a_launch(world: Attempts) -> None:
    """What a host is told besides its ranks."""
    world.line = (
        "--nnodes=2 --rdzv-id=a/b --log-dir=/logs --virtual-local-rank --numa-binding=node"
        " --duplicate-stdout-filters=x,y"
    )
    world.settings = {"env": {"A": "1"}, "shell": {"B": "2"}}
    world.script(world.crew.exit_all)
    world.run(restarts=2, attempt=5)
    first, second = world.crew.messages("launch")
    ranks = first["ranks"]
    assert first == {
        "op": "launch",
        "id": "T.5",
        "argv": [None, "-u", "t.py"],
        "fixed": 1,
        "env": {"A": "1"},
        "shell": {"B": "2"},
        "cwd": "/here",
        "log_dir": "/logs",
        "errors": True,
        "folder": "a_b_T_w_0",
        "attempt": 2,
        "filters": {"out": ["x", "y"], "err": []},
        "numa": "node",
        "virtual": True,
        "ranks": ranks,
    }
    assert [rank["env"]["TORCHELASTIC_RESTART_COUNT"] for rank in ranks] == ["2", "2"]
    assert second["folder"] == "a_b_T_w_1"


UNLIKE = """\
milkweed: CUDA_X, NCCL_DEBUG of your shell are not what ranks have: --set-env NAME=VALUE hands it on
"""


@pytest.mark.parametrize(("attempt", "expected"), [(0, UNLIKE), (1, "")])
def test_variables_that_may_be_missed_are_named_once(
    world: Attempts, capsys: pytest.CaptureFixture[str], attempt: int, expected: str
) -> None:
    """Hosts elsewhere say which well-known variables they have otherwise."""
    world.settings = {"known": {"NCCL_DEBUG": "INFO", "CUDA_X": "1"}}
    world.crew.unlike = {"w/0": ["NCCL_DEBUG"], "w/1": ["NCCL_DEBUG", "CUDA_X"]}
    world.script(world.crew.exit_all)
    world.run(attempt=attempt)
    told = {str(order["known"]) for order in world.crew.messages("prepare")}
    assert told == {str(world.settings["known"])}
    assert capsys.readouterr().err == expected


def test_no_files_at_all(world: Attempts) -> None:
    """`--log-dir /dev/null`: no folder is named, and no file for errors."""
    world.line = "--nnodes=2 --log-dir=/dev/null"
    world.script(world.crew.exit_all)
    world.run()
    order = world.crew.messages("launch")[0]
    assert (order["log_dir"], order["errors"]) == (None, False)


@pytest.mark.parametrize(
    ("env", "python"), [({}, "python"), ({"PYTHON_EXEC": "/opt/python"}, None)]
)
def test_a_wrapper_has_its_own_python(world: Attempts, env: dict[str, str], python: Any) -> None:
    """What a wrapper sets up is meant, unless the person names a Python."""
    world.settings = {"wrapper": ("env.sh",), "env": env}
    world.script(world.crew.exit_all)
    world.run()
    order = world.crew.messages("launch")[0]
    assert (order["argv"], order["fixed"]) == (["env.sh", python, "-u", "t.py"], 2)


@pytest.mark.parametrize("op", ["prepare", "launch"])
def test_what_a_host_cannot_do_is_an_error(world: Attempts, op: str) -> None:
    """Its own words are told with its name, and no rank stays anywhere."""
    world.crew.errors[op, "w/1"] = "there is no folder /here"
    error = world.fails(SpecError)
    assert str(error) == "host w/1 cannot start ranks: there is no folder /here"


def test_ranks_of_others_end_when_one_host_cannot_start_its_own(world: Attempts) -> None:
    """The host that could start ranks is told to end them."""
    world.crew.errors["launch", "w/1"] = "no"
    world.fails(SpecError)
    assert "halt w/0" in world.crew.told()


def test_an_error_of_launching_is_told_at_once(world: Attempts, clock: FakeClock) -> None:
    """Nobody waits for the end of ranks that the host could not start."""
    world.crew.errors["launch", "w/1"] = "no"
    began_s = clock()
    world.fails(SpecError)
    assert clock() - began_s < SLACK_S


@pytest.mark.parametrize("op", ["prepare", "launch"])
def test_a_host_that_does_not_answer(world: Attempts, clock: FakeClock, op: str) -> None:
    """It is named after a minute, and what was started elsewhere ends."""
    world.crew.silent = {(op, "w/1")}
    began_s = clock()
    error = world.fails(DeadlineError)
    assert str(error) == "hosts did not start their ranks within 60 s: w/1"
    assert clock() - began_s >= ANSWER_S


def test_answers_of_another_attempt_do_not_count(world: Attempts) -> None:
    """What comes late is of no use now."""
    late = {"id": "T.9", "host": "w/1", "nproc": 7, "port": 1, "error": "late"}
    words = ("prepared", "launched")
    world.crew.on_begin = lambda: (
        [world.crew.inbox.put({"ev": word, **late}) for word in words] and None
    )
    end = make_exit("T.9", 0, 1, ("w/0", 0), 0.0, {})
    world.script(lambda: world.crew.inbox.after(0.5, end), world.crew.exit_all)
    assert world.run() == Outcome(ending=Ending.DONE, size=4)


def test_unknown_words_are_passed_over(world: Attempts) -> None:
    """A newer keeper may say more."""
    words = ("ending", "proc", "error", "news")
    world.crew.on_begin = lambda: (
        [world.crew.inbox.put({"ev": word, "what": "?"}) for word in words] and None
    )
    world.script(world.crew.exit_all)
    assert world.run().ending is Ending.DONE


def test_what_was_heard_before_is_forgotten(world: Attempts) -> None:
    """Also when it is of this very attempt, or a host that is back was lost."""
    world.crew.inbox.put({"ev": "prepared", "id": "T.0", "host": "w/1", "error": "early"})
    world.crew.inbox.put({"ev": "lost", "host": "w/1", "reason": "it was down"})
    world.script(world.crew.exit_all)
    assert world.run().ending is Ending.DONE


# Events


def test_events_of_ranks(world: Attempts, capsys: pytest.CaptureFixture[str]) -> None:
    """Every rank's start and end is an event, once."""
    world.events = "console"
    world.crew.nproc = dict.fromkeys(TWO, 1)
    world.script(lambda: world.crew.exit(0, 0), lambda: world.crew.exit(1, 3))
    world.run()
    found = [json.loads(line)["metadata"] for line in capsys.readouterr().err.splitlines()]
    told = [(data["state"], data["global_rank"], data.get("exit_code")) for data in found]
    assert told == [("START", 0, None), ("START", 1, None), ("SUCCEEDED", 0, 0), ("FAILED", 1, 3)]


def test_ranks_that_end_before_all_hosts_have_launched_did_start(
    world: Attempts, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every rank has its START, before its end, however short it is."""
    world.events = "console"
    world.crew.nproc = dict.fromkeys(TWO, 1)
    world.crew.silent = {("launch", "w/1")}
    world.script(
        lambda: world.crew.exit(0, 0, 0.5),
        lambda: world.crew.inbox.after(1.0, make_exit("T.0", 1, 0, ("w/1", 0), 0.0, {})),
        lambda: world.crew.inbox.after(2.0, {"ev": "launched", "id": "T.0", "host": "w/1"}),
    )
    world.run()
    found = [json.loads(line)["metadata"] for line in capsys.readouterr().err.splitlines()]
    told = [(data["state"], data["global_rank"]) for data in found]
    assert told == [("START", 0), ("SUCCEEDED", 0), ("START", 1), ("SUCCEEDED", 1)]


# Growing


def test_more_hosts(world: Attempts, clock: FakeClock) -> None:
    """When another host is there and may take part, ranks end so that all can begin anew."""
    world.line = "--nnodes=1:3"
    world.crew.on_look = lambda: world.crew.present.append("w/2")
    outcome = world.run()
    assert (outcome.ending, outcome.failures) == (Ending.GROWN, ())
    assert world.crew.told("halt", "done") == ["halt w/0", "halt w/1", "done w/0", "done w/1"]
    assert {message["signal"] for message in world.crew.messages("halt")} == {"SIGTERM"}
    assert not world.crew.live


def test_enough_hosts_are_enough(world: Attempts) -> None:
    """With all hosts that may take part, nobody is looked for."""
    world.line = "--nnodes=1:2"
    world.script(lambda: world.crew.exit_all(after_s=100.0))
    assert world.run().ending is Ending.DONE
    assert world.crew.looks == 0


def test_hosts_are_not_looked_for_all_the_time(world: Attempts) -> None:
    """Every three seconds, and the same hosts are no news."""
    world.line = "--nnodes=1:3"
    world.script(lambda: world.crew.exit_all(after_s=30.0))
    assert world.run().ending is Ending.DONE
    assert 5 <= world.crew.looks <= 10


def test_an_allocation_that_ends_while_ranks_run(world: Attempts) -> None:
    """What the scheduler says is told, after what is left has ended."""
    world.line = "--nnodes=1:3"

    def over() -> None:
        raise AllocationEndedError("it has ended", seen="CANCELLED")

    world.crew.on_look = over
    assert world.fails(AllocationEndedError).seen == "CANCELLED"
    assert world.crew.told("halt") == ["halt w/0", "halt w/1"]


# Signals


@pytest.mark.parametrize("after_s", [0.0, 0.001])
def test_a_signal_before_ranks_run(world: Attempts, after_s: float) -> None:
    """While hosts prepare: nothing was started, so nothing is halted."""
    world.crew.silent = {("prepare", "w/1")}
    world.crew.on_begin = lambda: world.crew.signal("SIGINT", after_s)
    assert world.fails(Interrupted).name == "SIGINT"
    assert world.crew.told("launch", "halt") == []


def test_a_signal_before_it_begins(world: Attempts) -> None:
    """What else came before is forgotten, and a signal is not; nobody is told anything."""
    world.crew.inbox.put({"ev": "news"})
    world.crew.signal("SIGTERM", 0.0)
    with pytest.raises(Interrupted, match="SIGTERM"):
        world.run()
    assert world.crew.orders == []


def test_a_signal_while_ranks_are_launched(world: Attempts) -> None:
    """What may have been started is ended on all hosts, also where the answer is missing."""
    world.crew.silent = {("launch", "w/1")}
    world.script(lambda: world.crew.signal("SIGTERM"))
    world.fails(Interrupted)
    assert world.crew.told("halt") == ["halt w/0", "halt w/1"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_while_ranks_run(world: Attempts, name: str) -> None:
    """The same signal goes to all ranks, and they have time to end."""
    world.line = "--nnodes=2 --signals-to-handle=SIGINT,SIGTERM,SIGHUP,SIGUSR1"
    world.script(lambda: world.crew.signal(name))
    assert world.fails(Interrupted).name == name
    orders = world.crew.messages("halt")
    assert [(order["signal"], order["grace_s"]) for order in orders] == [(name, GRACE_S)] * 2


def test_ctrl_c_without_a_handler(world: Attempts) -> None:
    """In a thread that hears no signals, KeyboardInterrupt may come from anywhere, and does the same."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.script(lambda: world.crew.inbox.after(1.0, interrupt))
    world.fails(KeyboardInterrupt)
    assert {order["signal"] for order in world.crew.messages("halt")} == {"SIGINT"}
