"""Follow-up allocations: when they are due, and that there is never more than one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed import registry
from milkweed.backends.base import Request
from milkweed.backends.leads import (
    BEFORE_LIMIT,
    LONGEST_LEAD_S,
    SHORTEST_LEAD_S,
    check_renew,
    lead_time_s,
)
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.renewal import followers, is_due, last_end, serves
from milkweed.backends.slurm.start import load_parts
from milkweed.errors import BackendError, SpecError, UnreachableError
from milkweed.job import lifecycle, renewing
from milkweed.job.renewing import Renewer
from milkweed.plan import Action, Plan, Renewal
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import StateFile
from milkweed.status import HostState, HostStatus, Liveness, Status
from unit.slurm_fake import APPLY_ID, START_S, FakeSlurm, line, part, row, save_part_file
from unit.slurm_jobs import create

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
SPEC = JobSpec(name="demo", backend="slurm", meshes=(MeshSpec(name="w", hosts=1),))


# When


@pytest.mark.parametrize("word", [None, "", BEFORE_LIMIT, "30m", "1h30m"])
def test_words_for_when_are_taken(word: str | None) -> None:
    """In time, some time before the limit, or never."""
    check_renew(word)


@pytest.mark.parametrize("word", ["soon", "before", "90", "-5m", "0s"])
def test_words_that_say_no_time_are_refused(word: str) -> None:
    """The error names the parameter and what can be written."""
    with pytest.raises(SpecError, match="renew: ") as caught:
        check_renew(word)
    assert BEFORE_LIMIT in caught.value.hint


def test_a_wrong_word_is_refused_before_slurm_is_asked(slurm: FakeSlurm) -> None:
    """As any other mistake is."""
    wrong = JobSpec(name="demo", backend="slurm", meshes=SPEC.meshes, client={"renew": "soon"})
    with pytest.raises(SpecError, match="renew: "):
        SlurmBackend().validate(wrong)
    assert slurm.calls == []


@pytest.mark.parametrize(
    ("limit_s", "expected"),
    [
        (2 * HOUR_S, 720.0),
        (HOUR_S, 360.0),
        (0.5 * HOUR_S, SHORTEST_LEAD_S),
        (DAY_S, LONGEST_LEAD_S),
        (400.0, 200.0),
    ],
)
def test_a_follow_up_is_due_in_time(limit_s: float, expected: float) -> None:
    """A tenth of the limit before it, within reason: not minutes of days, nor most of a short job."""
    assert lead_time_s(BEFORE_LIMIT, limit_s) == expected


@given(limit_s=st.floats(1.0, 10**7))
def test_a_follow_up_is_never_due_at_once(limit_s: float) -> None:
    """However short the limit is, at least half of it passes first."""
    assert 0 < lead_time_s(BEFORE_LIMIT, limit_s) <= limit_s / 2


def running(left_s: float | None, limit_s: float = HOUR_S, **more: Any) -> Any:
    end = None if left_s is None else START_S + limit_s
    return row(**{"time_left_s": left_s, "start": START_S, "end": end, **more})


@pytest.mark.parametrize(
    ("left_s", "renew", "due"),
    [
        (3000.0, BEFORE_LIMIT, False),
        (361.0, BEFORE_LIMIT, False),
        (360.0, BEFORE_LIMIT, True),
        (0.0, BEFORE_LIMIT, True),
        (1801.0, "30m", False),
        (1799.0, "30m", True),
        (0.0, None, False),
        (0.0, "", False),
        (None, BEFORE_LIMIT, False),
    ],
)
def test_when_it_is_due(left_s: float | None, renew: str | None, due: bool) -> None:
    """By the time that is left, for those who want it; without a limit never."""
    assert is_due([running(left_s)], renew) is due


@pytest.mark.parametrize(("end", "due"), [(1.0, True), (4e9, False), (None, False)])
def test_a_limit_that_has_passed_is_due(end: float | None, due: bool) -> None:
    """Of a job that is past its limit squeue tells no time that is left, only when it should have ended."""
    assert is_due([running(None, end=end)], BEFORE_LIMIT) is due


def test_the_first_limit_counts() -> None:
    """One component near its end is enough; one that waits or has ended is none."""
    assert is_due([running(3000.0), running(60.0, component=1)], BEFORE_LIMIT)
    assert not is_due([running(60.0, state="PENDING")], BEFORE_LIMIT)
    assert not is_due([running(60.0, state="CANCELLED")], BEFORE_LIMIT)
    assert not is_due([], BEFORE_LIMIT)


def test_until_when_the_hosts_before_may_be_used() -> None:
    """Until the last of their time limits; from now on they are not, where none runs."""
    rows = [running(60.0), running(600.0, component=1), running(9000.0, state="PENDING")]
    rows.append(running(9000.0, generation=1))
    assert last_end(rows, 0) == pytest.approx(time.time() + 600.0, abs=60.0)
    assert last_end(rows, 2) == pytest.approx(time.time(), abs=60.0)


# How it stands


def test_followers_are_living_jobs_of_later_generations() -> None:
    """Not the present one, none before it, and none that ended."""
    rows = [
        row(job_id=1),
        row(job_id=2, generation=1),
        row(job_id=3, generation=2, state="PENDING"),
        row(job_id=4, generation=3, state="CANCELLED"),
        row(job_id=5, comment="other"),
    ]
    assert [each.job_id for each in followers(rows, 1)] == [3]
    assert [each.job_id for each in followers(rows, 0)] == [2, 3]


@pytest.mark.parametrize(
    ("labels", "sizes", "expected"),
    [
        (["w/0", "w/1"], {"w": 2}, True),
        (["w/0"], {"w": 2}, False),
        (["w/0", "w/1"], {"w": 1}, False),
        (["w/0"], None, True),
    ],
)
def test_only_the_declared_hosts_take_the_place_of_others(
    labels: list[str], sizes: dict[str, int] | None, expected: bool
) -> None:
    """A follow-up of other sizes is not gone over to, as ready as it may be."""
    hosts = tuple(HostStatus(host=label, state=HostState.READY) for label in labels)
    status = Status(liveness=Liveness.RUNNING, hosts=hosts)
    assert serves(status, sizes) is expected
    assert not serves(replace(status, liveness=Liveness.PENDING), sizes)


# With Slurm


@pytest.fixture(autouse=True)
def _nearly_over(request: pytest.FixtureRequest) -> None:
    """Where there is a cluster, it has one allocation, number 7, whose time is nearly up."""
    if "cluster" in request.fixturenames:
        cluster: FakeSlurm = request.getfixturevalue("cluster")
        request.getfixturevalue("folder")
        create(SPEC)
        cluster.answer("sbatch", "9\n")
        cluster.jobs(line(7, nodes="n1", left="5:00"))


def handle(**more: Any) -> dict[str, Any]:
    record = StateFile("job.json").load()
    assert record is not None
    return {**(record.handle or {}), **more}


def test_a_follow_up_is_the_same_once_more(cluster: FakeSlurm) -> None:
    """The same id, one generation later, with files of its own; the old one is left as it is."""
    found = SlurmBackend().renew(handle(), SPEC)
    assert (found["jobs"], found["generation"]) == ([7, 9], 0)
    assert f"--comment=milkweed:1:{APPLY_ID}:1:0:demo" in cluster.submitted[-1]
    names = {path.name for path in Path(found["folder"]).glob("part-*")}
    assert names == {"part-0.0.json", "part-1.0.json"}
    assert cluster.called("scancel") == []
    parts = [load_parts(Path(found["folder"]), generation)[0] for generation in (0, 1)]
    assert parts[0]["follows_until"] is None
    assert parts[1]["follows_until"] == pytest.approx(time.time() + 300.0, abs=60.0)


def test_asking_twice_asks_once(cluster: FakeSlurm) -> None:
    """Another client, or a crash in between: what follows already is not asked for again."""
    cluster.jobs(line(7, nodes="n1"), line(9, generation=1, state="PENDING"))
    before = len(cluster.submitted)
    assert SlurmBackend().renew(handle(), SPEC) == handle()
    assert len(cluster.submitted) == before


def test_a_batch_client_is_not_renewed(cluster: FakeSlurm) -> None:
    """It ends with its job, so a follow-up would have nobody: that is told before anything is submitted."""
    wish = JobSpec(name="demo", backend="slurm", meshes=SPEC.meshes, client={"renew": "30m"})
    before = len(cluster.submitted)
    with pytest.raises(SpecError, match="renew: a batch client") as refused:
        SlurmBackend().submit(Request(spec=wish, apply_id=APPLY_ID, client_script=("python", "x")))
    assert "leave renew out" in refused.value.hint
    assert len(cluster.submitted) == before


def test_a_follow_up_that_is_refused_changes_nothing(cluster: FakeSlurm) -> None:
    """The allocation that runs goes on."""
    cluster.answer("sbatch", err="sbatch: error: QOSMaxSubmitJobPerUserLimit\n", code=1)
    with pytest.raises(BackendError, match="Slurm refused"):
        SlurmBackend().renew(handle(), SPEC)
    assert SlurmBackend().find(APPLY_ID) is not None
    assert cluster.called("scancel") == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([line(7, nodes="n1", left="5:00")], Renewal.DUE),
        ([line(7, nodes="n1", left="3-00:00:00")], Renewal.NONE),
        ([line(7, nodes="n1"), line(9, generation=1, state="PENDING")], Renewal.WAITING),
        ([line(9, generation=1, state="PENDING")], Renewal.WAITING),
    ],
)
def test_how_a_renewal_stands(cluster: FakeSlurm, rows: list[str], expected: Renewal) -> None:
    """As the queue tells."""
    cluster.jobs(*rows)
    assert SlurmBackend().renewal(handle(), "30m") is expected


def test_moving_over_is_another_generation(cluster: FakeSlurm) -> None:
    """Nothing but the number changes; from then on the new jobs are looked at."""
    moved = SlurmBackend().move(handle())
    assert moved == handle(generation=1)
    cluster.jobs(line(7, nodes="n1"), line(9, generation=1, state="PENDING"))
    assert SlurmBackend().glance(moved).liveness.value == "pending"


def test_what_was_left_is_ended(cluster: FakeSlurm) -> None:
    """Earlier generations that still live are cancelled, the present one and later ones are not."""
    cluster.jobs(
        line(5, state="COMPLETED"),
        line(7, nodes="n1"),
        line(9, generation=1, nodes="n2"),
        line(11, generation=2, state="PENDING"),
    )
    SlurmBackend().retire(handle(generation=1))
    assert cluster.called("scancel") == [["7"]]


def test_what_a_crash_left_after_a_move_is_ended_by_the_next_client(
    cluster: FakeSlurm, folder: Path, home: Path
) -> None:
    """The record says that hosts have moved before the old ones are ended: whoever comes next ends them."""
    record = create(SPEC)
    moved = replace(record, handle={**(record.handle or {}), "generation": 1, "jobs": [7, 9]})
    save_part_file(registry.folder_of(APPLY_ID), part("w/0", number="1.0"))
    cluster.jobs(line(7, nodes="n1"), line(9, generation=1, nodes="n2"))
    wish = lifecycle.Wish(spec=SPEC, backend=SlurmBackend())
    for _ in range(2):
        nothing = Plan(action=Action.NOTHING, reasons=("because",), spec=SPEC)
        assert lifecycle.execute(nothing, wish, moved, StateFile("job.json"))[0] == moved
        cluster.jobs(line(7, state="CANCELLED"), line(9, generation=1, nodes="n2"))
    assert cluster.called("scancel") == [["7"]]
    cluster.be_away()
    lifecycle.execute(nothing, wish, moved, StateFile("job.json"))


def test_a_lost_record_is_found_at_the_oldest_that_lives(cluster: FakeSlurm) -> None:
    """It may not have gone over yet: nothing that runs is given up."""
    cluster.jobs(line(7, nodes="n1"), line(9, generation=1, state="PENDING"))
    found = SlurmBackend().find(APPLY_ID)
    assert found is not None
    assert (found["generation"], found["jobs"]) == (0, [7, 9])
    cluster.jobs(line(7, state="TIMEOUT"), line(9, generation=1, nodes="n2"))
    again = SlurmBackend().find(APPLY_ID)
    assert again is not None
    assert again["generation"] == 1


def test_nothing_is_renewed_while_nobody_answers(cluster: FakeSlurm) -> None:
    """Not knowing whether one follows already is no reason to ask for another."""
    before = len(cluster.submitted)
    cluster.be_away()
    with pytest.raises(UnreachableError):
        SlurmBackend().renew(handle(), SPEC)
    assert len(cluster.submitted) == before


# While a program runs


class Turns:
    """The pauses of a renewer, which end when a test says so."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.over = threading.Event()

    def wait(self, _seconds: float) -> bool:
        """Whether it is over; the next turn comes at once."""
        self.left -= 1
        if self.left < 0:
            self.over.set()
            return True
        return False

    def set(self) -> None:
        """Have no more turns."""
        self.left = 0


