"""Carrying out plans on a scheduler in memory: order, failures, crashes, cancelling."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from milkweed.errors import BackendError, StateBusyError, UnreachableError, UnsupportedError
from milkweed.jobspec.driver import Driver, Wake, cancel_run, describe
from milkweed.jobspec.graph import Graph, Need, Stage, Write
from milkweed.jobspec.progress import DONE, State, StepStatus, ended
from milkweed.jobspec.runs import Run, create_run, load_runs
from milkweed.jobspec.steps import Handle, StepBase
from milkweed.testing import FakeClock
from unit.jobspecs import NativeTalker, Talker, TalkStep, graph, job

RUNNING = StepStatus(State.RUNNING)


def play(talker: Talker, steps: Graph, *chapters: dict[str, StepStatus], wait: bool = True) -> Run:
    """Run a graph while the world goes through its chapters."""
    talker.world.story = iter(chapters)
    return talker.run(talker.render(steps), wait=wait)


def states(run: Run) -> dict[str, str]:
    return {name: entry.status.state.value for name, entry in run.progress().entries.items()}


def test_a_step_starts_when_what_it_needs_has_ended_well() -> None:
    """Two steps of a chain are never submitted together."""
    talker = Talker()
    seen: list[list[str]] = []

    def story() -> Iterator[dict[str, StepStatus]]:
        for name in ("a", "b", "c"):
            seen.append(list(talker.world.submitted))
            yield {name: DONE}

    talker.world.story = story()
    run = talker.run(talker.render(graph(job("a"), job("b", "a"), job("c", "b"))), wait=True)
    assert seen == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert run.progress().exit_code() == 0


def test_what_needs_a_failed_step_is_skipped() -> None:
    """The rest goes on, the code is that of the failure, and the reason is told."""
    talker = Talker()
    steps = graph(
        job("a"), job("b", "a"), job("c", "b"), job("d"), job("e", Need("a", "afternotok"))
    )
    run = play(talker, steps, {"a": ended(9), "d": DONE}, {"e": DONE})
    assert states(run) == {"a": "failed", "b": "skipped", "c": "skipped", "d": "done", "e": "done"}
    assert run.progress().exit_code() == 9
    assert run.progress().entries["b"].status.reason == "it needs afterok:a, which is failed"


def test_after_is_when_it_runs() -> None:
    """A step that only has to have started holds up nobody longer."""
    talker = Talker()
    run = play(
        talker,
        graph(job("a"), job("b", Need("a", "after"))),
        {"a": StepStatus(State.PENDING)},
        {"a": RUNNING},
        {"b": DONE},
        {"a": DONE},
    )
    assert talker.world.submitted == ["a", "b"]
    assert states(run) == {"a": "done", "b": "done"}


def test_a_scheduler_that_knows_needs_gets_all_at_once() -> None:
    """Steps are handed over together, each with the handles of those that it needs."""
    talker = NativeTalker()
    run = play(talker, graph(job("a"), job("b", "a"), job("c", Need("b", "afterany"))), wait=False)
    assert talker.world.submitted == ["a", "b", "c"]
    assert talker.world.before["c"] == {"b": {"id": "job-b"}}
    assert talker.world.pauses == 0
    assert states(run) == {"a": "pending", "b": "pending", "c": "pending"}


def test_a_native_need_that_fails_in_the_same_look() -> None:
    """What a scheduler was to wait for has failed by the time the last other need came true: it is not begun."""
    talker = NativeTalker()
    talker.world.story = iter([{"slow": DONE, "bad": ended(3)}])
    steps = graph(job("slow"), job("bad"), job("c", "bad", Need("slow", "after")))
    run = talker.run(talker.render(steps), wait=True)
    assert states(run) == {"slow": "done", "bad": "failed", "c": "skipped"}
    assert talker.world.submitted == ["slow", "bad"]


def test_needs_that_a_scheduler_does_not_keep_are_waited_for() -> None:
    """A kind that is not among its own is kept by whoever drives."""
    talker = NativeTalker()
    play(talker, graph(job("a"), job("b", Need("a", "afternotok"))), {"a": ended(1)}, wait=False)
    assert talker.world.before["b"] == {"a": {"id": "job-a"}}


def test_nobody_waits_for_what_says_nothing() -> None:
    """Without `wait`, a run is left as soon as everything is handed over."""
    talker = Talker()
    run = play(talker, graph(job("a"), job("b")), wait=False)
    assert states(run) == {"a": "pending", "b": "pending"}
    assert not run.is_driven()


def test_a_step_that_says_wait_is_waited_for() -> None:
    """The run is left when that step is over, whatever else still runs."""
    talker = Talker()
    run = play(
        talker, graph(job("a", wait=True), job("b")), {"b": RUNNING}, {"a": DONE}, wait=False
    )
    assert states(run) == {"a": "done", "b": "running"}


def test_files_are_written_before_they_are_needed() -> None:
    """Write steps are done here and at once; a step that is skipped by the transformer is done, too."""
    talker = Talker()
    write = Write(id="w", filename="x.sh", content=b"echo", executable=True)
    stage = Stage(id="s", filename="x.sh", needs=(Need("w"),))
    run = play(talker, graph(write, stage, job("a", "s")), {"a": DONE})
    assert (run.files / "x.sh").read_bytes() == b"echo"
    assert (run.files / "x.sh").stat().st_mode & 0o777 == 0o700
    assert states(run) == {"w": "done", "s": "done", "a": "done"}


def test_nobody_answered_is_not_the_end() -> None:
    """UNKNOWN is written down, and the step is asked about again."""
    talker = Talker()
    unknown = StepStatus(State.UNKNOWN, None, "no answer")
    run = play(
        talker,
        graph(job("a"), job("b", "a")),
        {"a": unknown},
        {"a": RUNNING},
        {"a": DONE},
        {"b": DONE},
    )
    assert states(run) == {"a": "done", "b": "done"}
    said = [line.get("state") for line in run.journal.read()[0] if line["id"] == "a"]
    assert said == [None, "pending", "unknown", "running", "done"]


def test_the_intent_is_written_before_anything_is_submitted() -> None:
    """A scheduler that says no fails the step; the journal has the intent first."""
    talker = Talker()
    talker.world.fail["a"] = BackendError("no such queue", seen="queue q")
    run = play(talker, graph(job("a"), job("b", "a")))
    events = [
        (line["event"], line.get("reason")) for line in run.journal.read()[0] if line["id"] == "a"
    ]
    assert events == [("intent", None), ("state", "no such queue (queue q)")]
    assert run.progress().exit_code() == 1


def test_a_submission_that_nobody_answered_stays_an_intent() -> None:
    """Whether it was taken is not known, so it is neither failed nor submitted twice: it is found by its mark."""
    talker = Talker()
    talker.world.fail["a"] = UnreachableError("no answer")
    plan = talker.render(graph(job("a")))
    with pytest.raises(UnreachableError):
        talker.run(plan, wait=False)
    (run,) = load_runs()
    entry = run.progress().entries["a"]
    assert (entry.intended, entry.handle, entry.status.state) == (True, None, State.WAITING)
    talker.world.marked[plan.mark("a")] = {"id": "job-a"}
    talker.world.story = iter([{"a": DONE}])
    talker.carry_on(run, wait=True)
    assert talker.world.submitted == []
    assert states(run) == {"a": "done"}


def test_an_intent_that_never_arrived_is_submitted_now() -> None:
    """Nothing carries its mark, so the next driver does it."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    run.journal.write("intent", id="a")
    talker.world.story = iter([{"a": DONE}])
    talker.carry_on(run, wait=True)
    assert talker.world.submitted == ["a"]


