"""What Slurm says, as a status with a reason that a person can act on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm.places import Place, make_places
from milkweed.backends.slurm.status import (
    describe_row,
    explain_end,
    judge_host,
    make_status,
)
from milkweed.backends.slurm.text import Mark, render_mark
from milkweed.status import HostState, Liveness, Status
from unit.slurm_fake import APPLY_ID, FakeSlurm, node, part, row, shown, write_log

CORPUS = Path(__file__).parents[1] / "corpus" / "slurm"
LOST = "slurm_load_jobs error: Invalid job id specified\n"


# All components together


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["RUNNING"], Liveness.RUNNING),
        (["PENDING"], Liveness.PENDING),
        (["COMPLETING"], Liveness.UNKNOWN),
        (["CANCELLED"], Liveness.ENDED),
        (["RUNNING", "PENDING"], Liveness.RUNNING),
        (["PENDING", "RUNNING"], Liveness.RUNNING),
        (["CANCELLED", "RUNNING"], Liveness.RUNNING),
        (["FAILED", "PENDING"], Liveness.PENDING),
        (["COMPLETING", "CANCELLED"], Liveness.UNKNOWN),
        (["COMPLETING", "PENDING"], Liveness.PENDING),
        (["FAILED", "COMPLETED"], Liveness.ENDED),
        (["NEW_WORD"], Liveness.UNKNOWN),
        (["NEW_WORD", "COMPLETED"], Liveness.UNKNOWN),
    ],
)
def test_an_allocation_lives_as_long_as_one_component(
    states: list[str], expected: Liveness
) -> None:
    """It has ended only when all have, and a word that nobody knows is never an end."""
    rows = [row(component=number, state=state) for number, state in enumerate(states)]
    assert make_status(rows).liveness is expected


def test_a_running_job_needs_no_reason() -> None:
    """Nothing is the matter."""
    assert make_status([row(nodes=("n1",))]).reason == ""


def test_what_still_waits_is_told_though_others_run() -> None:
    """Added hosts that wait in the queue are why not all are there."""
    rows = [row(), row(job_id=9, component=1, state="PENDING", reason="Priority")]
    status = make_status(rows)
    assert status.liveness is Liveness.RUNNING
    assert status.reason.startswith("Slurm job 9 is PENDING, reason Priority: ")


def test_the_expected_start_is_that_of_the_last_component() -> None:
    """Everything is there when the last one is; what runs already is no expectation."""
    rows = [
        row(state="PENDING", start=2_000_000_000.0),
        row(component=1, state="PENDING", start=2_000_003_600.0),
        row(component=2, state="PENDING"),
        row(component=3, start=2_000_009_999.0),
    ]
    expected = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(2_000_003_600.0))
    assert make_status(rows).expected_start == expected
    assert make_status([row()]).expected_start == ""


def test_details_have_the_jobs_and_the_time_left() -> None:
    """The component with the least time decides."""
    rows = [row(time_left_s=90.4), row(job_id=8, component=1, time_left_s=60.0), row(component=2)]
    assert make_status(rows).details == {"slurm_jobs": "7, 8, 7", "time_left_s": "60"}
    assert make_status([row()]).details == {"slurm_jobs": "7"}


# One job in one line


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("RUNNING", "", "Slurm job 7 is RUNNING: it runs"),
        (
            "PENDING",
            "Priority",
            (
                "Slurm job 7 is PENDING, reason Priority: it waits in the queue: "
                "jobs of higher priority come first; nothing to do but wait"
            ),
        ),
        ("PENDING", "None", "Slurm job 7 is PENDING: it waits in the queue"),
        ("CANCELLED", "JobHeldUser", "Slurm job 7 is CANCELLED: it was cancelled"),
        ("TIMEOUT", "TimeLimit", "Slurm job 7 is TIMEOUT: its time limit was reached"),
        ("BLURRED", "", "Slurm job 7 is BLURRED"),
        ("BLURRED", "Fog", "Slurm job 7 is BLURRED, reason Fog"),
    ],
)
def test_a_job_in_one_line(state: str, reason: str, expected: str) -> None:
    """Slurm's own words first, for whoever looks them up, then plain ones; why it once waited is no news."""
    assert describe_row(row(state=state, reason=reason)) == expected


def test_a_failed_job_has_its_reason() -> None:
    """Of all ends only a failure has a reason of its own."""
    text = describe_row(row(state="FAILED", reason="NonZeroExitCode"))
    assert text.startswith("Slurm job 7 is FAILED, reason NonZeroExitCode: it failed")


