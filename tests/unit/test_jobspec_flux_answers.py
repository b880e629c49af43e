"""What Flux answers to a run, or does not: nothing is submitted twice, and what is not known is not an end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.flux import commands
from milkweed.backends.flux.text import JobRow
from milkweed.errors import BackendError, SpecError, StateError, UnreachableError
from milkweed.jobspec import Run, load_runs
from milkweed.jobspec.graph import Auth, Graph, Group, Need, Shape, Stage, Submit, Work
from milkweed.jobspec.progress import State
from milkweed.jobspec.transformers.flux import Transformer
from milkweed.jobspec.transformers.flux_check import check_plan, read_counts
from milkweed.jobspec.transformers.flux_status import judge_row
from unit.jobspec_flux_runs import FakeFlux, Quick, data, flux, job, run
from unit.jobspecs import forget_record

__all__ = ["flux"]


def states(made: Run) -> dict[str, str]:
    return {name: entry.status.state.value for name, entry in made.progress().entries.items()}


def test_a_submission(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned is what Flux gets; variables of whoever submits are all that comes to it."""
    monkeypatch.setenv("COLOUR", "red")
    made = run(Quick(), job("a", shape=Shape(cores_per_slot=4)))
    [got] = flux.submitted
    environment = got["attributes"]["system"].pop("environment")
    assert got == made.plan.actions[0].details["jobspec"]
    assert environment["COLOUR"] == "red"
    assert "FLUX_URI" not in environment
    handle = {"id": "1", "ids": ["1"], "uri": flux.uri}
    assert made.progress().entries["a"].handle == handle


def test_dependencies(flux: FakeFlux) -> None:
    """Flux keeps them itself, and everything is handed over at once."""
    run(
        Quick(),
        job("a"),
        job("b", Need("a", "after"), Need("a", "submitted")),
        job("c", "a", Need("b", "afterany")),
        job("d", Need("c", "afternotok")),
    )
    found = [each["attributes"]["system"].get("dependencies") for each in flux.submitted]
    assert found == [
        None,
        [{"scheme": "after", "value": "1"}],
        [{"scheme": "afterok", "value": "1"}, {"scheme": "afterany", "value": "2"}],
        [{"scheme": "afternotok", "value": "3"}],
    ]


def test_replicas(flux: FakeFlux) -> None:
    """A job for each, with its number; whoever needs the step needs all of them."""
    made = run(Quick(), job("r", replicas=3), job("b", "r"))
    assert made.plan.actions[0].kind == "submit-replicas"
    numbers = [
        each["attributes"]["system"]["environment"].get("JOBSPEC_REPLICA")
        for each in flux.submitted
    ]
    assert numbers == ["0", "1", "2", None]
    waits = flux.submitted[3]["attributes"]["system"]["dependencies"]
    assert [each["value"] for each in waits] == ["1", "2", "3"]


def test_one_failed_replica_is_waited_for_here(flux: FakeFlux) -> None:
    """Flux could only wait until all have failed, so whoever drives the run looks."""

    def end() -> None:
        for number, code in enumerate((0, 5, 0), 1):
            flux.end(number, code)

    quick = Quick(end, lambda: flux.end(4))
    made = run(quick, job("r", replicas=3), job("b", Need("r", "afternotok")), wait=True)
    assert states(made) == {"r": "failed", "b": "done"}
    assert "dependencies" not in flux.submitted[3]["attributes"]["system"]
    assert made.progress().exit_code() == 5


def test_a_refusal_in_the_middle_of_replicas(flux: FakeFlux) -> None:
    """What was submitted is ended, and the step has failed with Flux's own words."""
    flux.then(
        'if [ "$1 $2" = "job submit" ] && [ -f "$home/submitted/1" ]; then echo "no more" >&2; exit 1; fi'
    )
    made = run(Quick(), job("r", replicas=3))
    assert ["cancel", "1"] in flux.calls
    assert states(made) == {"r": "failed"}
    assert "no more" in made.progress().entries["r"].status.reason