def test_what_nobody_can_find_is_never_submitted_twice() -> None:
    """A step without a way to look for its mark stops the next driver; cancelling notes it and ends the rest."""

    class Blind(TalkStep):
        """Submits, and cannot look."""

        find = StepBase.find

    class BlindTalker(Talker):
        """A transformer of a world that lists nothing."""

    BlindTalker.register_step(Blind)
    talker = BlindTalker()
    run = create_run(talker.render(graph(job("a"), job("b"))))
    run.journal.write("intent", id="a")
    run.journal.write("submitted", id="b", state="running", handle={"id": "job-b"})
    with pytest.raises(UnsupportedError, match="nobody can tell whether"):
        talker.carry_on(run, wait=True)
    assert talker.world.submitted == []
    talker.cancel(run)
    assert talker.world.cancelled == ["job-b"]
    assert states(run) == {"a": "unknown", "b": "cancelled"}


def test_a_driver_that_ended_is_replaced() -> None:
    """What runs is taken up with its handle, and the rest follows as if nothing had happened."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"), job("b", "a"))))
    run.journal.write("intent", id="a")
    run.journal.write("submitted", id="a", state="running", handle={"id": "job-a"})
    talker.world.story = iter([{"a": DONE}, {"b": DONE}])
    talker.carry_on(run, wait=True)
    assert talker.world.submitted == ["b"]
    assert states(run) == {"a": "done", "b": "done"}


def test_two_drivers_never_drive_one_run() -> None:
    """The second is refused before it reads a line."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    with run.hold(), pytest.raises(StateBusyError):
        talker.carry_on(run, wait=True)