# How it ended


def end(folder: Path, *rows: Any, jobs: tuple[int, ...] = (7,)) -> Status:
    status = explain_end(rows, jobs, folder, {0: part("w/0", logs=str(folder))})
    assert status.liveness is Liveness.ENDED
    return status


def test_slurm_tells_how_it_ended(slurm: FakeSlurm, tmp_path: Path) -> None:
    """While Slurm remembers the job, its own word and exit code are the end's."""
    slurm.answer("scontrol", shown(state="FAILED", code="3:0", reason="NonZeroExitCode"))
    status = end(tmp_path, row(state="FAILED"))
    assert status.exit_code == 3
    assert status.reason.startswith("Slurm job 7 is FAILED, reason NonZeroExitCode")
    assert slurm.calls == [["scontrol", "show", "job", "-o", "7"]]


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_the_end_of_real_jobs(slurm: FakeSlurm, tmp_path: Path, version: str) -> None:
    """What a real Slurm prints for a node that failed is told in its words and in plain ones."""
    slurm.answer("scontrol", (CORPUS / version / "scontrol-node-fail.txt").read_text())
    assert "is NODE_FAIL: a node failed" in end(tmp_path, row(state="NODE_FAIL")).reason


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_an_end_from_outside_has_no_exit_code(slurm: FakeSlurm, tmp_path: Path, state: str) -> None:
    """The code of a script that was ended by Slurm says nothing about the program."""
    slurm.answer("scontrol", shown(state=state, code="0:15"))
    assert end(tmp_path, row(state=state)).exit_code is None


