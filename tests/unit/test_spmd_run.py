"""A whole run: restarts and what counts as one, fewer and more hosts, signals, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import (
    AllocationEndedError,
    DeadlineError,
    HostFailedError,
    RanksFailedError,
    SpecError,
)
from milkweed.spmd.inbox import Interrupted
from milkweed.testing import FakeClock
from unit.crews import Runs

INFINITE = float("inf")


@pytest.fixture
def world(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    for name in ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Runs(clock, monkeypatch)


# The plain case


def test_a_run_that_succeeds(world: Runs) -> None:
    """One attempt, two events, and the crew leaves."""
    world.run("--nnodes=2", world.succeed)
    assert world.attempts == [["w/0", "w/1"]]
    assert world.told == [
        ("ranks started", "on w/0, w/1"),
        ("ranks ended", "all 2 succeeded"),
    ]


def test_a_run_without_events(world: Runs) -> None:
    """An allocation that nobody records has nowhere to tell."""
    world.run("--nnodes=2", world.succeed, events=None)
    assert world.told == []


def test_runs_have_names_of_their_own(world: Runs) -> None:
    """Two runs on the same hosts never take each other's messages for their own."""
    world.run("", world.succeed)
    world.run("", world.succeed)
    first, second = world.crew.messages("launch")
    assert first["id"] != second["id"]
    assert first["folder"] != second["folder"]


