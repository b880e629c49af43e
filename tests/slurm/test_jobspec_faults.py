"""Jobspecs on a real cluster when something goes wrong: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from jobspec_work import hold
from milkweed.errors import UnreachableError
from milkweed.jobspec.driver import carry_out as carry_out_plan
from milkweed.jobspec.graph import Group, Need, Shape, Work
from milkweed.jobspec.transformers.slurm import Transformer
from programs import wait_until
from slurm.jobspec_runs import (
    RUNS,
    carry_out,
    left_behind,
    make,
    printed,
    shell,
    states,
    the_run,
)
from slurm.lab import Lab


def test_cancelling(home: Path, lab: Lab) -> None:
    """What runs and what waits is ended, on all nodes, with its folders."""
    wide = Shape(nodes=2, slots=2)
    graph = make(shell("a", "sleep 300", shape=wide), shell("b", "true", Need("a")))
    run, _ = carry_out(graph, wait=False)
    wait_until(lambda: states(run)["a"] == "running", 60)
    wait_until(lambda: len(left_behind(lab)) == 2, 60)
    Transformer().cancel(run)
    lab.wait_jobs_gone()
    assert set(states(run).values()) == {"cancelled"}
    assert Transformer().wait(run, 5) == 143
    wait_until(lambda: not left_behind(lab), 60)


def test_what_slurm_refuses_was_not_submitted(
    home: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has failed with Slurm's reason, and what comes after its submission is left out."""
    monkeypatch.setenv("SBATCH_RESERVATION", "nowhere")
    run, _ = carry_out(make(shell("a", "true"), shell("b", "true", Need("a", "submitted"))))
    assert states(run) == {"a": "failed", "b": "skipped"}
    assert "reservation" in run.progress().entries["a"].status.reason
    assert not lab.jobs()


def test_work_that_wants_another_kind_of_machine(home: Path, lab: Lab) -> None:
    """It is not begun on this one, alone and in a group, and says why."""
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    requires: Any = {"requires": [{"name": "m", "field": "cpu.target", "value": other}]}
    work = Work(argv=(), attributes=requires)
    group = Group(id="g", work=work, steps=(shell("g/a", "echo never"),))
    run, _ = carry_out(make(shell("a", "echo never", attributes=requires), group))
    assert run.progress().exit_code() == 78
    assert states(run) == {"a": "failed", "g": "failed"}
    said = [line for line in printed(run) if f"and the jobspec requires {other}" in line]
    assert sorted(line.partition("|")[0] for line in said) == ["a", "g/a"]
    assert "never" not in "".join(printed(run))


def test_cancelled_by_somebody_else(home: Path, lab: Lab) -> None:
    """An administrator's scancel is told as such."""
    run, _ = carry_out(make(shell("a", "sleep 300")), wait=False)
    wait_until(lambda: states(run)["a"] == "running", 60)
    lab.run("scancel", str(lab.jobs()[0].id))
    assert Transformer().wait(run, 60) == 143
    assert "CANCELLED" in Transformer().status(run).entries["a"].status.reason


@pytest.mark.once
def test_a_controller_that_is_away(home: Path, lab: Lab) -> None:
    """Nobody answers, so nothing is known; when it is back, everything is."""
    gate = home / "gate"
    run, _ = carry_out(make(shell("a", f"echo begun; {hold(gate)}; exit 6")), wait=False)
    wait_until(lambda: printed(run) == ["a| begun"], 60)
    lab.stop_controller()
    assert states(run)["a"] == "unknown"
    with pytest.raises(UnreachableError):
        Transformer().cancel(run)
    lab.start_controller()
    gate.touch()
    assert Transformer().wait(run, 120) == 6


@pytest.mark.once
def test_a_submission_without_an_answer(home: Path, lab: Lab) -> None:
    """The intent stays, and whoever carries the run on submits it once."""
    transformer = Transformer()
    plan = transformer.render(make(shell("a", "echo once")))
    transformer.check_cluster(plan)
    lab.stop_controller()
    with pytest.raises(UnreachableError):
        carry_out_plan(transformer, plan, wait=False)
    lab.start_controller()
    run = the_run()
    assert run.progress().entries["a"].intended
    Transformer().carry_on(run, wait=True)
    assert printed(run) == ["a| once"]


@pytest.mark.once
def test_whoever_waits_waits_for_the_controller(home: Path, lab: Lab) -> None:
    """It is away in the middle of a submission: that is told, and the job is submitted once it is back."""
    shown: list[str] = []

    def show(_label: str, line: str) -> None:
        shown.append(line)
        if "waiting for an answer" in line:
            lab.start_controller()

    transformer = Transformer()
    plan = transformer.render(make(shell("a", "echo once", wait=True)))
    transformer.check_cluster(plan)
    lab.stop_controller()
    run = carry_out_plan(transformer, plan, wait=True, show=show)
    assert run.progress().exit_code() == 0
    assert printed(run) == ["a| once"]
    assert len([line for line in shown if "waiting for an answer" in line]) == 1


@pytest.mark.parametrize("when", ["queued", "forgotten"])
def test_a_crash_between_intent_and_record(when: str, home: Path, lab: Lab) -> None:
    """The job is found by its mark, or by its own sign in the run's folder, and is not made twice."""
    gate = home / "gate"
    run, _ = carry_out(make(shell("a", f"echo once; {hold(gate)}; exit 4")), wait=False)
    journal = run.journal.path
    lines = journal.read_text().splitlines(keepends=True)
    wait_until(lambda: printed(run) == ["a| once"], 60)
    if when == "forgotten":
        gate.touch()
        lab.wait_jobs_gone()
        forget_jobs(lab)
    journal.write_text("".join(line for line in lines if '"intent"' in line))
    Transformer().carry_on(run)  # it is found, so nobody has to wait
    assert run.progress().entries["a"].handle is not None
    gate.touch()
    Transformer().wait(run, 120)
    Transformer().carry_on(run, wait=True)
    assert printed(run) == ["a| once"]
    assert run.progress().exit_code() == 4


def forget_jobs(lab: Lab) -> None:
    """Let Slurm forget every job, as it does after a while."""
    lab.stop_controller()
    state = lab.run_folder / "state"
    for path in state.glob("job_state*"):
        path.unlink()
    lab.start_controller()


def test_a_driver_that_is_killed(home: Path, lab: Lab) -> None:
    """SIGKILL in the middle of a run: the next one goes on where it was, with no job twice."""
    is_running = lambda: any(job.state == "RUNNING" for job in lab.jobs())  # noqa: E731
    run = RUNS.carry_on_after_a_kill("slurm", home.parent, is_running)
    assert run.progress().exit_code() == 0
    lines = printed(run)
    assert len([line for line in lines if "installing" in line]) == 2
    assert len([line for line in lines if "hello from" in line]) == 2