def test_waiting_for_the_end(flux: FakeFlux) -> None:
    """The code of the run is that of the work; what needed it is told as left out; output is kept."""
    flux.output(1, {"name": "header", "context": {"count": {"stdout": 1}}}, data("out\n"))

    def end() -> None:
        flux.end(1, 9)
        dead = {"occurred": True, "type": "dependency", "severity": 0, "note": "never"}
        flux.end(2, 1, exception=dead)

    made = run(Quick(end), job("a"), job("b", "a"), wait=True)
    assert states(made) == {"a": "failed", "b": "skipped"}
    assert made.progress().exit_code() == 9
    flux.be_away()
    assert list(Transformer().logs(made)) == [("a", "out")]


def test_a_need_that_failed_meanwhile(flux: FakeFlux) -> None:
    """Flux refuses a job that could never start: the step is left out."""

    class Late(Quick):
        """Its first job fails before the second is submitted."""

    flux.then(
        'if [ "$1 $2" = "job submit" ] && [ -f "$home/submitted/1" ]; then\n'
        'printf \'{"id": 1, "state": "INACTIVE", "name": "a", "result": "FAILED", "returncode": 3, "waitstatus": 768}\''
        ' >"$home/jobs/1"; echo "dependency: afterok: job 1 failed or was canceled" >&2; exit 1; fi'
    )
    made = run(Late(lambda: None), job("a"), job("b", "a"), wait=True)
    assert states(made) == {"a": "failed", "b": "skipped"}
    assert made.progress().entries["b"].status.reason == "it needs afterok:a, which is failed"


def test_local_steps(flux: FakeFlux) -> None:
    """They are processes of this machine, with their own exit code."""
    here = Submit(id="here", work=Work(argv=("sh", "-c", "echo here; exit 3")), local=True)
    transformer = Transformer()
    made = transformer.run(transformer.render(Graph(steps=(here,))))
    assert made.progress().exit_code() == 3
    assert list(transformer.logs(made)) == [("here", "here")]
    assert flux.submitted == []


@pytest.mark.parametrize("state", ["SCHED", "RUN", "INACTIVE"])
def test_a_crash_before_the_record(state: str, flux: FakeFlux) -> None:
    """The job is found by its mark, in whatever state, and by nothing else."""
    other = run(Quick(), job("a"))
    made = run(Quick(), job("a"))
    forget_record(made)
    flux.say(2, state=state)
    Quick().carry_on(made)
    assert len(flux.submitted) == 2
    assert made.progress().entries["a"].handle == {"id": "2", "ids": ["2"], "uri": flux.uri}
    assert other.id != made.id


def test_a_crash_between_two_replicas(flux: FakeFlux) -> None:
    """Those that are there are found, and only the others are submitted."""
    (flux.home / "name").write_text("r")
    made = run(Quick(), job("r", replicas=2))
    forget_record(made)
    flux.forget(1)
    Quick().carry_on(made)
    assert made.progress().entries["r"].handle == {"id": "3", "ids": ["3", "2"], "uri": flux.uri}
    assert len(flux.submitted) == 3


def test_an_intent_without_a_submission(flux: FakeFlux) -> None:
    """Nothing was asked, so nothing is looked for: it is submitted now."""
    transformer = Quick()
    made = run(transformer, job("a"))
    forget_record(made)
    (made.folder / "asked" / "a").unlink()
    flux.calls.clear()
    Quick().carry_on(made)
    assert len(flux.submitted) == 2


def test_a_submission_without_an_answer(flux: FakeFlux) -> None:
    """The intent stays; it is looked for twice, and then submitted once."""
    flux.then(
        'if [ "$1 $2" = "job submit" ]; then echo "flux-job: flux_open: Connection refused" >&2; exit 1; fi'
    )
    with pytest.raises(UnreachableError):
        run(Quick(), job("a"))
    [made] = load_runs()
    assert made.progress().entries["a"].intended
    flux.then("")
    Quick().carry_on(made)
    assert len(flux.submitted) == 1
    listed = [call for call in flux.calls if "-a" in call]
    assert len(listed) >= 2


