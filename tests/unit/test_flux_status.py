"""What Flux says of an allocation and of single hosts, in words a person can act on."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.flux.status import (
    describe_row,
    explain_end,
    judge_host,
    load_output,
    make_status,
)
from milkweed.backends.flux.text import parse_jobs
from milkweed.status import HostState, Liveness
from unit.flux_fake import CORPUS, START_S, FakeFlux, place, row

REFUSED = "n1 (host w/0): [Errno 111] Connection refused"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"state": "SCHED"}, "Flux job f8 is SCHED: it waits for nodes"),
        (
            {"state": "SCHED", "waits_for": "insufficient resources"},
            "nodes; insufficient resources",
        ),
        ({"state": "SCHED", "urgency": 0}, "it is held: `flux job urgency JOB default`"),
        ({"state": "DEPEND", "dependencies": ("after-finish=f2",)}, "depends on after-finish=f2"),
        ({"state": "PRIORITY"}, "it waits for a priority"),
        ({"state": "CLEANUP"}, "its processes are being ended"),
        ({"state": "STRANGE"}, "Flux job f8 is STRANGE"),
        ({"state": "INACTIVE", "result": "COMPLETED", "exit_code": 0}, "it ended by itself"),
        ({"state": "INACTIVE", "result": "FAILED", "exit_code": 3}, "it failed with exit code 3"),
        (
            {"state": "INACTIVE", "result": "CANCELED", "trouble": "cancel", "note": "make room"},
            "is CANCELED: it was cancelled (cancel: make room)",
        ),
        (
            {"state": "INACTIVE", "result": "TIMEOUT", "trouble": "timeout"},
            "is TIMEOUT: its time limit was reached (timeout)",
        ),
    ],
)
def test_a_job_in_one_line(more: dict[str, Any], words: str) -> None:
    """Flux's words first, then plain ones, and what was raised for it."""
    assert words in describe_row(row(**more))


def test_every_recorded_job_has_words() -> None:
    """Whatever a real Flux has listed is told without gaps."""
    for found in parse_jobs((CORPUS / "jobs.json").read_text()):
        text = describe_row(found)
        assert text.startswith(f"Flux job {found.shown_id} is ")
        assert ": " in text


@pytest.mark.parametrize(
    ("states", "liveness"),
    [
        (["RUN", "RUN"], Liveness.RUNNING),
        (["RUN", "SCHED"], Liveness.RUNNING),
        (["RUN", "INACTIVE"], Liveness.RUNNING),
        (["SCHED", "INACTIVE"], Liveness.PENDING),
        (["CLEANUP", "INACTIVE"], Liveness.UNKNOWN),
        (["CLEANUP", "SCHED"], Liveness.PENDING),
    ],
)
def test_components_together(states: list[str], liveness: Liveness) -> None:
    """An allocation lives as long as one of its components does; one that waits is told."""
    rows = [row(7 + at, state) for at, state in enumerate(states)]
    status = make_status(rows, START_S)
    assert status.liveness is liveness
    assert ("SCHED" in status.reason) is ("SCHED" in states)


def test_what_is_known_of_time() -> None:
    """What is left of the limit, and when one that waits may start."""
    status = make_status([row(end=START_S + 100.0), row(8, end=START_S + 50.0)], START_S + 10.0)
    assert status.details == {"flux_jobs": "f8, f9", "time_left_s": "40"}
    waiting = make_status([row(state="SCHED", expected=START_S)], START_S)
    assert waiting.expected_start == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(START_S))


# The end


def test_an_end_has_the_code_of_its_batch_client(flux: FakeFlux, tmp_path: Path) -> None:
    """It is written down before Flux ends the rest of the job."""
    (tmp_path / "exit").write_text("7\n")
    ended = row(state="INACTIVE", result="FAILED", exit_code=143)
    status = explain_end([ended], [7], tmp_path, "")
    assert (status.liveness, status.exit_code) == (Liveness.ENDED, 7)


def test_an_end_has_the_words_of_keepers_and_the_output(flux: FakeFlux, tmp_path: Path) -> None:
    """Why keepers ended by themselves, and what the tasks wrote last."""
    (tmp_path / "ended-0.0.0.json").write_text(json.dumps({"reason": "nobody was connected"}))
    flux.answer("job eventlog", (CORPUS / "eventlog-output.json").read_text())
    completed = row(8, "INACTIVE", result="COMPLETED", exit_code=0)
    failed = row(state="INACTIVE", result="FAILED", exit_code=3)
    reason = explain_end([completed, failed], [7, 8], tmp_path, "").reason
    assert reason.splitlines() == [
        "Flux job f8 is FAILED: it failed with exit code 3",
        "nobody was connected",
        "the end of the job's own output:",
        "  from 0",
        "  from 1",
    ]


def test_a_batch_client_without_its_records(flux: FakeFlux, tmp_path: Path) -> None:
    """The code that says so is explained."""
    ended = row(state="INACTIVE", result="FAILED", exit_code=78)
    assert "needs a shared MILKWEED_HOME" in explain_end([ended], [7], tmp_path, "").reason


def test_a_batch_client_that_failed(flux: FakeFlux, tmp_path: Path) -> None:
    """Its own log tells why; no code of its own is explained, and what tasks said at their end is no reason."""
    flux.answer("job eventlog", (CORPUS / "eventlog-output.json").read_text())
    (tmp_path / "exit").write_text("78\n")
    (tmp_path / "client.log").write_text("epoch 1\nRuntimeError: boom\n")
    ended = row(state="INACTIVE", result="FAILED", exit_code=143)
    lines = explain_end([ended], [7], tmp_path, "", [str(tmp_path)]).reason.splitlines()
    assert lines[1:] == ["the end of the client's log:", "  epoch 1", "  RuntimeError: boom"]


