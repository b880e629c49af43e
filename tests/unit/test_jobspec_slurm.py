"""The Slurm transformer: what sbatch is asked, and what is refused before that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import (
    BackendError,
    SpecError,
    StateError,
)
from milkweed.jobspec import load_runs, load_transformer, parse_jobspec
from milkweed.jobspec.driver import drive_here
from milkweed.jobspec.graph import (
    Auth,
    Custom,
    Group,
    Need,
    Shape,
    Stage,
    Step,
    Submit,
    Work,
)
from milkweed.jobspec.progress import State
from milkweed.jobspec.runs import Run, create_run, load_run, runs_folder
from milkweed.jobspec.transformers.slurm import Transformer
from milkweed.testing import FakeClock
from unit.jobspec_slurm_runs import Quick, graph, job, mark_of, number_jobs, refused, run
from unit.slurm_fake import FakeSlurm, shown


@pytest.fixture
def quick(clock: FakeClock, home: Path) -> Transformer:
    """A transformer that never really waits."""
    made = Quick()
    made.clock = clock
    made.sleep = clock.sleep
    return made


def test_it_is_found_by_its_name() -> None:
    """As the other transformers are."""
    assert isinstance(load_transformer("slurm"), Transformer)


def test_a_submission(cluster: FakeSlurm, quick: Transformer) -> None:
    """What was planned is what sbatch gets, word for word; the handle finds it again."""
    made = run(quick, job("a", shape=Shape(cores_per_slot=4)))
    [arguments] = cluster.submitted
    details: Any = made.plan.actions[0].details
    assert ["sbatch", *arguments] == details["command"]
    assert cluster.script == details["script"]
    assert f"--comment={mark_of(made)}" in arguments
    assert made.progress().entries["a"].handle == {"id": "7", "cluster": "lab"}
    assert not list((made.folder / "asked").rglob("asked-for"))


def test_dependencies(cluster: FakeSlurm, quick: Transformer) -> None:
    """Slurm keeps them itself, and everything is handed over at once."""
    number_jobs(cluster)
    run(
        quick,
        job("a"),
        job("b", Need("a", "after"), Need("a", "submitted")),
        job("c", "a", Need("b", "afterany")),
        job("d", Need("c", "afternotok")),
    )
    found = [
        [word for word in words if word.startswith("--dependency")] for words in cluster.submitted
    ]
    assert found == [
        [], ["--dependency=after:1"], ["--dependency=afterok:1,afterany:2"], ["--dependency=afternotok:3"]
    ]  # fmt: skip
    assert all("--kill-on-invalid-dep=yes" in words for words in cluster.submitted)


def test_what_has_ended_is_no_dependency(
    cluster: FakeSlurm, quick: Transformer, clock: FakeClock
) -> None:
    """Slurm takes a job that it has forgotten for one that ended well, so it is not asked."""
    number_jobs(cluster)
    cluster.answer("scontrol", shown(1))
    run(quick, job("a", wait=True), Auth(id="s", secret="s", file="/dev/null", needs=(Need("a"),)))
    assert len(cluster.submitted) == 1


def test_a_step_that_needs_more_than_jobs(
    cluster: FakeSlurm, quick: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are written and secrets got here, when what they need has come true."""
    monkeypatch.setenv("SOURCE", "s3cret")
    number_jobs(cluster)
    cluster.answer("scontrol", shown(1))
    auth = Auth(id="auth", secret="token", variable="SOURCE", needs=(Need("a"),))
    made = run(quick, job("a"), auth, job("b", "auth"))
    assert [state.status.state for state in made.progress().entries.values()][:2] == [
        State.DONE
    ] * 2
    assert "SOURCE" not in cluster.environment("sbatch")
    assert "s3cret" not in cluster.script
    assert "s3cret" not in (made.folder / "run.json").read_text()
    assert (made.secrets / "token").read_text() == "s3cret"


def test_waiting_for_the_end(cluster: FakeSlurm, quick: Transformer) -> None:
    """The code of the run is that of the work; what needed it is told as left out."""
    number_jobs(cluster)
    cluster.then(
        "scontrol",
        'case $* in *" 1") cat <<E\n' + shown(1, state="FAILED", code="9:0") + "E\nexit 0 ;;\n"
        '*" 2") cat <<E\n' + shown(2, state="CANCELLED", reason="DependencyNeverSatisfied") + "E\nexit 0 ;; esac\n",
    )  # fmt: skip
    made = run(quick, job("a"), job("b", "a"), wait=True)
    progress = made.progress()
    assert progress.exit_code() == 9
    assert [entry.status.state for entry in progress.entries.values()] == [
        State.FAILED,
        State.SKIPPED,
    ]


