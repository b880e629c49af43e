"""Jobs whose processes are being ended: what is known of how they end, and what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.marks import Mark, render_mark
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.detail import make_scontrol_states, parse_states
from milkweed.backends.slurm.handles import numbers_of
from milkweed.backends.slurm.places import make_places
from milkweed.backends.slurm.status import _load_accounts, judge_host, make_status
from milkweed.status import HostState, Liveness
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, row, save_part_file
from unit.slurm_jobs import handle_of


@pytest.mark.parametrize(
    ("states", "ending"),
    [
        (["COMPLETING"], True),
        (["COMPLETING", "CANCELLED"], True),
        (["COMPLETING", "STAGE_OUT"], True),
        (["COMPLETING", "RUNNING"], False),
        (["COMPLETING", "PENDING"], False),
        (["COMPLETING", "UPDATE_DB"], False),
        (["CANCELLED"], False),
    ],
)
def test_a_job_that_is_being_ended_as_a_whole(states: list[str], ending: bool) -> None:
    """None of its components runs or waits, and none is in a state that says nothing."""
    assert make_status([row(state=state) for state in states]).ending is ending


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["CANCELLED", "COMPLETING"], "is CANCELLED: it was cancelled; its processes are"),
        (["PENDING", "COMPLETING"], "is PENDING: it waits in the queue; its processes are"),
        ("TIMEOUT", "is TIMEOUT: its time limit was reached; its processes are being ended"),
        (["COMPLETING"], "is COMPLETING: its processes are being ended"),
        (["A_NEW_WORD", "COMPLETING"], "is COMPLETING: its processes are being ended"),
    ],
)
def test_newer_versions_tell_what_is_behind_it(
    cluster: FakeSlurm, said: list[str] | str, words: str
) -> None:
    """The word that COMPLETING hides is told; it is not over before Slurm says so."""
    cluster.jobs(line(7, state="COMPLETING"))
    cluster.answer("scontrol", json.dumps({"jobs": [{"job_id": 7, "job_state": said}]}))
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert (status.liveness, status.ending) == (Liveness.UNKNOWN, True)
    assert f"Slurm job 7 {words}" in status.reason
    assert make_scontrol_states(7)[1:] in cluster.called("scontrol")


def test_older_versions_tell_the_reason_at_least(cluster: FakeSlurm) -> None:
    """Without JSON there is squeue's word, with its reason."""
    cluster.jobs(line(7, state="COMPLETING", reason="TimeLimit"))
    cluster.answer("scontrol", err="scontrol: unrecognized option '--json'\n", code=1)
    status = SlurmBackend().glance(handle_of(), fresh=True)
    assert "Slurm job 7 is COMPLETING, reason TimeLimit" in status.reason


def test_waiting_for_an_end_asks_for_no_more(cluster: FakeSlurm) -> None:
    """Who only waits looks at the queue."""
    cluster.jobs(line(7, state="COMPLETING"))
    SlurmBackend().glance(handle_of())
    assert cluster.called("scontrol") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": [{}]}', '{"jobs": 3}'])
def test_what_tells_no_states_is_refused(text: str) -> None:
    """Whatever is printed instead is an error that can be caught."""
    with pytest.raises(ValueError, match=r".+"):
        parse_states(text)


def test_a_host_of_a_component_that_is_being_ended(tmp_path: Path) -> None:
    """It is not certain what becomes of it, and what Slurm does to it is told."""
    data = part("w/0", logs=str(tmp_path), record_folder=str(tmp_path))
    [place] = make_places([row(state="COMPLETING", nodes=("n1",))], {0: data})
    found = judge_host(place, "connection refused", {})
    assert found.state is HostState.UNKNOWN
    assert found.reason.startswith("Slurm job 7 is COMPLETING")


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED"])
def test_hosts_that_stand_still_are_not_lost(tmp_path: Path, state: str) -> None:
    """A keeper that was stopped with its job does not answer; Slurm's word is the reason, and nobody is failed."""
    data = part("w/0", logs=str(tmp_path), record_folder=str(tmp_path))
    [place] = make_places([row(state=state, nodes=("n1",))], {0: data})
    found = judge_host(place, "timed out", {})
    assert found.state is HostState.UNKNOWN
    assert f"Slurm job 7 is {state}" in found.reason
    status = make_status([row(), row(state=state)])
    assert (status.liveness, status.halted) == (Liveness.RUNNING, True)
    assert f"is {state}" in status.reason


def test_a_status_says_that_hosts_stand_still(cluster: FakeSlurm, home: Path) -> None:
    """With the hosts, too, it is told that the job is suspended."""
    save_part_file(registry.folder_of(APPLY_ID), part("w/0", record_folder=str(home)))
    cluster.jobs(line(7, state="SUSPENDED", nodes="n1"))
    status = SlurmBackend().poll(handle_of())
    assert (status.liveness, status.halted, status.failed_hosts) == (Liveness.RUNNING, True, ())
    assert "running, 0/1 hosts ready (Slurm job 7 is SUSPENDED" in status.describe()


def test_a_follow_up_that_was_never_recorded_is_known_by_its_mark(tmp_path: Path) -> None:
    """Without a number sacct would tell how a stranger's job ended."""
    handle = {**handle_of(7), "generation": 1, "folder": str(tmp_path)}
    for number, generation in ((7, 0), (8, 1)):
        mark = Mark(APPLY_ID, generation, 0, "demo")
        (tmp_path / f"mark-{number}").write_text(render_mark(mark))
    assert numbers_of(handle) == [8]


def test_accounts_are_not_asked_for_jobs_without_a_number(cluster: FakeSlurm) -> None:
    """They would tell of all jobs of this user."""
    assert _load_accounts([]) == []
    assert cluster.called("sacct") == []
