"""A scheduler that falls silent while a run is handed over: whoever waits for the run waits for it, and says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from milkweed.errors import UnreachableError, UnsupportedError
from milkweed.jobspec.driver import Driver, Wake
from milkweed.jobspec.progress import DONE, State, StepStatus
from milkweed.jobspec.runs import Run, create_run, load_runs
from milkweed.jobspec.steps import StepBase
from unit.jobspecs import Talker, TalkStep, graph, job

SILENT = UnreachableError("the scheduler did not answer", seen="nothing within 30 s")
Shown = list[tuple[str, str]]


def states(run: Run) -> dict[str, str]:
    """How each step is."""
    return {name: entry.status.state.value for name, entry in run.progress().entries.items()}


def wait_for(talker: Talker) -> tuple[Run, Shown]:
    """Run two steps to their end; the run, and what was shown."""
    shown: Shown = []
    steps = graph(job("a"), job("b", "a"))
    run = talker.run(
        talker.render(steps), wait=True, show=lambda label, line: shown.append((label, line))
    )
    return run, shown


def test_whoever_waits_waits_for_an_answer() -> None:
    """The step is handed over when the scheduler answers again, once, and the silence is told once."""
    talker = Talker()
    talker.world.fail["a"] = SILENT

    def story() -> Iterator[dict[str, StepStatus]]:
        yield {}
        yield {}
        del talker.world.fail["a"]
        yield {}
        yield {"a": DONE}
        yield {"b": DONE}

    talker.world.story = story()
    run, shown = wait_for(talker)
    assert states(run) == {"a": "done", "b": "done"}
    assert talker.world.submitted == ["a", "b"]
    words = "the scheduler did not answer (nothing within 30 s): waiting for an answer"
    assert shown == [("milkweed", words)]


def test_what_was_taken_in_silence_is_found() -> None:
    """The scheduler took it and could not say so: it is not handed over a second time."""
    talker = Talker()
    talker.world.fail["a"] = SILENT

    def story() -> Iterator[dict[str, StepStatus]]:
        (run,) = load_runs()
        yield {}
        talker.world.marked[run.plan.mark("a")] = {"id": "job-a"}
        yield {}
        yield {"a": DONE}
        yield {"b": DONE}

    talker.world.story = story()
    run, _ = wait_for(talker)
    assert states(run) == {"a": "done", "b": "done"}
    assert talker.world.submitted == ["b"]


class Deaf(TalkStep):
    """A job that cannot be looked for while the scheduler is silent."""

    def find(self) -> dict[str, str] | None:
        """Ask the silent scheduler."""
        if self.action.id in self.world.fail:
            raise self.world.fail[self.action.id]
        return None


class DeafTalker(Talker):
    """Its world answers nothing at all for a while."""


DeafTalker.register_step(Deaf)


def test_a_run_that_is_taken_up_in_silence() -> None:
    """An intent of an earlier driver is looked for until somebody answers."""
    talker = DeafTalker()
    run = create_run(talker.render(graph(job("a"))))
    run.journal.write("intent", id="a")
    talker.world.fail["a"] = SILENT

    def story() -> Iterator[dict[str, StepStatus]]:
        yield {}
        talker.world.fail.clear()
        yield {}
        yield {"a": DONE}

    talker.world.story = story()
    talker.carry_on(run, wait=True)
    assert states(run) == {"a": "done"}
    assert talker.world.submitted == ["a"]


@pytest.mark.parametrize("taken", [True, False])
def test_cancelled_in_silence(taken: bool) -> None:
    """What may have been taken is not called cancelled while nobody knows; what is found is ended."""
    talker = DeafTalker() if not taken else Talker()
    talker.world.fail["a"] = SILENT
    run = create_run(talker.render(graph(job("a"), job("b", "a"))))
    wake = Wake()

    def story() -> Iterator[dict[str, StepStatus]]:
        if taken:
            talker.world.marked[run.plan.mark("a")] = {"id": "job-a"}
        wake.stop("stopped by a test")
        yield {}

    talker.world.story = story()
    with run.hold():
        Driver(talker, run, wake).drive(until_over=True)
    wake.close()
    found = states(run)
    assert found["b"] == "cancelled"
    assert found["a"] == ("cancelled" if taken else "unknown")
    assert talker.world.cancelled == (["job-a"] if taken else [])


class Lost(TalkStep):
    """A job that nobody can look for."""

    find = StepBase.find


class LostTalker(Talker):
    """Its jobs carry no mark."""


LostTalker.register_step(Lost)


def test_what_cannot_be_looked_for_is_not_waited_for() -> None:
    """A step without a way to find it again is never handed over twice: that is an error."""
    talker = LostTalker()
    talker.world.fail["a"] = SILENT
    talker.world.story = iter([{}])
    with pytest.raises(UnsupportedError, match="nobody can tell"):
        wait_for(talker)
    (run,) = load_runs()
    assert run.progress().entries["a"].status.state is State.WAITING