def test_the_component_that_failed_is_told_first(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Those that ended in order are not why the allocation ended."""
    slurm.answer("scontrol", shown(7) + shown(8, state="FAILED", code="5:0"))
    status = end(tmp_path, row(state="COMPLETED"), jobs=(7, 8))
    assert (status.exit_code, "Slurm job 8 is FAILED" in status.reason) == (5, True)


def test_what_slurm_forgot_may_be_in_the_accounting(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A job that the controller no longer has is looked up where old jobs are kept."""
    slurm.answer("scontrol", err=LOST, code=1)
    (tmp_path / "mark-7").write_text(render_mark(Mark(APPLY_ID, 0, 0, "demo")))
    slurm.answer(
        "sacct",
        "7|7|CANCELLED by 1000|0:0|n1|2026-11-16T03:56:08|2026-11-16T03:56:14|01:00:00|debug|None||demo\n",
    )
    status = end(tmp_path)
    assert status.reason == "Slurm job 7 is CANCELLED by 1000: it was cancelled"
    assert slurm.called("sacct")[0][:5] == ["-n", "-P", "-X", "-j", "7"]


def test_without_accounting_the_queues_own_row_is_told(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Where nobody remembers more, what the queue said last is still true."""
    slurm.answer("scontrol", err=LOST, code=1)
    slurm.answer("sacct", err="Slurm accounting storage is disabled\n", code=1)
    assert end(tmp_path, row(state="TIMEOUT")).reason.startswith("Slurm job 7 is TIMEOUT")


def test_nobody_remembers(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A job that is gone everywhere has ended, and that is all that can be said."""
    slurm.answer("scontrol", err=LOST, code=1)
    slurm.answer("sacct", err="Slurm accounting storage is disabled\n", code=1)
    status = end(tmp_path, jobs=(7, 9))
    assert status == Status(
        liveness=Liveness.ENDED, reason="Slurm has no trace of job 7, 9 any more"
    )


def test_without_the_commands_an_end_is_still_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Explaining is a help; that it fails is no reason to fail."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert end(tmp_path, row(state="FAILED")).reason.startswith("Slurm job 7 is FAILED")


@pytest.mark.parametrize("text", ["garbage", "JobId=7 JobName=x", ""])
def test_words_that_cannot_be_read_are_passed_over(
    slurm: FakeSlurm, tmp_path: Path, text: str
) -> None:
    """A Slurm whose words are not understood does not break the telling of an end."""
    slurm.answer("scontrol", text)
    slurm.answer("sacct", "also garbage")
    assert end(tmp_path, row(state="FAILED")).reason.startswith("Slurm job 7 is FAILED")


def test_keepers_tell_why_they_ended(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Each reason once; that Slurm ended them is no reason, and a damaged file says nothing."""
    slurm.answer("scontrol", shown())
    words = ["nobody was connected for 60 s", "nobody was connected for 60 s", "asked by SIGTERM"]
    for number, reason in enumerate(words):
        write_log(tmp_path / f"ended-0.0.{number}.json", json.dumps({"reason": reason}))
    write_log(tmp_path / "ended-0.0.9.json", "{")
    write_log(tmp_path / "ended-0.0.8.json", "{}")
    lines = end(tmp_path, row(state="COMPLETED")).reason.splitlines()
    assert lines[1:] == ["nobody was connected for 60 s"]


def test_a_failure_shows_the_end_of_the_jobs_log(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The last lines of what Slurm said of the tasks, without what it always says."""
    slurm.answer("scontrol", shown(state="FAILED", code="1:0"))
    said = [f"line {number}" for number in range(9)]
    noise = "srun: cluster configuration lacks support for cpu binding"
    write_log(tmp_path / "part.0.0.log", "\n".join([*said, noise]) + "\n")
    lines = end(tmp_path, row(state="FAILED")).reason
    assert lines.splitlines()[1:] == [
        "the end of the job's own log:",
        *(f"  {text}" for text in said[-6:]),
    ]


def test_an_end_in_order_shows_no_log(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Nobody needs the log of what went well."""
    slurm.answer("scontrol", shown())
    write_log(tmp_path / "part.0.0.log", "all is well\n")
    status = end(tmp_path, row(state="COMPLETED"))
    assert (status.exit_code, "all is well" in status.reason) == (0, False)


# One host


def place(tmp_path: Path, *, hosts: int = 3, index: int = 1, **job: Any) -> Place:
    labels = [f"w/{number}" for number in range(hosts)]
    nodes = tuple(f"n{number}" for number in range(1, hosts + 1))
    made = row(**{"nodes": nodes, **job})
    return make_places([made], {0: part(*labels, logs=str(tmp_path))})[index]


def test_a_host_that_does_not_answer_yet_is_starting(tmp_path: Path) -> None:
    """Silence alone is no failure; what was tried is the reason."""
    found = judge_host(place(tmp_path), "connection refused", {"n2": node("n2")})
    assert (found.host, found.state, found.reason) == (
        "w/1",
        HostState.STARTING,
        "connection refused",
    )


def test_a_host_without_a_node_waits_with_its_job(tmp_path: Path) -> None:
    """Slurm's reason for the wait is the host's."""
    found = judge_host(place(tmp_path, state="PENDING", reason="Priority"), "x", {})
    assert found.state is HostState.STARTING
    assert "Slurm job 7 is PENDING, reason Priority" in found.reason


def test_a_host_whose_node_left_the_job_is_lost(tmp_path: Path) -> None:
    """Some time after a node has died, Slurm takes it out of the job that goes on without it."""
    whole = part(
        "w/0", "w/1", logs=str(tmp_path), nodes={"0": "n1", "1": "n2"}, nodes_start=row().start
    )
    left = make_places([row(nodes=("n1",))], {0: whole})
    lost = judge_host(left[1], "x", {})
    assert lost.state is HostState.FAILED
    assert lost.reason == "its node n2 is no longer part of Slurm job 7"


def test_a_host_that_slurm_does_not_know(tmp_path: Path) -> None:
    """Its job is not listed: it has not begun, or is over."""
    [nowhere] = make_places([], {0: part("w/0", logs=str(tmp_path))})
    assert judge_host(nowhere, "x", {}).reason == "it is not in Slurm"


def test_a_task_that_ended_is_a_failed_host(tmp_path: Path) -> None:
    """What srun says of the task, and the last lines that this task wrote."""
    write_log(
        tmp_path / "part.0.0.log",
        "0: other\n1: first\n1: Traceback\n2: other\n1: ImportError: no monarch\n"
        "srun: error: n2: task 1: Exited with exit code 1\n",
    )
    found = judge_host(place(tmp_path), "x", {})
    assert found.state is HostState.FAILED
    assert found.reason.splitlines() == [
        "its task on node n2 ended: Exited with exit code 1",
        "first",
        "Traceback",
        "ImportError: no monarch",
    ]


def test_a_task_that_ended_without_a_word_has_the_end_of_its_hosts_log(tmp_path: Path) -> None:
    """A keeper that was killed says nothing to Slurm: what its host wrote in this run is shown, and no other's."""
    write_log(tmp_path / "part.0.0.log", "0: other\nsrun: error: n2: task 1: Killed\n")
    for number in range(3):
        write_log(tmp_path / f"w.{number}.log", f"of w/{number}\n")
    ended = "its task on node n2 ended: Killed"
    assert judge_host(place(tmp_path), "x", {}).reason.splitlines() == [ended, "of w/1"]
    write_log(tmp_path / "w.1.log", "of an earlier run\n", after_s=-60)
    assert judge_host(place(tmp_path), "x", {}).reason == ended


def test_tasks_are_those_of_the_hosts_that_were_left_at_the_start(tmp_path: Path) -> None:
    """A host before it was given back, then the job was put back into the queue: its task has a lower number."""
    (tmp_path / "part.0.0.log").write_text(
        "1: of w/2\n2: of w/3\nsrun: error: n3: task 1: Exited with exit code 1\n"
    )
    hosts = part("w/0", "w/1", "w/2", "w/3", logs=str(tmp_path), released=[1])
    [_, found, _] = make_places([row(nodes=("n1", "n3", "n4"))], {0: hosts})
    assert judge_host(found, "x", {}).reason.splitlines()[1:] == ["of w/2"]


def test_the_task_of_another_node_is_another_host(tmp_path: Path) -> None:
    """One host's end is not another's, also when a name is the beginning of another."""
    write_log(
        tmp_path / "part.0.0.log",
        "srun: error: n22: task 1: Killed\nsrun: error: n1: task 0: Killed\n",
    )
    assert judge_host(place(tmp_path), "x", {}).state is HostState.STARTING


def test_the_last_word_on_a_task_counts(tmp_path: Path) -> None:
    """A job that was started again writes its log anew, and within one log the last line is the newest."""
    write_log(
        tmp_path / "part.0.0.log",
        "srun: error: n2: task 1: Killed\nsrun: error: n2: task 1: Exited with exit code 9\n",
    )
    assert "exit code 9" in judge_host(place(tmp_path), "x", {}).reason


def test_the_lines_of_a_task_in_a_wide_job(tmp_path: Path) -> None:
    """From ten tasks on Slurm pads the numbers before lines; a task's own lines are found all the same."""
    write_log(
        tmp_path / "part.0.0.log",
        " 1: ImportError: no monarch\n11: other\nsrun: error: n2: task 1: Exited with exit code 1\n",
    )
    assert judge_host(place(tmp_path, hosts=12), "x", {}).reason.splitlines()[1:] == [
        "ImportError: no monarch"
    ]


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("down*", "Not responding", "Slurm says that node n2 is down*: Not responding"),
        ("drained", "none", "Slurm says that node n2 is drained"),
        ("fail", "", "Slurm says that node n2 is fail"),
    ],
)
def test_a_node_that_is_down_is_a_failed_host(
    tmp_path: Path, state: str, reason: str, expected: str
) -> None:
    """Slurm's word on the node, and the end of the host's own log."""
    (tmp_path / "w.1.log").write_text("step 41\nstep 42\n")
    found = judge_host(place(tmp_path), "x", {"n2": node("n2", state=state, reason=reason)})
    assert found.state is HostState.FAILED
    assert found.reason.splitlines() == [expected, "step 41", "step 42"]


@pytest.mark.parametrize(
    "state",
    ["draining", "draining@", "failing", "maint", "reboot^", "blocked", "inval", "powering_down"],
)
def test_a_node_that_is_taken_out_of_service_later_keeps_its_host(
    tmp_path: Path, state: str
) -> None:
    """Jobs go on there until they end: a keeper that is silent is no loss yet, and Slurm's word is told."""
    found = judge_host(place(tmp_path), "timed out", {"n2": node("n2", state=state, reason="hot")})
    expected = f"timed out; Slurm says that node n2 is {state}: hot"
    assert (found.state, found.unheard, found.reason) == (HostState.STARTING, False, expected)


@pytest.mark.parametrize(
    ("state", "unheard"), [("allocated*", True), ("draining*", True), ("down*", False)]
)
def test_a_node_that_slurm_does_not_hear(tmp_path: Path, state: str, unheard: bool) -> None:
    """The host does not serve, and whoever can wait is told that it may be back."""
    found = judge_host(place(tmp_path), "x", {"n2": node("n2", state=state)})
    assert (found.state, found.unheard) == (HostState.FAILED, unheard)


def test_a_node_that_is_fine_is_no_reason(tmp_path: Path) -> None:
    """The states of nodes of other hosts do not matter."""
    nodes = {"n1": node("n1", state="down"), "n2": node("n2", state="allocated")}
    assert judge_host(place(tmp_path), "x", nodes).state is HostState.STARTING