def plan(action: Action) -> Plan:
    return Plan(action=action, reasons=("because",), spec=SPEC)


def run_renewer(
    monkeypatch: pytest.MonkeyPatch, turns: int, look: Callable[[], Plan]
) -> tuple[list[Plan], Renewer]:
    carried: list[Plan] = []
    pauses = Turns(turns)
    names = SimpleNamespace(Event=lambda: pauses, Thread=threading.Thread)
    monkeypatch.setattr(renewing, "threading", names)
    renewer = Renewer("demo", look, carried.append)
    assert pauses.over.wait(10.0)
    renewer._thread.join(10.0)
    return carried, renewer


def test_only_a_plan_to_renew_is_carried_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The very plan that was made; what else has changed needs a person's word."""
    plans = [plan(Action.NOTHING), plan(Action.RENEW), plan(Action.REPLACE), plan(Action.MOVE)]
    rest = iter(plans)
    carried, _renewer = run_renewer(monkeypatch, 4, lambda: next(rest))
    assert carried == [plans[1]]
    assert "a follow-up of job 'demo' was asked for: because" in capsys.readouterr().err


def test_a_renewal_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler that is away for a while costs a line, not the renewal."""
    seen: list[int] = []

    def look() -> Plan:
        seen.append(1)
        if len(seen) == 1:
            raise UnreachableError("Slurm's controller did not answer")
        return plan(Action.RENEW)

    carried, _renewer = run_renewer(monkeypatch, 2, look)
    assert len(carried) == 1
    assert "could not be renewed yet: Slurm's controller" in capsys.readouterr().err


def test_a_program_that_is_done_renews_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once stopped nobody looks any more."""
    looked: list[int] = []
    carried, renewer = run_renewer(monkeypatch, 0, lambda: looked.append(1) or plan(Action.RENEW))
    renewer.stop()
    assert (looked, carried) == ([], [])


def test_whatever_a_look_fails_for_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, or a mistake of ours, is told, and does not end the renewals for good."""
    failures: list[Exception] = [OSError(28, "No space left on device"), KeyError("jobs")]

    def look() -> Plan:
        if failures:
            raise failures.pop(0)
        return plan(Action.RENEW)

    carried, _renewer = run_renewer(monkeypatch, 3, look)
    assert len(carried) == 1
    said = capsys.readouterr().err
    assert "could not be renewed yet: OSError: [Errno 28] No space left on device" in said
    assert "could not be renewed yet: KeyError: 'jobs'" in said
