"""Jobspecs on a real Flux when something goes wrong: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flux.instance import Instance
from flux.jobspec_runs import RUNS, carry_out, printed, states
from jobspec_work import make, shell, the_run
from milkweed.errors import UnreachableError
from milkweed.jobspec.driver import carry_out as carry_out_plan
from milkweed.jobspec.graph import Group, Need, Shape, Work
from milkweed.jobspec.transformers.flux import Transformer
from programs import wait_until


def test_cancelling(instance: Instance) -> None:
    """What runs and what waits is ended, on all nodes, also in a group."""
    wide = Shape(nodes=2, slots=2)
    group = Group(id="g", work=Work(argv=(), shape=wide), steps=(shell("g/a", "sleep 300"),))
    graph = make(shell("a", "sleep 300", shape=wide), shell("b", "true", Need("a")), group)
    run, _ = carry_out(graph, wait=False)
    wait_until(lambda: states(run)["a"] == "running", 20)
    Transformer().cancel(run)
    wait_until(lambda: not instance.jobs(), 30)
    assert set(states(run).values()) == {"cancelled"}
    assert Transformer().wait(run, 5) == 143


def test_what_flux_refuses_was_not_submitted(instance: Instance) -> None:
    """The step has failed with Flux's reason, and what comes after its submission is left out."""
    unknown: Any = {"dependencies": [{"scheme": "afterok", "value": "1234567"}]}
    before = len(instance.jobs(ended=True))
    graph = make(shell("a", "true", attributes=unknown), shell("b", "true", Need("a", "submitted")))
    run, _ = carry_out(graph)
    assert states(run) == {"a": "failed", "b": "skipped"}
    assert run.progress().entries["a"].refused
    assert run.progress().exit_code() == 1
    assert len(instance.jobs(ended=True)) == before


def test_cancelled_by_somebody_else(instance: Instance) -> None:
    """Somebody's `flux cancel` is told as such."""
    run, _ = carry_out(make(shell("a", "sleep 300")), wait=False)
    wait_until(lambda: states(run)["a"] == "running", 20)
    instance.run("cancel", "--all")
    assert Transformer().wait(run, 30) == 143
    assert "cancel" in Transformer().status(run).entries["a"].status.reason


def test_an_instance_that_is_gone(own_instance: Instance) -> None:
    """Nobody answers, so nothing is known; what was printed before is still there."""
    run, _ = carry_out(make(shell("done", "echo before")))
    later, _ = carry_out(make(shell("a", "echo begun; sleep 300")), wait=False)
    wait_until(lambda: states(later)["a"] == "running", 20)
    own_instance.kill()
    assert states(later) == {"a": "unknown"}
    with pytest.raises(UnreachableError):
        Transformer().cancel(later)
    assert printed(run) == ["done| before"]
    assert states(run) == {"done": "done"}


@pytest.mark.slow
def test_a_silent_instance_is_waited_for(own_instance: Instance) -> None:
    """It is silent in the middle of a submission: that is told, and the job is submitted once."""
    shown: list[str] = []

    def show(_label: str, line: str) -> None:
        shown.append(line)
        if "waiting for an answer" in line:
            threading.Timer(1.0, own_instance.thaw).start()

    transformer = Transformer()
    transformer.check_instance()
    plan = transformer.render(make(shell("a", "echo once", wait=True)))
    own_instance.freeze()
    run = carry_out_plan(transformer, plan, wait=True, show=show)
    assert run.progress().exit_code() == 0
    assert printed(run) == ["a| once"]
    assert len([line for line in shown if "waiting for an answer" in line]) == 1
    assert len(own_instance.jobs(ended=True)) == 1


@pytest.mark.slow
def test_a_submission_without_an_answer(own_instance: Instance) -> None:
    """The intent stays, and whoever carries the run on submits it once."""
    transformer = Transformer()
    transformer.check_instance()
    plan = transformer.render(make(shell("a", "echo once")))
    own_instance.freeze()
    with pytest.raises(UnreachableError):
        carry_out_plan(transformer, plan, wait=False)
    own_instance.thaw()
    run = the_run()
    assert run.progress().entries["a"].intended
    Transformer().carry_on(run, wait=True)
    assert printed(run) == ["a| once"]
    assert len(own_instance.jobs(ended=True)) == 1


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_crash_between_intent_and_record(replicas: int, instance: Instance) -> None:
    """The jobs are found by their mark, and are not made twice."""
    before = len(instance.jobs(ended=True))
    run, _ = carry_out(
        make(shell("a", "echo once; sleep 2; exit 4", replicas=replicas)), wait=False
    )
    journal = run.journal.path
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"intent"' in line))
    Transformer().carry_on(run, wait=True)
    assert [line.partition("| ")[2] for line in printed(run)] == ["once"] * replicas
    assert run.progress().exit_code() == 4
    assert len(instance.jobs(ended=True)) - before == replicas


def test_a_crash_between_two_replicas(instance: Instance) -> None:
    """Those that were submitted are found, and only the others are submitted."""
    run, _ = carry_out(make(shell("a", "echo once", replicas=3)), wait=True)
    step = Transformer().make_step(run, "a", run.progress())
    handle = run.progress().entries["a"].handle
    assert handle is not None
    ids = handle["ids"]
    assert isinstance(ids, list)
    instance.run("job", "purge", "--force", str(ids[1]))
    assert step.find() is None
    made = step.run(run.files)
    assert isinstance(made, dict)
    again = made["ids"]
    assert isinstance(again, list)
    assert (again[0], again[2]) == (ids[0], ids[2])
    assert again[1] != ids[1]
    wait_until(lambda: step.poll(made).state.over, 20)


def test_a_driver_that_is_killed(instance: Instance, tmp_path: Path) -> None:
    """SIGKILL in the middle of a run: the next one goes on where it was, with no job twice."""
    is_running = lambda: any(job["state"] == "RUN" for job in instance.jobs())  # noqa: E731
    run = RUNS.carry_on_after_a_kill("flux", tmp_path, is_running)
    assert run.progress().exit_code() == 0
    lines = printed(run)
    assert len([line for line in lines if "installing" in line]) == 2
    assert len([line for line in lines if "hello from" in line]) == 2
