"""Mistakes in the classes of plugins: told of the step, and nothing that was submitted is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.errors import UnreachableError
from milkweed.jobspec.progress import DONE, State
from milkweed.jobspec.runs import load_runs
from milkweed.jobspec.steps import Handle, StepBase
from unit.jobspecs import Talker, TalkStep, graph, job


def test_a_mistake_in_the_class_of_a_step_is_told_of_that_step() -> None:
    """It has failed with a reason that names the class; the rest of the run goes on."""
    talker = Talker()
    talker.world.fail["a"] = ZeroDivisionError("by zero")
    talker.world.story = iter([{"c": DONE}])
    run = talker.run(talker.render(graph(job("a"), job("b", "a"), job("c"))), wait=True)
    entries = run.progress().entries
    assert entries["a"].status.state is State.FAILED
    assert "unit.jobspecs.TalkStep.run: ZeroDivisionError: by zero" in entries["a"].status.reason
    assert entries["b"].status.state is State.SKIPPED
    assert entries["c"].status.state is State.DONE
    assert run.progress().exit_code() == 1


def test_a_mistake_after_submitting_loses_nothing() -> None:
    """What carries the mark of the step is found, and looked after as any other."""

    class Clumsy(TalkStep):
        def run(self, stage: Path) -> Handle:
            super().run(stage)
            raise ValueError("after it")

    class ClumsyTalker(Talker):
        pass

    ClumsyTalker.register_step(Clumsy)
    talker = ClumsyTalker()
    talker.world.story = iter([{"a": DONE}])
    run = talker.run(talker.render(graph(job("a"))), wait=True)
    assert run.progress().exit_code() == 0


def test_a_mistake_while_nobody_answers_stays_open() -> None:
    """Whether something was submitted is not known, so the intent stays, and nothing is forgotten."""

    class Silent(TalkStep):
        def run(self, stage: Path) -> Handle:
            raise ValueError("somewhere")

        def find(self) -> Handle | None:
            raise UnreachableError("nobody answers")

    class SilentTalker(Talker):
        pass

    SilentTalker.register_step(Silent)
    talker = SilentTalker()
    with pytest.raises(UnreachableError):
        talker.run(talker.render(graph(job("a"))))
    [run] = load_runs()
    entry = run.progress().entries["a"]
    assert (entry.intended, entry.status.state) == (True, State.WAITING)


@pytest.mark.parametrize("twice", [False, True])
def test_a_mistake_of_a_step_that_cannot_be_found(*, twice: bool) -> None:
    """Whether it submitted something nobody can tell: its mark is told, so that a person can look.

    Its class may be wrong there, too.
    """

    class Blind(StepBase):
        name = "submit"

        def run(self, stage: Path) -> None:
            raise ValueError("somewhere")

        def find(self) -> Handle | None:
            if twice:
                raise AttributeError("again")
            return super().find()

    class BlindTalker(Talker):
        pass

    BlindTalker.register_step(Blind)
    talker = BlindTalker()
    run = talker.run(talker.render(graph(job("a"))))
    reason = run.progress().entries["a"].status.reason
    assert f"look for {run.plan.mark('a')}" in reason
