"""Jobs that are made of torchrun programs: `serve()` and `SPMDJob`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.errors import (
    NotAppliedError,
    RanksFailedError,
    SpecError,
    UnknownBackendError,
    UnsupportedError,
)
from milkweed.job import job_loads
from milkweed.job.programs import Program
from milkweed.job.spmd import SPMDJob, serve
from milkweed.testing import FakeScheduler
from unit.spmd_runs import Runs, replace_runs

COMMAND = ["torchrun", "--nproc-per-node=4", "train.py", "--lr", "1"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Runs:
    return replace_runs(monkeypatch)


def role(name: str, hosts: int = 1, **more: Any) -> SimpleNamespace:
    said = {"entrypoint": "torchrun", "args": [f"--nnodes={hosts}", "train.py", name], "env": {}}
    return SimpleNamespace(**{"name": name, "image": "", "num_replicas": hosts, **said, **more})


def application(*roles: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(name="app", roles=list(roles), metadata={})


# Serving


def test_a_command_is_served(world: FakeScheduler, runs: Runs, folder: Path) -> None:
    """A list of words asks for one host, and its program runs there as often as one likes."""
    job = serve(COMMAND, scheduler="fake")
    (found,) = world.allocations.values()
    assert found.spec.sizes == {"trainer": 1}
    assert runs.calls == []
    job.run_spmd()
    job.run_spmd()
    assert len(world.allocations) == 1
    assert len(runs.calls) == 2
    assert (runs.last.target.mesh, runs.last.target.handle) == ("trainer", found_handle(job))
    assert (runs.last.launch.nproc, runs.last.launch.args) == (4, ("--lr", "1"))
    assert (runs.last.cwd, runs.last.wrapper, runs.last.env) == (str(folder), (), {})


def found_handle(job: SPMDJob) -> Any:
    return job._require().record.handle


def test_what_serving_tells(
    world: FakeScheduler, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """By which handle the hosts are found again, and what has no effect."""
    job = serve(["/x/torchrun", "train.py"], scheduler="fake")
    assert job.handle == f"fake://milkweed/{job.apply_id}"
    assert capsys.readouterr().err == (
        "milkweed: command: '/x/torchrun' is not used: ranks run with the Python of their hosts\n"
        f"milkweed: job 'spmd' asked fake for hosts; its handle is {job.handle}\n"
    )


def test_roles_are_meshes(world: FakeScheduler, runs: Runs, tmp_path: Path) -> None:
    """Each with its program, its variables and its wrapper; one of them is named to run."""
    learner = role("learner", entrypoint="./enter.sh", args=["torchrun", "${img_root}/t.py"])
    learner.env = {"ROOT": "${img_root}"}
    learner.workspace = str(tmp_path)
    job = serve(application(role("actor", 2), learner), scheduler="fake")
    assert [found.spec.sizes for found in world.allocations.values()] == [
        {"actor": 2, "learner": 1}
    ]
    assert list(job.programs) == ["actor", "learner"]
    job.run_spmd("learner")
    assert runs.last.target.mesh == "learner"
    assert runs.last.launch.script == f"{tmp_path}/t.py"
    assert (runs.last.wrapper, runs.last.env) == (("./enter.sh",), {"ROOT": str(tmp_path)})
    assert runs.last.cwd == str(tmp_path)
    job.run_spmd(role="actor")
    assert (runs.last.target.mesh, runs.last.launch.max_nodes) == ("actor", 2)


def test_one_of_several_roles_must_be_named(world: FakeScheduler, runs: Runs) -> None:
    """Which ones there are is told."""
    job = serve(application(role("actor"), role("learner")), scheduler="fake")
    with pytest.raises(SpecError) as caught:
        job.run_spmd()
    assert caught.value.what == "this job has several roles, and none was named"
    assert (caught.value.seen, "run_spmd(" in caught.value.hint) == ("actor, learner", True)
    with pytest.raises(SpecError, match="there is no role 'actr'") as caught:
        job.run_spmd("actr")
    assert "actor" in caught.value.hint
    assert runs.calls == []


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (["torchrun", "--nnodes=2", "t.py"], "--nnodes: a command has one host, and this one asks"),
        (["torchrun", "--no-such", "t.py"], "--no-such"),
        (["torchrun"], "SCRIPT"),
        ([], "the command is empty"),
        (["python", "t.py"], "no torchrun command"),
        ("torchrun t.py", "is not an AppDef"),
        (
            application(role("w", 2, args=["--nnodes=3", "t.py"])),
            "roles.w: --nnodes asks for 3 hosts, and num_replicas is 2",
        ),
        (["sh", "-c", "torchrun t.py $HOME/data"], "a shell would fill in '$HOME/data'"),
    ],
)
def test_mistakes_ask_for_nothing(world: FakeScheduler, runs: Runs, what: Any, words: str) -> None:
    """What can never run is told before anybody is asked for hosts."""
    with pytest.raises(SpecError) as caught:
        serve(what, scheduler="fake")
    assert words in str(caught.value)
    assert world.calls == []


def test_the_default_scheduler_is_not_here(world: FakeScheduler) -> None:
    """Monarch's default is a scheduler of its authors; others are named."""
    with pytest.raises(UnknownBackendError, match="there is none called 'mast_conda'"):
        serve(COMMAND)


