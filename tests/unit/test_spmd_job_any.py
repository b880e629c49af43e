"""Torchrun programs on the hosts of any job: `JobTrait.torchrun` and `milkweed torchrun`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed.cli.app import app
from milkweed.errors import RanksFailedError, SpecError, UnsupportedError
from milkweed.job.load import SpecJob
from milkweed.spmd.arguments import render_help
from milkweed.testing import FakeScheduler
from unit.jobs import PATH, make_spec, recorded
from unit.spmd_runs import Runs, replace_runs


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Runs:
    return replace_runs(monkeypatch)


# Any job


def test_any_job_runs_programs(world: FakeScheduler, runs: Runs) -> None:
    """Hosts are asked for first, stay, and are used again."""
    job = SpecJob(make_spec({"a": 1, "b": 2}))
    job.torchrun(["--nnodes=2", "train.py", "x"], mesh="b", cached_path=PATH)
    job.torchrun(["--mesh=a", "train.py"], cached_path=PATH)
    assert len(world.allocations) == 1
    assert recorded() == job.apply_id
    first, second = runs.calls
    assert (first.target.mesh, first.launch.args) == ("b", ("x",))
    assert (second.target.mesh, second.target.spec.sizes) == ("a", {"a": 1, "b": 2})
    assert (first.cwd, first.env, first.wrapper) == (None, {}, ())
    first.events.add("ranks started")
    assert job.events()[-1].what == "ranks started"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["--nnodes=zwei", "t.py"], "zwei"),
        (["--nnodes=2"], "SCRIPT"),
        (["--nnodes=9", "t.py"], "--nnodes asks for 9 hosts"),
        (["--mesh=nobody", "t.py"], "no mesh 'nobody'"),
    ],
)
def test_mistakes_are_told_before_hosts_are_asked_for(
    world: FakeScheduler, runs: Runs, command: list[str], words: str
) -> None:
    """Nobody waits in a queue for a program that can never run."""
    with pytest.raises(SpecError, match=words):
        SpecJob(make_spec()).torchrun(command, cached_path=PATH)
    assert world.allocations == {}


def test_hosts_that_can_run_nothing_are_not_asked_for(world: FakeScheduler, folder: Path) -> None:
    """Hosts of the fake backend have no keepers, and that is known before."""
    with pytest.raises(UnsupportedError, match="fake hosts cannot run torchrun programs"):
        SpecJob(make_spec()).torchrun(["t.py"], cached_path=PATH)
    assert world.allocations == {}


# The command line


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def declare(meshes: str = "{workers: 2}") -> None:
    Path("milkweed.yaml").write_text(f"name: demo\non: fake\nmeshes: {meshes}\n")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--nnodes=2", "--help", "t.py"]])
def test_help_is_torchrun_s(world: FakeScheduler, runs: Runs, words: list[str]) -> None:
    """The help of all options, and nothing is asked for."""
    declare()
    done = milkweed("torchrun", *words)
    assert (done.exit_code, done.stdout) == (0, f"{render_help()}\n")
    assert "--rdzv-conf" in done.stdout
    assert world.calls == []
    assert runs.calls == []


@pytest.mark.parametrize("words", [["t.py"], ["torchrun", "t.py"], ("torchrun", "t.py")])
def test_a_list_may_begin_with_the_word(
    world: FakeScheduler, runs: Runs, words: list[str] | tuple[str, ...]
) -> None:
    """Where a whole command line is wanted it begins with torchrun, so people write it for any job, too."""
    SpecJob(make_spec()).torchrun(words, cached_path=PATH)
    assert (runs.last.launch.script, runs.last.launch.args) == ("t.py", ())


def test_a_script_of_that_name(world: FakeScheduler, runs: Runs) -> None:
    """After the command's own name the word is a script, as it is to torchrun."""
    declare()
    assert milkweed("torchrun", "torchrun", "a.py").exit_code == 0
    assert (runs.last.launch.script, runs.last.launch.args) == ("torchrun", ("a.py",))
    SpecJob(make_spec()).torchrun(["torchrun", "torchrun", "a.py"], cached_path=PATH)
    assert (runs.last.launch.script, runs.last.launch.args) == ("torchrun", ("a.py",))


def test_words_of_the_script_are_its_own(world: FakeScheduler, runs: Runs) -> None:
    """Options after the script are not read, not even milkweed's."""
    declare()
    done = milkweed("torchrun", "--nnodes", "2", "t.py", "--help", "--job", "x", "--", "-m")
    assert done.exit_code == 0, done.output
    assert runs.last.launch.args == ("--help", "--job", "x", "--", "-m")
    assert runs.last.launch.max_nodes == 2
    assert done.stderr.startswith("create: job 'demo'")
    assert done.stdout == ""


def test_a_second_run_uses_the_same_hosts(world: FakeScheduler, runs: Runs) -> None:
    """They are recorded beside the job file, under the job's name."""
    declare()
    for _ in range(2):
        assert milkweed("torchrun", "t.py").exit_code == 0
    assert len(world.allocations) == 1
    assert recorded(".milkweed/demo.json") == runs.last.target.handle["apply_id"]


def test_a_job_of_another_folder(world: FakeScheduler, runs: Runs, folder: Path) -> None:
    """`--job` names it; ranks start where the person is, and its variables are passed on."""
    declare("{a: 1, b: 3}")
    (folder / "elsewhere").mkdir()
    os.chdir("elsewhere")
    job = "../milkweed.yaml"
    done = milkweed("torchrun", "--job", job, "--mesh", "b", "--set-env", "A=1", "t.py")
    assert done.exit_code == 0, done.output
    assert runs.last.target.mesh == "b"
    assert runs.last.launch.env == {"A": "1"}
    assert runs.last.cwd is None


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        ([], "SCRIPT", 2),
        (["--nnodes=2"], "SCRIPT", 2),
        (["--nodes=2", "t.py"], "--nodes=2", 2),
        (["--rdzv-backend=etcd", "t.py"], "etcd", 1),
        (["--job=nobody", "t.py"], "nobody", 1),
    ],
)
def test_mistakes_of_a_command_line(
    world: FakeScheduler, runs: Runs, words: list[str], told: str, code: int
) -> None:
    """One message; the exit code tells what cannot be read from what cannot be done; nothing was asked for."""
    declare()
    done = milkweed("torchrun", *words)
    assert done.exit_code == code
    assert told in done.stderr
    assert world.allocations == {}


def test_a_failed_rank_fails_the_command(world: FakeScheduler, runs: Runs) -> None:
    """The report is on standard error, and the exit code is 1 whatever the rank's was."""
    declare()
    runs.error = RanksFailedError("rank 3 exited with code 9", seen="it printed nothing")
    done = milkweed("torchrun", "t.py")
    assert done.exit_code == 1
    assert "milkweed: rank 3 exited with code 9\n  seen: it printed nothing" in done.stderr