def test_whoever_waits_waits_for_the_instance(flux: FakeFlux) -> None:
    """Silence in the middle of submitting is told, and waited for."""
    shown: list[str] = []
    quick = Quick(flux.come_back, lambda: flux.end(1))
    plan = quick.render(Graph(steps=(job("a"),)))
    quick.check_instance()
    from milkweed.jobspec.driver import carry_out

    flux.be_away()
    made = carry_out(quick, plan, wait=True, show=lambda _label, line: shown.append(line))
    assert states(made) == {"a": "done"}
    assert [line for line in shown if "waiting for an answer" in line] == shown
    assert len(flux.submitted) == 1


def test_silence_and_oblivion(flux: FakeFlux) -> None:
    """An instance that is away says nothing of a job; one that has forgotten it makes it lost."""
    made = run(Quick(), job("a"))
    flux.be_away()
    assert Transformer().status(made).entries["a"].status.state is State.UNKNOWN
    with pytest.raises(UnreachableError):
        Transformer().cancel(made)
    flux.come_back()
    flux.forget(1)
    commands.queue(flux.uri).wake()
    assert Transformer().status(made).entries["a"].status.state is State.LOST


def test_jobs_are_asked_for_where_they_are(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is looked after from anywhere: its handle knows the instance."""
    made = run(Quick(), job("a"))
    monkeypatch.setenv("FLUX_URI", "local:///nowhere/else")
    flux.then('[ "$FLUX_URI" = "local://$home/local-0" ] || { echo "broker socket" >&2; exit 1; }')
    commands.queue(flux.uri).wake()
    assert Transformer().status(made).entries["a"].status.state is State.RUNNING
    Transformer().cancel(made)
    assert ["cancel", "1"] in flux.calls


def test_no_flux_here(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan can be made anywhere; running it says what is missing, and what would work."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("FLUX_URI", "local:///other")
    transformer = Transformer()
    plan = transformer.render(Graph(steps=(job("a"),)))
    with pytest.raises(BackendError, match="there is no flux here") as caught:
        transformer.run(plan)
    assert "-t local" in caught.value.hint
    assert load_runs() == []


def test_no_instance_here(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where no instance answers."""
    flux.be_away()
    monkeypatch.setenv("FLUX_URI", "local:///gone")
    transformer = Transformer()
    plan = transformer.render(Graph(steps=(job("a"),)))
    with pytest.raises(UnreachableError) as caught:
        transformer.run(plan)
    assert "-t local" in caught.value.hint
    assert load_runs() == []


def test_what_the_instance_cannot_give(flux: FakeFlux) -> None:
    """It is refused before there is a run, all of it at once."""
    with pytest.raises(SpecError) as caught:
        run(
            Quick(),
            job("fine", queue="batch"),
            job("wide", shape=Shape(nodes=9, slots=9)),
            job("many", shape=Shape(slots=99, gpus_per_slot=1)),
            job("queue", queue="btach"),
        )
    text = str(caught.value)
    assert "step wide: 9 nodes with 1 slots of 1 cores each, but the instance has 4" in text
    assert "step many: 99 slots with 1 cores, 1 gpus each, but the instance has 8" in text
    assert "step queue: there is no queue 'btach'" in text
    assert "fine" not in text
    assert flux.submitted == []
    assert load_runs() == []


def test_constraints_are_for_flux_to_judge(flux: FakeFlux) -> None:
    """Which nodes may be chosen is not known here."""
    said = {"constraints": {"properties": ["fast"]}}
    plan = Transformer().render(Graph(steps=(job("a", shape=Shape(slots=999), attributes=said),)))
    check_plan(plan, [], [])
    resources: Any = plan.actions[0].details["jobspec"]
    assert read_counts(resources["resources"]) == {"slot": 999, "core": 1}


def test_a_plan_of_another_home(
    flux: FakeFlux, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where secrets are is in the jobspec, so it must be that folder."""
    auth = Auth(id="s", secret="token", variable="PATH")
    quick = Quick()
    plan = quick.render(Graph(steps=(auth, job("a", "s"))))
    monkeypatch.setenv("MILKWEED_HOME", str(tmp_path / "other"))
    made = quick.run(plan)
    assert "the jobspec was made for" in made.progress().entries["a"].status.reason
    with pytest.raises(StateError):
        quick.make_step(made, "a", made.progress()).run(made.files)


def test_a_group_prepares_what_is_inside(
    flux: FakeFlux, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Secrets are got and large files archived before its job is submitted; archives go with the run."""
    monkeypatch.setenv("SOURCE", "s3cret")
    (tmp_path / "big").write_bytes(os.urandom(600_000))
    group = Group(
        id="g",
        work=Work(argv=()),
        steps=(
            Auth(id="g/auth", secret="token", variable="SOURCE", export="TOKEN"),
            Stage(id="g/big", path=str(tmp_path / "big")),
            job("g/a", "g/auth", "g/big"),
        ),
    )
    made = run(Quick(lambda: flux.end(1)), group, wait=True)
    assert states(made) == {"g": "done"}
    assert "s3cret" not in json.dumps(flux.submitted)
    archived = [call[1] for call in flux.calls if call[0] == "archive"]
    assert archived == ["create", "remove"]
    assert not made.secrets.exists()


def test_an_archive_that_is_refused(flux: FakeFlux, tmp_path: Path) -> None:
    """Only an instance's owner can make one: that is told, with what to do."""
    (tmp_path / "big").write_bytes(os.urandom(600_000))
    flux.then(
        'if [ "$1 $2" = "archive create" ]; then echo "Request requires owner" >&2; exit 1; fi'
    )
    made = run(Quick(), Stage(id="s", path=str(tmp_path / "big")), job("a", "s"))
    assert states(made) == {"s": "failed", "a": "skipped"}
    assert "could not be put into an archive" in made.progress().entries["s"].status.reason


def test_archives_of_a_run_that_nobody_drives(flux: FakeFlux, tmp_path: Path) -> None:
    """Who sees that all is over takes them away, once."""
    (tmp_path / "big").write_bytes(os.urandom(600_000))
    made = run(Quick(), Stage(id="s", path=str(tmp_path / "big")), job("a", "s"))
    flux.end(1)
    for _ in range(2):
        commands.queue(flux.uri).wake()
        assert Transformer().status(made).over
    assert [call[1] for call in flux.calls if call[0] == "archive"] == ["create", "remove"]


def test_cancelling(flux: FakeFlux) -> None:
    """All jobs with one word; those that ended meanwhile are fine, a refusal is not."""
    made = run(Quick(), job("a"), job("b", replicas=2))
    flux.then(
        'if [ "$1" = cancel ]; then echo "flux-cancel: ERROR: f1: job is inactive" >&2; exit 1; fi'
    )
    ended = Transformer().cancel(made).entries.values()
    assert {each.status.state for each in ended} == {State.CANCELLED}
    assert ["cancel", "1", "2", "3"] in flux.calls
    flux.then('if [ "$1" = cancel ]; then echo "flux-cancel: ERROR: f1: not yours" >&2; exit 1; fi')
    with pytest.raises(BackendError):
        Transformer().cancel(run(Quick(), job("a")))


# How a job is


@pytest.mark.parametrize(
    ("said", "state", "code"),
    [
        ({"state": "DEPEND", "dependencies": ("after-success=1",)}, State.PENDING, None),
        ({"state": "SCHED", "waits_for": "priority"}, State.PENDING, None),
        ({"state": "RUN"}, State.RUNNING, None),
        ({"state": "CLEANUP"}, State.RUNNING, None),
        ({"result": "COMPLETED", "exit_code": 0}, State.DONE, 0),
        ({"result": "FAILED", "exit_code": 137}, State.FAILED, 137),
        ({"result": "FAILED", "trouble": "alloc", "note": "unsatisfiable"}, State.FAILED, 1),
        ({"result": "FAILED", "trouble": "dependency"}, State.SKIPPED, None),
        ({"result": "CANCELED", "exit_code": 143, "trouble": "cancel"}, State.CANCELLED, 143),
        ({"result": "TIMEOUT", "exit_code": 142, "trouble": "timeout"}, State.FAILED, 124),
    ],
)
def test_how_a_job_is(said: dict[str, Any], state: State, code: int | None) -> None:
    """States and results of Flux, as those of a step."""
    row = JobRow(job_id=1, **{"state": "INACTIVE", **said})
    status = judge_row(row)
    assert (status.state, status.code) == (state, code)
