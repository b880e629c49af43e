"""Follow-ups that fail, or that Slurm has taken twice: they are told, not asked for without end, and not left."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.slurm import commands
from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.backends.slurm.places import make_places
from milkweed.backends.slurm.renewal import FIRST_PAUSE_S, is_broken, next_try, spare_jobs
from milkweed.backends.slurm.start import load_parts
from milkweed.backends.slurm.status import judge_host
from milkweed.backends.slurm.text import Mark, render_mark
from milkweed.errors import UnreachableError
from milkweed.job import lifecycle
from milkweed.job.observing import observe
from milkweed.plan import Action, Plan, Renewal
from milkweed.spec import JobSpec, MeshSpec
from milkweed.state import StateFile
from milkweed.status import HostState, HostStatus, Liveness, Status
from unit.slurm_fake import APPLY_ID, FakeSlurm, line, part, row, save_part_file, shown
from unit.slurm_jobs import create
from unit.test_slurm_renewal import run_renewer

SPEC = JobSpec(
    name="demo",
    backend="slurm",
    meshes=(MeshSpec(name="w", hosts=1),),
    client={"renew": "30m"},
)
PAIR = SPEC.resized({"w": 2})
RUNS = line(7, nodes="n1", left="5:00")
GROWN = line(10, component=1, nodes="n2", left="5:00")
FIRST = line(9, generation=1, state="PENDING")
SECOND = line(11, generation=1, component=1, state="PENDING")


@pytest.fixture(autouse=True)
def _nearly_over(cluster: FakeSlurm, folder: Path, home: Path) -> None:
    """One allocation, number 7, whose time is nearly up."""
    create(SPEC)
    cluster.answer("sbatch", "9\n")
    cluster.jobs(RUNS)


def handle(**more: Any) -> dict[str, Any]:
    record = StateFile("job.json").load()
    assert record is not None
    return {**(record.handle or {}), **more}


def job_folder() -> Path:
    return registry.folder_of(APPLY_ID)


def note_asked(job: int, ago_s: float, generation: int = 1, component: int = 0) -> None:
    """A job was asked for so long ago."""
    path = job_folder() / f"mark-{job}"
    path.write_text(render_mark(Mark(APPLY_ID, generation, component, "demo")))
    os.utime(path, (time.time() - ago_s,) * 2)


# Those that fail


def test_a_follow_up_that_failed_is_told_and_not_repeated_at_once(cluster: FakeSlurm) -> None:
    """Where each of them fails at once, the queue is not filled with more; the plan has Slurm's words."""
    SlurmBackend().renew(handle(), SPEC)
    cluster.jobs(RUNS, line(9, generation=1, state="FAILED", start="N/A"))
    cluster.answer("scontrol", shown(9, state="FAILED", code="1:0"))
    commands.queue.wake()
    assert SlurmBackend().renewal(handle(), "30m") is Renewal.FAILED
    wish = lifecycle.Wish(spec=SPEC, backend=SlurmBackend())
    _record, seen = observe(wish.backend, StateFile("job.json").load(), None, wish)
    plan = lifecycle.plan_for(wish, seen)
    assert (plan.action, plan.renewal) == (Action.REUSE, Renewal.FAILED)
    assert plan.reasons[1].startswith("its follow-up has failed: Slurm job 9 is FAILED")


def test_another_is_asked_for_a_while_later() -> None:
    """Whether Slurm remembers the one that failed, or only we do."""
    note_asked(9, FIRST_PAUSE_S + 1.0)
    assert SlurmBackend().renewal(handle(), "30m") is Renewal.DUE
    note_asked(9, FIRST_PAUSE_S - 5.0)
    assert SlurmBackend().renewal(handle(), "30m") is Renewal.FAILED
    assert SlurmBackend().renewal(handle(), None) is Renewal.NONE


def test_each_pause_is_twice_as_long() -> None:
    """Counted from when the last one was asked for, or ended."""
    now = time.time()
    assert next_try(job_folder(), [], 0) == 0.0
    note_asked(9, 100.0)
    assert next_try(job_folder(), [], 0) == pytest.approx(now - 100.0 + FIRST_PAUSE_S, abs=5.0)
    note_asked(11, 90.0)
    note_asked(12, 1.0, component=1)
    note_asked(13, 1.0, generation=2)
    assert next_try(job_folder(), [], 0) == pytest.approx(now - 90.0 + 2 * FIRST_PAUSE_S, abs=5.0)
    over = {"generation": 1, "state": "FAILED"}
    ended = [row(job_id=each, leader=each, end=now - 5.0, **over) for each in (11, 14)]
    found = next_try(job_folder(), ended, 0)
    assert found == pytest.approx(now - 5.0 + 4 * FIRST_PAUSE_S, abs=5.0)
    assert next_try(job_folder(), ended, 1) == pytest.approx(now - 1.0 + FIRST_PAUSE_S, abs=5.0)
    assert next_try(Path("nowhere"), [row(end=now + 9e6, **over)], 0) < now + 90.0