def test_a_signal_cancels_what_runs_and_what_waits() -> None:
    """SIGTERM ends jobs, lets nothing else begin, and is heard between steps only."""
    talker = Talker()

    def story() -> Iterator[dict[str, StepStatus]]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield {"a": RUNNING}

    talker.world.story = story()
    run = talker.run(talker.render(graph(job("a"), job("b", "a"))), wait=True)
    assert talker.world.cancelled == ["job-a"]
    assert states(run) == {"a": "cancelled", "b": "cancelled"}
    assert run.progress().exit_code() == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_cancelling_from_elsewhere() -> None:
    """Whatever is not over is ended, also what was about to be submitted; what is over stays as it was."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"), job("b"), job("c"), job("d", "c"))))
    run.journal.write("state", id="a", state="done", code=0)
    run.journal.write("submitted", id="b", state="running", handle={"id": "job-b"})
    run.journal.write("intent", id="c")
    talker.world.marked[run.plan.mark("c")] = {"id": "job-c"}
    progress = talker.cancel(run)
    assert talker.world.cancelled == ["job-b", "job-c"]
    assert states(run) == {"a": "done", "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    assert progress.over
    assert not run.secrets.exists()


def test_a_driver_that_does_not_end_is_named(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """Cancelling gives up after a while, and says which process holds the run."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with run.hold(), pytest.raises(StateBusyError, match="its driver does not end") as caught:
            cancel_run(talker, run, sleep=clock.sleep, clock=clock)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert str(os.getpid()) in caught.value.seen


def test_a_mistake_in_a_transformer_is_not_waited_for() -> None:
    """A story that ends before its steps do is an error, not a program that hangs."""
    with pytest.raises(StopIteration):
        play(Talker(), graph(job("a")))


def test_steps_that_wait_for_nothing_are_told() -> None:
    """A plan that cannot go on says so."""
    talker = Talker()
    run = create_run(talker.render(graph(job("a"))))
    wake = Wake()
    driver = Driver(talker, run, wake)
    driver._queued.add("a")
    with pytest.raises(RuntimeError, match="these steps wait for nothing: a"):
        driver.drive(until_over=True)
    wake.close()


def test_what_was_refused_was_not_submitted() -> None:
    """In a chain of steps, what comes after one that nobody took is left out."""
    talker = Talker()
    talker.world.fail["a"] = BackendError("the queue is closed")
    found = graph(job("a"), job("b", Need("a", "submitted")), job("c", Need("a", "after")))
    run = talker.run(talker.render(found))
    assert talker.world.submitted == []
    states = {name: each.status.state for name, each in run.progress().entries.items()}
    assert states == {"a": State.FAILED, "b": State.SKIPPED, "c": State.SKIPPED}
    assert run.progress().entries["a"].refused


def test_all_are_ended_whatever_one_says() -> None:
    """One that cannot be ended keeps none of the others running."""

    class Stubborn(TalkStep):
        def cancel(self, handle: Handle) -> None:
            super().cancel(handle)
            if self.action.id == "a":
                raise BackendError("not now")

    class StubbornTalker(Talker):
        pass

    StubbornTalker.register_step(Stubborn)
    talker = StubbornTalker()
    run = talker.run(talker.render(graph(job("a"), job("b"))))
    with pytest.raises(BackendError, match="not now"):
        talker.cancel(run)
    assert talker.world.cancelled == ["job-a", "job-b"]


def test_a_pause_ends_with_the_word_to_stop() -> None:
    """Nobody sleeps through a signal, and many of them do no harm."""
    wake = Wake()
    for _ in range(100_000):
        wake.stop("first")
    wake.stop("second")
    wake.pause(1000)
    assert wake.stopped == "first"
    wake.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BackendError("w", seen="s"), "w (s)"),
        (BackendError("w"), "w"),
        (FileNotFoundError(2, "No such file", "x"), "No such file: x"),
        (OSError(5, "I/O error"), "I/O error"),
        (OSError("odd"), "OSError: odd"),
    ],
)
def test_reasons_fit_on_a_line(error: Exception, said: str) -> None:
    """Why a step failed is told in the journal without a traceback."""
    assert describe(error) == said
