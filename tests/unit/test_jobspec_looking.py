"""Looking at runs later: what is lost, what is followed, what is old, and who carries on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import BackendError, StateBusyError, StateError
from milkweed.jobspec import Run, load_runs, load_transformer
from milkweed.jobspec.driver import Driver, Running, Wake, carry_on, drive_here
from milkweed.jobspec.looking import follow_logs, is_part, note_ends, read_logs
from milkweed.jobspec.plan import Action
from milkweed.jobspec.progress import LOST, Entry, State, StepStatus, ended, judge_need
from milkweed.jobspec.runner import ensure_driven, follow
from milkweed.jobspec.runs import clean_at_limit, create_run, remove_if_over
from milkweed.jobspec.steps import Handle
from milkweed.jobspec.transformers.local import JoinStep, Transformer
from unit.jobspecs import Talker, TalkStep, graph, job
from unit.sites import PLUGIN, use_site


class Teller(TalkStep):
    """A job that has printed its own name."""

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        """One line."""
        yield self.action.id, f"{handle['id']} {follow}"


class Told(Talker):
    """A world whose jobs print."""


Told.register_step(Teller)


def make_run(*steps: Any, place: Talker | None = None) -> tuple[Talker, Run]:
    place = place or Talker()
    return place, create_run(place.render(graph(*steps)))


# Work whose end nobody saw


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("afterok", False),
        ("afternotok", False),
        ("afterany", True),
        ("after", True),
        ("submitted", True),
    ],
)
def test_lost_work_neither_failed_nor_went_well(kind: Any, verdict: bool) -> None:
    """What needs it to have gone well does not begin, and neither does what needs it to have failed."""
    assert judge_need(kind, Entry(StepStatus(State.LOST))) is verdict


def test_lost_work_ends_a_run_with_a_code() -> None:
    """Nobody may take it for a success."""
    _, run = make_run(job("a"))
    run.journal.write("state", id="a", state="lost", code=None, reason="nobody saw how it ended")
    assert (run.progress().over, run.progress().exit_code()) == (True, LOST)


def test_processes_of_another_driver_are_lost() -> None:
    """The local transformer sees that they are gone, and not how they ended."""
    place = Transformer()
    run = create_run(place.render(graph(job("a"))))
    step = place.make_step(run, "a", run.progress())
    handle: Handle = {"processes": [{"pid": 2**22 + 1, "started": 1, "boot_id": "x"}], "logs": {}}
    wake = Wake()
    try:
        found = place.poll({"a": Running(step, handle, StepStatus(State.RUNNING))}, wake, 0.0)
    finally:
        wake.close()
    assert found["a"] == StepStatus(State.LOST, None, "nobody saw how it ended")


@pytest.mark.parametrize(
    ("inside", "state", "code"),
    [
        ([State.LOST, State.DONE], State.LOST, None),
        ([State.LOST, State.FAILED], State.FAILED, 1),
        ([State.DONE, State.DONE], State.DONE, 0),
    ],
)
def test_a_group_with_lost_work_is_lost(
    inside: list[State], state: State, code: int | None
) -> None:
    """Unless something in it failed for certain."""
    _, run = make_run(job("a"))
    before = {str(at): Entry(StepStatus(each)) for at, each in enumerate(inside)}
    action = Action(id="g", kind="group", details={"steps": [*before]})
    status = JoinStep(action, run, before, Transformer()).run(run.files)
    assert (status.state, status.code) == (state, code)


# Signals that leave a run as it is


class Stopped(Talker):
    """The driver is told to stop while a job runs."""

    def poll(self, running: Any, wake: Wake, timeout_s: float = 2.0) -> dict[str, StepStatus]:
        """Somebody presses Ctrl-C."""
        wake.stop("stopped by SIGINT")
        return {}


def test_a_run_is_left_as_it_is() -> None:
    """What was submitted stays, what was not waits, and whoever asked is told by KeyboardInterrupt."""
    place, run = make_run(job("a"), job("b", "a"), place=Stopped())
    place.leaves = True
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
        drive_here(place, run, until_over=True)
    assert place.world.cancelled == []
    states = [entry.status.state for entry in run.progress().entries.values()]
    assert states == [State.PENDING, State.WAITING]
    assert place.needs_driver(run)


def test_without_that_a_signal_ends_it() -> None:
    """As before."""
    place, run = make_run(job("a"), place=Stopped())
    drive_here(place, run, until_over=True)
    assert place.world.cancelled == ["job-a"]


def test_runs_can_be_started_elsewhere() -> None:
    """Then nothing is driven here."""
    place, run = make_run(job("a"))
    started: list[Run] = []
    place.launch = started.append
    carry_on(place, run, wait=True)
    assert started == [run]
    assert place.world.submitted == []


# Who carries on


def test_somebody_carries_on_what_needs_it() -> None:
    """Only a run with steps that nobody has begun, or whose work needs this machine."""
    place, run = make_run(job("a"))
    started: list[Run] = []
    ensure_driven(place, run, started.append)
    assert started == [run]
    run.journal.write("submitted", id="a", state="pending", handle={"id": "1"})
    ensure_driven(place, run, started.append)
    assert started == [run]
    local = Transformer()
    assert local.needs_driver(run)
    with run.hold():
        assert not local.needs_driver(run)
    run.journal.write("state", id="a", state="done", code=0)
    assert not local.needs_driver(run)


def test_two_may_want_to_carry_on() -> None:
    """Whoever comes second is content that somebody does."""
    place, run = make_run(job("a"))

    def lost_race(_run: Run) -> None:
        holding.__enter__()
        raise BackendError("somebody was quicker")

    holding = run.hold()
    ensure_driven(place, run, lost_race)
    holding.__exit__(None, None, None)

    def broken(_run: Run) -> None:
        raise BackendError("no Python")

    with pytest.raises(BackendError, match="no Python"):
        ensure_driven(place, run, broken)


def test_looking_on_until_everything_is_over() -> None:
    """Every step is shown then, not only those that say `wait`."""
    _, run = make_run(job("a"))
    log = run.logs / "a.log"
    log.write_text("hello\n")
    shown: list[tuple[str, str]] = []

    def sleep(_seconds: float) -> None:
        run.journal.write("state", id="a", state="done", code=0)

    with run.hold():
        run.journal.write("submitted", id="a", state="running", handle={"logs": {"a": str(log)}})
        progress = follow(run, lambda *line: shown.append(line), until_over=True, sleep=sleep)
    assert progress.over
    assert shown == [("a", "hello")]


# What was printed


def test_logs_of_steps_and_groups() -> None:
    """One step, or all inside a group."""
    assert is_part("g/a", "g")
    assert is_part("g", "g")
    assert not is_part("gg", "g")
    place, run = make_run(job("a"), job("b"), place=Told())
    for name in "ab":
        run.journal.write("submitted", id=name, state="running", handle={"id": name})
    assert list(read_logs(place, run)) == [("a", "a False"), ("b", "b False")]
    assert list(read_logs(place, run, "b")) == [("b", "b False")]
    with pytest.raises(StateError, match="has no step 'c'"):
        list(read_logs(place, run, "c"))


def test_logs_are_followed_to_the_end_of_the_run() -> None:
    """Steps that begin later are in it; an end of all is the end."""
    place, run = make_run(job("a"), job("b", "a"), place=Told())
    pages = iter([("a", "submitted"), ("a", "state"), ("b", "submitted"), ("b", "state")])

    def sleep(_seconds: float) -> None:
        name, event = next(pages)
        if event == "submitted":
            run.journal.write(event, id=name, state="running", handle={"id": name})
        else:
            run.journal.write(event, id=name, state="done", code=0)

    with run.hold():
        lines = list(follow_logs(place, run, sleep=sleep))
    assert lines == [("a", "a True"), ("b", "b True")]


def test_nobody_follows_a_run_that_nobody_carries_on() -> None:
    """There is nothing to wait for."""
    place, run = make_run(job("a"))
    assert list(follow_logs(place, run)) == []


# Old runs


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A transformer `site`."""
    (folder / "jobspec_site.py").write_text(PLUGIN)
    yield from use_site(folder, monkeypatch)