def test_a_program_says_once_why_its_follow_up_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is looked at again and again, and another reason is told, too."""
    reasons = iter(["no Python", "no Python", "no node"])

    def look() -> Plan:
        why = ("nothing changed", f"its follow-up has failed: {next(reasons)}")
        return Plan(action=Action.NOTHING, reasons=why, spec=SPEC, renewal=Renewal.FAILED)

    carried, _renewer = run_renewer(monkeypatch, 3, look)
    said = capsys.readouterr().err
    assert carried == []
    assert said.count("its follow-up has failed: no Python") == 1
    assert said.count("its follow-up has failed: no node; another is asked for later") == 1


# Those of which a part has failed


def grow(cluster: FakeSlurm) -> dict[str, Any]:
    """Two hosts are declared now: jobs 7 and 10 have them, and their follow-ups, 9 and 11, wait."""
    record = StateFile("job.json").load()
    assert record is not None
    found = SlurmBackend().renew(handle(), PAIR.resized({"w": 1}))
    cluster.jobs(line(7, state="PENDING"), FIRST)  # so that no host needs to be asked
    commands.queue.wake()
    count = 'n=$(cat "$home/n" 2>/dev/null || echo 10); echo $((n + 1)) >"$home/n"; exec echo $n\n'
    cluster.then("sbatch", f'[ "$1" = --version ] || [ "$1" = --test-only ] || {{ {count}}}')
    found = SlurmBackend().resize(found, PAIR)
    StateFile("job.json").save(replace(record, handle=dict(found), spec=PAIR))
    return dict(found)


def plan_now() -> Plan:
    commands.queue.wake()
    wish = lifecycle.Wish(spec=PAIR, backend=SlurmBackend())
    _record, seen = observe(wish.backend, StateFile("job.json").load(), None, wish)
    return lifecycle.plan_for(wish, seen)


def test_a_follow_up_that_has_lost_a_part_has_failed(cluster: FakeSlurm) -> None:
    """What is left of it will never have all hosts: it is told, given back, and all of it is asked for anew."""
    found = grow(cluster)
    assert found["jobs"] == [7, 9, 10, 11]
    cluster.jobs(RUNS, GROWN, FIRST, SECOND)
    assert plan_now().renewal is Renewal.WAITING
    assert SlurmBackend().renew(found, PAIR) == found
    cluster.jobs(RUNS, GROWN, line(9, generation=1, state="CANCELLED"), SECOND)
    plan = plan_now()
    assert (plan.action, plan.renewal) == (Action.REUSE, Renewal.FAILED)
    assert "Slurm job 9 is CANCELLED" in plan.reasons[-1]
    assert "Slurm job 11 is PENDING" in plan.reasons[-1]
    for job in (9, 11):
        os.utime(job_folder() / f"mark-{job}", (time.time() - FIRST_PAUSE_S - 1.0,) * 2)
    assert plan_now().action is Action.RENEW
    again = SlurmBackend().renew(found, PAIR)
    assert cluster.called("scancel") == [["11"]]
    assert again["jobs"] == [7, 9, 10, 11, 12]
    assert [len(each["hosts"]) for each in load_parts(job_folder(), 1).values()] == [2]
    gone = [line(9, generation=1, state="CANCELLED")]
    gone.append(line(11, generation=1, component=1, state="CANCELLED"))
    cluster.jobs(RUNS, GROWN, *gone, line(12, generation=1, state="PENDING"))
    assert plan_now().renewal is Renewal.WAITING


@pytest.mark.parametrize("renew", ["1s", None])
def test_what_is_left_of_a_follow_up_is_told_of_whenever_another_is_due(
    cluster: FakeSlurm, renew: str | None
) -> None:
    """Its time limit may have been put off since, or no follow-up be declared: what waits takes nodes later."""
    found = grow(cluster)
    cluster.jobs(RUNS, GROWN, line(9, generation=1, state="CANCELLED"), SECOND)
    commands.queue.wake()
    assert SlurmBackend().renewal(found, renew) is Renewal.FAILED


def test_a_follow_up_whose_other_part_slurm_has_forgotten_has_failed(cluster: FakeSlurm) -> None:
    """It was taken, and is not told of any more."""
    grow(cluster)
    cluster.jobs(RUNS, GROWN, FIRST)
    assert "no trace of job 11" in plan_now().reasons[-1]


def test_a_follow_up_that_runs_without_a_part_has_failed(cluster: FakeSlurm) -> None:
    """The plan names the hosts that it lost."""
    grow(cluster)
    lost = line(11, generation=1, component=1, state="NODE_FAIL")
    cluster.jobs(RUNS, GROWN, line(9, generation=1, nodes="n3"), lost)
    plan = plan_now()
    assert (plan.action, plan.renewal) == (Action.REUSE, Renewal.FAILED)
    assert "w/1 (Slurm job 11 is NODE_FAIL" in plan.reasons[-1]


def test_all_that_is_left_is_not_given_up_for_a_part(cluster: FakeSlurm) -> None:
    """Where the hosts before have ended, the record goes over to it, and a person decides on what it has lost."""
    found = grow(cluster)
    ended = line(7, state="TIMEOUT"), line(10, component=1, state="TIMEOUT")
    cluster.jobs(*ended, line(9, generation=1, state="CANCELLED"), SECOND)
    assert plan_now().action is Action.MOVE
    SlurmBackend().renew(found, PAIR)
    assert cluster.called("scancel") == []


@pytest.mark.parametrize(
    ("lost", "released", "broken"),
    [
        (HostStatus(host="w/0", state=HostState.FAILED), [], True),
        (HostStatus(host="w/0", state=HostState.FAILED, unheard=True), [], False),
        (HostStatus(host="w/0", state=HostState.STARTING), [], False),
        (HostStatus(host="w/0", state=HostState.FAILED), [0], False),
    ],
)
def test_lost_hosts_of_a_follow_up(lost: HostStatus, released: list[int], broken: bool) -> None:
    """Those that will not come back; what a change of sizes has given back, it finishes itself."""
    parts = {0: part("w/0", "w/1", number="1.0", released=released)}
    there = make_places([row(generation=1, nodes=("n1", "n2"))], parts)
    status = Status(liveness=Liveness.RUNNING, hosts=(lost,))
    assert is_broken(status, there) is broken


def test_a_follow_up_that_lost_nobody_knows_whom_has_failed(cluster: FakeSlurm) -> None:
    """Where nodes see no files, one may go before it is noted whose it was: a host of it is lost for good."""
    grow(cluster)
    (job_folder() / "part-1.1.json").unlink()
    save_part_file(job_folder(), part("w/0", "w/1", number="1.0", record_folder=str(job_folder())))
    cluster.jobs(RUNS, GROWN, line(9, generation=1, nodes="n3"))
    plan = plan_now()
    assert (plan.action, plan.renewal) == (Action.REUSE, Renewal.FAILED)
    assert "w/0 (nodes of Slurm job 9 were lost, and it is not known whose" in plan.reasons[-1]


@pytest.mark.parametrize(
    ("nodes", "released", "broken"),
    [(("n1",), [], True), (("n1",), [1], False), (("n1", "n2"), [], False), ((), [], False)],
)
def test_a_follow_up_has_a_node_for_each_host(
    nodes: tuple[str, ...], released: list[int], broken: bool
) -> None:
    """One that has fewer will never be whole, though nobody may know which host is lost."""
    parts = {0: part("w/0", "w/1", number="1.0", released=released)}
    there = make_places([row(generation=1, nodes=nodes)], parts)
    hosts = tuple(judge_host(place, "timed out", {}) for place in there)
    assert is_broken(Status(liveness=Liveness.RUNNING, hosts=hosts), there) is broken


# Those that Slurm has taken twice


def test_a_follow_up_that_was_not_answered_is_waited_for(cluster: FakeSlurm) -> None:
    """Slurm was frozen, and takes it while the next look is under way: it is not asked for once more."""
    cluster.answer("sbatch", err="sbatch: error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(UnreachableError):
        SlurmBackend().renew(handle(), SPEC)
    before = len(cluster.submitted)

    def come(_seconds: float) -> None:
        cluster.jobs(RUNS, line(9, generation=1, state="PENDING"))

    cluster.answer("sbatch", "10\n")
    SlurmBackend(sleep=come).renew(handle(), SPEC)
    assert len(cluster.submitted) == before


def test_one_of_two_with_the_same_mark_is_ended(cluster: FakeSlurm) -> None:
    """The one that was answered is used, and no other is left."""
    SlurmBackend().renew(handle(), SPEC)
    twins = [line(9, generation=1, nodes="n1"), line(10, generation=1, nodes="n2")]
    cluster.jobs(RUNS, *twins)
    commands.queue.wake()
    moved = SlurmBackend().move(handle(jobs=[7, 9]))
    assert [place.node for place in SlurmBackend().places(moved)] == ["n1"]
    SlurmBackend().retire(moved)
    assert cluster.called("scancel") == [["7", "10"]]


@pytest.mark.parametrize(
    ("twins", "spare"),
    [
        ([row(job_id=9, leader=9, generation=1)], []),
        ([row(job_id=j, leader=j, generation=1) for j in (9, 10)], [9]),
        ([row(job_id=9, leader=9, generation=1), row(job_id=10, generation=1, state="FAILED")], []),
        ([row(job_id=9, leader=9, generation=1), row(job_id=10, leader=10, generation=1, component=1)], []),
        ([row(job_id=9 + i, leader=9, offset=i, generation=1, component=i) for i in (0, 1)], []),
        ([row(job_id=5, leader=5), row(job_id=9, leader=9, generation=2)], [5]),
        ([row(job_id=5, leader=5, comment="mine")], []),
    ],
)  # fmt: skip
def test_what_nobody_uses(twins: list[Any], spare: list[int]) -> None:
    """Of two that nobody was told of it is the earlier; later generations are somebody's."""
    assert spare_jobs(twins, {0: part("w/0", number="1.0")}, 1) == spare