def test_what_ranks_are_given(world: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's own variables, those of the program over them, and --set-env over all; then the folder."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTHON_EXEC", "/a/python")
    given = {"A": "program", "B": "program", "OMP_NUM_THREADS": "4"}
    world.run("--set-env A=said", world.succeed, env=given, wrapper=("w.sh",), cwd="/there")
    [order] = world.crew.messages("launch")
    expected = {"A": "said", "B": "program", "OMP_NUM_THREADS": "4", "PYTHON_EXEC": "/a/python"}
    assert {key: order["env"].get(key) for key in expected} == expected
    assert "PATH" not in order["env"]
    assert (order["cwd"], order["argv"][0]) == ("/there", "w.sh")
    world.run("", world.succeed)
    assert world.crew.messages("launch")[-1]["cwd"] == os.getcwd()


def test_a_prefix_of_ones_own(
    world: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable that changes torchrun's prefix changes ours: at the terminal, and in filtered files."""
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name}.${local_rank}> ")
    message = {"rank": "1", "host": "w/1", "stream": "out", "lines": ["hello"]}
    world.run("--nnodes=2", world.succeed)
    assert world.crew.messages("launch")[1]["ranks"][0]["prefix"] == "<default.0> "
    world.crew.show(message)
    assert capsys.readouterr().out == "<default.0> hello\n"


def test_notes_are_told_first(world: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """What was said and has no effect is told; also that hosts do not take part."""
    world.run("--start-method=fork", world.succeed)
    assert capsys.readouterr().err == (
        "milkweed: 1 of the 3 hosts of w takes part (--nnodes)\n"
        "milkweed: --start-method fork: has no effect, since every process is a program of its own\n"
    )


def test_more_hosts_than_there_are(world: Runs) -> None:
    """It can never come true, so nothing is begun."""
    world.crew.closed = True
    with pytest.raises(SpecError) as caught:
        world.run("--nnodes=4:5")
    assert str(caught.value) == (
        "--nnodes asks for 4 hosts, and mesh 'w' has 3\n"
        "  do:   say --nnodes 3, or give the mesh more hosts"
    )
    assert world.crew.orders == []


# Restarts


def test_failures_are_counted(world: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """All ranks start again on all hosts, know how often, and the last attempt may succeed."""
    world.run("--nnodes=2 --max-restarts=2", world.fail, world.fail, world.succeed)
    assert world.attempts == [["w/0", "w/1"]] * 3
    assert world.counts == ["0", "1", "2"]
    who = "rank 1 (local rank 0 on host w/1) exited with code 3"
    assert [line for line in capsys.readouterr().err.splitlines() if "restart" in line] == [
        f"milkweed: {who}; restart 1 of 2",
        f"milkweed: {who}; restart 2 of 2",
    ]
    assert [what for what, _ in world.told] == [
        *("ranks started", "ranks restart", "ranks started", "ranks restart"),
        *("ranks started", "ranks ended"),
    ]


@pytest.mark.parametrize(
    ("line", "attempts", "words"),
    [
        ("--nnodes=2", 1, ""),
        ("--nnodes=2 --max-restarts=1", 2, ", after 1 restart"),
        ("--nnodes=2:3 --max-restarts=2", 3, ", after 2 restarts"),
    ],
)
def test_restarts_come_to_an_end(world: Runs, line: str, attempts: int, words: str) -> None:
    """A rank that fails once more than it may ends the run; elastic runs count failures, too."""
    with pytest.raises(RanksFailedError) as caught:
        world.run(line, *[world.fail] * 9)
    assert len(world.attempts) == attempts
    assert caught.value.what == f"rank 1 (local rank 0 on host w/1) exited with code 3{words}"
    assert world.told[-1] == (
        "ranks failed",
        "rank 1 (local rank 0 on host w/1) exited with code 3",
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ('{"message": {"message": "E"}}', {"message": {"message": "E", "errorCode": 3}}),
        ('{"message": "E"}', {"message": "E"}),
        ("no JSON", None),
        ("", None),
    ],
)
def test_what_a_rank_recorded_is_handed_on(
    world: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, expected: Any
) -> None:
    """Whoever started this very program may have named a file for it, as torchrun's own caller does."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(RanksFailedError):
        world.run("--nnodes=2", lambda: world.crew.exit(1, 3, error=error))
    assert (json.loads(path.read_text()) if path.exists() else None) == expected


def test_a_file_that_cannot_be_written_hides_no_failure(
    world: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is the same."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no/such/folder"))
    with pytest.raises(RanksFailedError, match="exited with code 3"):
        world.run("--nnodes=2", lambda: world.crew.exit(1, 3, error='{"message": "E"}'))


def test_logs_are_by_restart_and_ids_by_attempt(world: Runs) -> None:
    """Attempts never share an id, though a lost host is no restart."""
    world.run("--nnodes=1:3 --max-restarts=1", world.lose, world.fail, world.succeed)
    orders = {order["id"]: order["attempt"] for order in world.crew.messages("launch")}
    assert [number.rpartition(".")[2] for number in orders] == ["0", "1", "2"]
    assert list(orders.values()) == [0, 0, 1]


# Hosts are lost


def test_elastic_runs_go_on_with_fewer_hosts(
    world: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """With enough hosts left it begins anew at once, and that is no restart."""
    world.run("--nnodes=2:3", world.lose, world.succeed)
    assert world.attempts == [["w/0", "w/1", "w/2"], ["w/0", "w/2"]]
    assert world.counts == ["0", "0"]
    assert world.crew.revived == 1
    assert (
        "milkweed: host w/1 is lost: it is down; going on with 2 hosts\n" in capsys.readouterr().err
    )


def test_elastic_runs_wait_for_the_fewest_hosts(
    world: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """With too few left it waits, and not for ever; that is no restart either."""
    world.crew.gatherings = [["w/0", "w/1"], ["w/0", "w/2"]]
    world.crew.present = ["w/0", "w/1"]
    world.run("--nnodes=2:3", world.lose, world.succeed)
    assert world.counts == ["0", "0"]
    assert [asked["timeout_s"] for asked in world.crew.gathered] == [INFINITE, 600.0]
    assert "host w/1 is lost: it is down; waiting for 2 hosts" in capsys.readouterr().err


def test_a_fixed_number_without_restarts_ends(world: Runs) -> None:
    """The host is named, with the reason and what one could do."""
    with pytest.raises(HostFailedError) as caught:
        world.run("--nnodes=2", world.lose)
    assert str(caught.value) == (
        "host w/1 was lost while ranks ran there\n"
        "  seen: it is down\n"
        "  do:   --nnodes MIN:MAX goes on with fewer hosts, --max-restarts waits for them"
    )
    assert world.told[-1] == ("ranks failed", "host w/1 is lost: it is down")


def test_a_fixed_number_counts_lost_hosts(world: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """A lost host is a restart there, and the same number is waited for."""
    world.run("--nnodes=2 --max-restarts=1", world.lose, world.succeed)
    assert world.counts == ["0", "1"]
    assert world.attempts == [["w/0", "w/1"], ["w/0", "w/2"]]
    assert "host w/1 is lost: it is down; waiting for 2 hosts" in capsys.readouterr().err


def test_losses_and_failures_use_the_same_restarts(world: Runs) -> None:
    """One that was used for a host is not there for a rank."""
    with pytest.raises(RanksFailedError, match="after 1 restart"):
        world.run("--nnodes=2 --max-restarts=1", world.lose, lambda: world.crew.exit(0, 1))


def test_hosts_that_come_are_taken_in(world: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that is back, or new, takes part from the next attempt on; that is no restart."""
    world.run("--nnodes=1:3", world.lose, world.come, world.succeed)
    assert [len(hosts) for hosts in world.attempts] == [3, 2, 3]
    assert world.counts == ["0", "0", "0"]
    assert "milkweed: more hosts are there\n" in capsys.readouterr().err


# Waiting for hosts


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        ("", (INFINITE, 30.0), (600.0, 30.0)),
        ("--rdzv-conf join_timeout=7,last_call_timeout=2", (7.0, 2.0), (7.0, 2.0)),
        ("--rdzv-conf timeout=9", (9.0, 30.0), (9.0, 30.0)),
    ],
)
def test_how_long_hosts_are_waited_for(
    world: Runs, line: str, first: tuple[float, float], second: tuple[float, float]
) -> None:
    """A queue is waited for as long as it takes; later, and when something was said, not for ever."""
    world.run(f"--nnodes=1:2 --max-restarts=1 {line}", world.fail, world.succeed)
    common = {"least": 1, "most": 2}
    assert world.crew.gathered == [
        {**common, "timeout_s": timeout_s, "last_call_s": last_call_s}
        for timeout_s, last_call_s in (first, second)
    ]


@pytest.mark.parametrize("error", [AllocationEndedError("over"), DeadlineError("late")])
def test_hosts_that_never_come(world: Runs, error: Exception) -> None:
    """What gathering says is what the run says; also between two attempts."""
    world.crew.gatherings = [["w/0"], error]
    with pytest.raises(type(error)):
        world.run("--max-restarts=1", lambda: world.crew.exit(0, 1))
    assert world.crew.told("done") == ["done w/0"]


@pytest.mark.parametrize("error", [DeadlineError("late"), Interrupted("SIGINT")])
def test_that_hosts_are_there_is_told_before_ranks_start(world: Runs, error: Exception) -> None:
    """Each time, and not where they never came: whoever asked for them knows what was used."""
    told: list[int] = []

    def tell() -> None:
        told.append(len(world.attempts))

    world.run("--nnodes=2 --max-restarts=1", world.fail, world.succeed, gathered=tell)
    assert told == [0, 1]
    world.crew.gatherings = [error]
    with pytest.raises((DeadlineError, KeyboardInterrupt)):
        world.run("", gathered=tell)
    assert told == [0, 1]