def old_run(age_s: float, *, over: bool = True) -> Run:
    run = create_run(Talker().render(graph(job("a"))), clock=lambda: 1e6 - age_s)
    if over:
        run.journal.write("state", id="a", state="done", code=0)
    for path in (run.journal.path, run.folder):
        if path.exists():
            os.utime(path, (1e6 - age_s, 1e6 - age_s))
    return run


def test_a_run_that_is_not_over_is_never_removed() -> None:
    """However old it is."""
    assert not remove_if_over(old_run(1e6, over=False), 1e6)
    assert remove_if_over(old_run(10), 1e6)
    assert not remove_if_over(old_run(0), 1e6)
    assert len(load_runs()) == 2


def test_a_run_that_somebody_holds_is_not_removed() -> None:
    """Its driver may be about to write."""
    run = old_run(10)
    with run.hold(), pytest.raises(StateBusyError):
        run.remove()
    assert run.folder.exists()


def test_old_runs_go_when_there_are_many() -> None:
    """Only then, only old ones, only those that are over."""
    kept = [old_run(10), old_run(1e5, over=False)]
    gone = [old_run(1e5 + at) for at in range(3)]
    clean_at_limit(6, 5e4, clock=lambda: 1e6)
    assert all(run.folder.exists() for run in gone)
    for run in [*kept, *gone]:
        os.utime(run.folder, (1e6 - 1e5, 1e6 - 1e5))
    (kept[1].folder.parent / "not-a-run").mkdir()
    clean_at_limit(6, 5e4, clock=lambda: 1e6)
    assert [run.folder.exists() for run in gone] == [False, False, False]
    assert kept[1].folder.exists()


def test_ends_that_nobody_wrote_down_are_written_down(site: Path) -> None:
    """One look at what was left to a scheduler; what goes on stays as it is."""
    place = load_transformer("site")
    run = create_run(place.render(graph(job("a"))))
    assert not note_ends(run).over
    drive_here(place, run, until_over=True)
    assert note_ends(run).over
    with run.hold():
        assert note_ends(run).over


def test_a_driver_takes_lost_work_as_it_is() -> None:
    """Nothing is submitted again for it."""
    place, run = make_run(job("a"), job("b", "a"))
    run.journal.write("submitted", id="a", state="running", handle={"id": "job-a"})
    place.world.story = iter([{"a": StepStatus(State.LOST)}])
    wake = Wake()
    try:
        with wake.signals(signal.SIGTERM):
            Driver(place, run, wake).drive(until_over=True)
    finally:
        wake.close()
    assert place.world.submitted == []
    assert run.progress().entries["b"].status.reason == "it needs afterok:a, which is lost"
    assert ended(0).state is State.DONE


def test_steps_begin_in_the_order_of_the_plan() -> None:
    """Where nothing else decides, as they stand in the file."""
    names = [f"t{at}" for at in range(20)]
    place, run = make_run(*(job(name) for name in names))
    place.world.story = iter([dict.fromkeys(names, ended(0))])
    drive_here(place, run, until_over=True)
    assert place.world.submitted == names