def test_a_failure_leaves_the_hosts(world: FakeScheduler, runs: Runs) -> None:
    """What a run raises is raised; kill() ends the hosts, and then there is nothing to run on."""
    job = serve(COMMAND, scheduler="fake")
    runs.error = RanksFailedError("rank 0")
    with pytest.raises(RanksFailedError):
        job.run_spmd()
    assert len(world.alive) == 1
    job.kill()
    assert not world.alive
    with pytest.raises(NotAppliedError):
        job.run_spmd()


def test_ctrl_c_leaves_running_hosts(world: FakeScheduler, runs: Runs) -> None:
    """Whoever stops a program has not given up its hosts."""
    job = serve(COMMAND, scheduler="fake")
    job.wait()
    runs.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        job.run_spmd()
    assert len(world.alive) == 1


def test_hosts_without_keepers_are_not_asked_for(world: FakeScheduler, folder: Path) -> None:
    """The fake backend has no hosts that could run anything, and nobody waits in its queue to learn that."""
    with pytest.raises(UnsupportedError, match="fake hosts cannot run torchrun programs"):
        serve(COMMAND, scheduler="fake")
    assert world.allocations == {}


# SPMDJob


def test_a_job_is_found_by_its_handle(world: FakeScheduler, runs: Runs, tmp_path: Path) -> None:
    """Another program takes hold of the hosts: by what serve() told, or by the mere id."""
    first = serve(application(role("w", 2)), scheduler="fake")
    for handle in (first.handle, str(first.apply_id)):
        job = SPMDJob(handle, "fake")
        assert (job.apply_id, job.handle) == (first.apply_id, first.handle)
        job.run_spmd()
        assert runs.last.launch.args == ("w",)
    SPMDJob(first.handle, "fake", workspace=str(tmp_path)).run_spmd()
    assert runs.last.cwd == str(tmp_path)
    assert len(world.allocations) == 1
    job.kill()
    assert not world.alive


@pytest.mark.parametrize("scheduler", ["slurm", "local_cwd"])
def test_a_handle_of_another_scheduler(world: FakeScheduler, runs: Runs, scheduler: str) -> None:
    """The same id on another backend is somebody else's."""
    job = serve(COMMAND, scheduler="fake")
    with pytest.raises(NotAppliedError, match=f"no allocation '{job.apply_id}' on"):
        SPMDJob(job.handle, scheduler)


def test_other_programs_on_the_same_hosts(world: FakeScheduler, runs: Runs) -> None:
    """`original_roles` take the place of what was served, by name or in order."""
    first = serve(application(role("a"), role("b")), scheduler="fake")
    roles = [
        {"name": "b", "entrypoint": "env.sh", "args": ["torchrun", "other.py"]},
    ]
    job = SPMDJob(first.handle, "fake", original_roles=roles)
    job.run_spmd("b")
    assert (runs.last.launch.script, runs.last.wrapper) == ("other.py", ("env.sh",))
    job.run_spmd("a")
    assert runs.last.launch.script == "train.py"
    job = SPMDJob(first.handle, "fake", original_roles=[{"args": ["torchrun", "first.py"]}])
    assert job.programs["a"].command == ("first.py",)


def test_other_programs_have_the_variables_of_the_first(world: FakeScheduler, runs: Runs) -> None:
    """And their own over them; what is not known of a role is refused."""
    first = serve(application(role("a", env={"A": "1", "B": "2"})), scheduler="fake")
    other = {"args": ["torchrun", "t.py"], "env": {"B": "3"}}
    SPMDJob(first.handle, "fake", original_roles=[other]).run_spmd()
    assert runs.last.env == {"A": "1", "B": "3"}
    with pytest.raises(SpecError, match=r"original_roles: 'arguments' of role 'a' is not known"):
        SPMDJob(first.handle, "fake", original_roles=[{"arguments": []}]).run_spmd()
    with pytest.raises(SpecError, match=r"original_roles.a.env"):
        SPMDJob(first.handle, "fake", original_roles=[{**other, "env": {"B": 3}}]).run_spmd()


def test_other_programs_start_where_the_first_did(
    world: FakeScheduler, runs: Runs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """«workspace: the folder that ranks start in; else the one of `serve()`»."""
    first = serve(COMMAND, scheduler="fake")
    monkeypatch.chdir(tmp_path)
    SPMDJob(first.handle, "fake", original_roles=[{"args": ["torchrun", "o.py"]}]).run_spmd()
    assert runs.last.cwd == str(folder)


def test_a_job_can_be_written_and_read(world: FakeScheduler, runs: Runs) -> None:
    """Its programs are in its record, and do not define its hosts."""
    first = serve(COMMAND, scheduler="fake")
    again = job_loads(first.dumps())
    assert isinstance(again, SPMDJob)
    assert again.programs == first.programs
    again.run_spmd()
    other = serve(["torchrun", "other.py"], scheduler="fake")
    assert other.spec.fingerprint() == first.spec.fingerprint()


def test_programs_are_plain_data() -> None:
    """What is recorded comes back the same."""
    program = Program(command=("-m", "x"), mesh="w", wrapper=("e.sh",), env={"A": "1"}, cwd="/c")
    assert Program.from_json(program.to_json()) == program
    assert Program.from_json(Program(command=("x",)).to_json()) == Program(command=("x",))