def test_a_job_that_flux_has_forgotten(flux: FakeFlux, tmp_path: Path) -> None:
    """It is over: an instance that answers knows all jobs that live."""
    status = explain_end([], [7, 8], tmp_path, "")
    assert status.liveness is Liveness.ENDED
    assert status.reason == "Flux has no trace of job f8, f9 any more"


@pytest.mark.parametrize(("task", "lines"), [(None, ["from 0", "from 1"]), (1, ["from 1"])])
def test_output_that_flux_keeps(flux: FakeFlux, task: int | None, lines: list[str]) -> None:
    """Of all tasks, or of one; what cannot be had is left out."""
    flux.answer("job eventlog", (CORPUS / "eventlog-output.json").read_text())
    assert load_output(7, "", task) == lines
    flux.answer("job eventlog", "nonsense")
    assert load_output(7, "", task) == []
    flux.answer("job eventlog", err="flux-job: eventlog path guest.output not found", code=1)
    assert load_output(7, "", task) == []


# One host


def test_a_host_whose_job_waits(flux: FakeFlux, tmp_path: Path) -> None:
    """It is starting, for the job's own reason."""
    status = judge_host(place(tmp_path, row(state="SCHED", nodes=())), "x", "")
    assert status.state is HostState.STARTING
    assert "it waits for nodes" in status.reason


def test_a_host_whose_job_has_ended(flux: FakeFlux, tmp_path: Path) -> None:
    """It is lost, with Flux's words and the last lines of its own log."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "w.1.log").write_text("one\ntwo\n")
    ended = row(state="INACTIVE", result="CANCELED")
    status = judge_host(place(tmp_path, ended, 1), "x", "")
    assert status.state is HostState.FAILED
    assert status.reason.splitlines() == ["Flux job f8 is CANCELED: it was cancelled", "one", "two"]


def test_a_host_without_a_job(flux: FakeFlux, tmp_path: Path) -> None:
    """It never comes; unless it was asked for and the answer is not known."""
    assert judge_host(place(tmp_path, None), "x", "").state is HostState.FAILED
    (tmp_path / "asked-for").touch()
    assert judge_host(place(tmp_path, None), "x", "").state is HostState.STARTING


def test_a_host_that_was_there_and_refuses(flux: FakeFlux, tmp_path: Path) -> None:
    """Its keeper has told that it was up, and nobody listens any more: it is gone."""
    up = tmp_path / "up-0.0.0"
    up.touch()
    os.utime(up, (START_S + 1, START_S + 1))
    status = judge_host(place(tmp_path, row()), REFUSED, "")
    assert status.state is HostState.FAILED
    assert status.reason == "its keeper on node n1 is gone"
    assert judge_host(place(tmp_path, row()), "timed out", "").state is HostState.STARTING


def test_a_task_that_ended(flux: FakeFlux, tmp_path: Path) -> None:
    """Flux tells how the first one ended; what it wrote is told with it."""
    flux.then(
        "job eventlog",
        f'case "$*" in *exec*) cat {CORPUS}/eventlog-exec.json;; '
        f"*) cat {CORPUS}/eventlog-output.json;; esac",
    )
    status = judge_host(place(tmp_path, row(), 1), REFUSED, "")
    assert status.state is HostState.FAILED
    assert status.reason.splitlines() == ["its task on node n2 ended: exit code 3", "from 1"]


def test_a_node_that_failed(flux: FakeFlux, tmp_path: Path) -> None:
    """Flux tells which task was on it; the others are not judged by that."""
    note = "node failure on n2 (shell rank 1)"
    event = {"name": "exception", "context": {"type": "node-failure", "severity": 2, "note": note}}
    flux.then("job eventlog", f"case \"$*\" in *-p*) ;; *) echo '{json.dumps(event)}';; esac")
    lost = judge_host(place(tmp_path, row(), 1), "timed out", "")
    assert (lost.state, lost.reason) == (HostState.FAILED, f"Flux says: {note}")
    assert judge_host(place(tmp_path, row(), 0), "timed out", "").state is HostState.STARTING


@pytest.mark.parametrize("gone", [True, False])
def test_a_later_task_that_ended(flux: FakeFlux, tmp_path: Path, gone: bool) -> None:
    """Flux tells of the first only: whether another is over, it knows when something is to run beside it."""
    flux.answer("job eventlog", (CORPUS / "eventlog-exec.json").read_text())
    if gone:
        flux.answer("exec", err=(CORPUS / "error-exec-gone.txt").read_text(), code=1)
    status = judge_host(place(tmp_path, row()), REFUSED, "")
    assert status.state is (HostState.FAILED if gone else HostState.STARTING)
    assert flux.called("exec") == [["--jobid=7", "--rank=0", "--noinput", "true"]]


def test_a_job_that_begins_is_not_taken_for_gone(flux: FakeFlux, tmp_path: Path) -> None:
    """Before its tasks have started nobody is there either."""
    flux.answer("job eventlog", '{"timestamp":1.0,"name":"init"}\n')
    flux.answer("exec", err=(CORPUS / "error-exec-gone.txt").read_text(), code=1)
    assert judge_host(place(tmp_path, row()), REFUSED, "").state is HostState.STARTING


def test_an_instance_that_is_away_says_nothing_of_a_host(flux: FakeFlux, tmp_path: Path) -> None:
    """A host is lost only when that is certain."""
    flux.be_away()
    assert judge_host(place(tmp_path, row()), REFUSED, "").state is HostState.STARTING