@pytest.mark.parametrize("wait", [False, True])
def test_what_is_shown(cluster: FakeSlurm, quick: Transformer, *, wait: bool) -> None:
    """Of a run that is waited for, what every step prints; else only what says so."""
    number_jobs(cluster)
    cluster.answer("scontrol", shown(1))
    plan = quick.render(graph(job("a")))
    logs = runs_folder() / plan.run_id / "logs"
    told: list[tuple[str, str]] = []

    def lay_down(run: Run) -> None:
        (run.logs / "a.log").write_text("hello\n")
        drive_here(quick, run, until_over=wait, show=lambda *line: told.append(line))

    quick.launch = lay_down
    quick.run(plan)
    assert (logs / "a.log").exists()
    assert told == ([("a", "hello")] if wait else [])


@pytest.mark.parametrize("name", ["slurm", "flux", "kubernetes"])
def test_a_group_waits_and_shows_as_its_steps_do(name: str) -> None:
    """What is said of a step inside a group is not lost: the group is waited for, and shown."""
    inner = Group(
        id="g/in",
        work=Work(argv=()),
        steps=(Submit(id="g/in/a", work=Work(argv=("true",)), wait=True, watch=True),),
    )
    place = load_transformer(name, **({"image": "busybox"} if name == "kubernetes" else {}))
    found = {
        action.id: (action.wait, action.watch)
        for action in place.render(
            graph(
                Group(id="g", work=Work(argv=()), steps=(inner,)),
                Group(id="quiet", work=Work(argv=()), steps=(job("quiet/a"),)),
            )
        ).actions
    }
    assert found == {"g": (True, True), "quiet": (False, False)}


def test_replicas_are_an_array(cluster: FakeSlurm, quick: Transformer) -> None:
    """One submission for all of them, and one id that others can depend on."""
    number_jobs(cluster)
    made = run(quick, Submit(id="r", work=Work(argv=("true",)), replicas=4), job("b", "r"))
    assert "--array=0-3" in cluster.submitted[0]
    assert "--dependency=afterok:1" in cluster.submitted[1]
    assert made.plan.actions[0].details["prints"] == ["r/1", "r/2", "r/3", "r/4"]


def test_a_group_is_one_job(cluster: FakeSlurm, quick: Transformer) -> None:
    """Whatever is inside; others depend on it as on any job."""
    number_jobs(cluster)
    inner = (job("g/a"), job("g/b", "g/a"), Submit(id="g/c", work=Work(argv=("true",)), local=True))
    group = Group(id="g", steps=inner, work=Work(argv=(), shape=Shape(slots=2), duration_s=30))
    made = run(quick, group, job("end", "g"))
    assert len(cluster.submitted) == 2
    assert "--time=00:01:00" in cluster.submitted[0]
    assert (
        made.plan.actions[0].details["note"]
        == "30 s is rounded up to 00:01:00: Slurm counts minutes"
    )
    assert made.plan.actions[0].details["prints"] == ["g", "g/a", "g/b", "g/c"]


def test_a_group_prepares_what_is_inside(
    cluster: FakeSlurm, quick: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets are got and large files packed before its job is submitted."""
    monkeypatch.setenv("SOURCE", "s3cret")
    big = tmp_path / "big"
    big.write_bytes(os.urandom(600_000))
    inner: tuple[Step, ...] = (
        Auth(id="g/auth", secret="token", variable="SOURCE", export="TOKEN"),
        Stage(id="g/big", path=str(big)),
        job("g/a", "g/auth", "g/big"),
    )
    made = run(quick, Group(id="g", steps=inner, work=Work(argv=())))
    assert (made.secrets / "token").read_text() == "s3cret"
    assert (made.folder / "parcels" / "g+big.tar.gz").stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in cluster.script
    assert "SOURCE" not in cluster.environment("sbatch")


def test_local_steps(cluster: FakeSlurm, quick: Transformer) -> None:
    """They are processes of this machine, before and after jobs, with their own exit code."""
    cluster.answer("scontrol", shown(7))
    before = Submit(id="before", work=Work(argv=("sh", "-c", "echo here")), local=True)
    after = Submit(
        id="after", needs=(Need("a"),), work=Work(argv=("sh", "-c", "exit 3")), local=True
    )
    made = quick.run(quick.render(graph(before, job("a", "before"), after)))
    assert made.progress().exit_code() == 3
    assert ("before", "here") in list(quick.logs(made))
    assert len(cluster.submitted) == 1


# Refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"project": "x"}, "does not honour 'project'"),
        ({"attributes": {"constraints": {"properties": ["a"]}}}, "does not honour 'constraints'"),
        ({"attributes": {"requires": [{"field": "os.name", "value": "x"}]}}, "'os.name' cannot be"),
        (
            {"attributes": {"requires": [{"field": "cpu.target", "value": "z80"}]}},
            "'z80' is not known",
        ),
        (
            {"attributes": {"requires": [{"field": "hardware.gpu.available", "value": "yes"}]}},
            "hardware.gpu.available: yes cannot be asked for here",
        ),
        ({"cwd": "here"}, "cwd: 'here' does not begin with a slash"),
        ({"queue": "a b"}, "queue: 'a b' is no name"),
    ],
)
def test_what_is_not_honoured(more: dict[str, Any], words: str) -> None:
    """It is refused, with the step, before anything runs."""
    assert words in refused(job("a", **more))
    assert words in refused(Group(id="g", steps=(job("g/a"),), work=Work(argv=(), **more)))


def test_output_that_would_be_lost(tmp_path: Path) -> None:
    """A relative path in the job's own folder is no place for a file."""
    stage = Stage(id="s", path=str(tmp_path))
    assert "output: 'out' would be removed with the job" in refused(
        stage, job("a", "s", output="out")
    )
    Transformer().render(graph(stage, job("a", "s", output="/srv/out")))
    Transformer().render(graph(stage, job("a", "s", output="out", cwd="/srv")))
    Transformer().render(graph(job("a", output="out")))


def test_what_cannot_be_in_a_group() -> None:
    """A group prints nothing, and has what it has."""
    group = Group(id="g", steps=(job("g/a"),), work=Work(argv=(), output="/x"))
    assert "output: a group prints nothing" in refused(group)
    inner = Group(id="g/in", steps=(job("g/in/a"),), work=Work(argv=(), shape=Shape(slots=9)))
    assert "9 cores are asked for" in refused(Group(id="g", steps=(inner,), work=Work(argv=())))


def test_unknown_steps() -> None:
    """Also one that is called as a local step is in a plan."""
    assert "knows no 'reboot' step" in refused(Custom(id="c", step="reboot"))
    assert "there is no 'submit-local' step" in refused(Custom(id="c", step="submit-local"))


def test_local_replicas() -> None:
    """One process is one process."""
    step = Submit(id="a", work=Work(argv=("true",)), local=True, replicas=2)
    assert "replicas: local work is one process" in refused(step)


def test_a_missing_file() -> None:
    """What shall be staged must be there."""
    assert "there is no '/nowhere'" in refused(Stage(id="s", path="/nowhere"))


def test_settings() -> None:
    """A partition and an account hold for what says nothing itself; anything else is refused."""
    made = Transformer(partition="small", account="me").render(
        graph(job("a"), job("b", queue="big"))
    )
    asked: list[Any] = [action.details["command"] for action in made.actions]
    assert "--partition=small" in asked[0]
    assert "--partition=big" in asked[1]
    with pytest.raises(SpecError, match="partitoin: unknown setting"):
        Transformer(partitoin="small")
    with pytest.raises(SpecError, match="account: 3 is no name"):
        Transformer(account=3)


def test_what_the_cluster_cannot_give(cluster: FakeSlurm, quick: Transformer) -> None:
    """It is refused before there is a run."""
    with pytest.raises(SpecError, match="step a: 9 hosts"):
        run(quick, job("b"), job("a", shape=Shape(nodes=9, slots=9)))
    assert cluster.submitted == []
    assert load_runs() == []


def test_no_slurm_here(
    cluster: FakeSlurm, quick: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan can be made anywhere; running it says what is missing."""
    cluster.remove("sbatch")
    monkeypatch.setenv("PATH", str(cluster.bin))
    made = quick.render(graph(job("a")))
    with pytest.raises(BackendError, match="there is no sbatch here"):
        quick.run(made)
    assert load_runs() == []


def test_a_plan_of_another_home(
    cluster: FakeSlurm, quick: Transformer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The script names the run's folder, so it must be that one."""
    plan = quick.render(graph(job("a")))
    monkeypatch.setenv("MILKWEED_HOME", str(tmp_path / "other"))
    made = quick.run(plan)
    assert "the script was made for" in made.progress().entries["a"].status.reason
    assert cluster.submitted == []
    with pytest.raises(StateError):
        quick.make_step(made, "a", made.progress()).run(made.files)


def test_a_plan_is_read_back_as_it_was(cluster: FakeSlurm, quick: Transformer) -> None:
    """The record holds the very script."""
    text = "version: 1\nresources: {r: {type: core, count: 2}}\ntasks: [{name: a, resources: r, command: [echo, 'é\\n']}]\n"
    made = create_run(quick.render(parse_jobspec(text)))
    assert load_run(made.folder).plan == made.plan
