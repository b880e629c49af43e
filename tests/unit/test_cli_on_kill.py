"""`--on`: which allocation is meant at a scheduler, and ending what only it knows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed import registry
from milkweed.backends.base import Request
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.cli.app import app
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile

pytestmark = pytest.mark.usefixtures("folder")


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def apply(world: FakeScheduler, name: str = "demo") -> str:
    """Declare and apply a job; its id."""
    Path(f"{name}.yaml").write_text(f"name: {name}\non: fake\nmeshes: {{workers: 2}}\n")
    assert milkweed("apply", f"{name}.yaml").exit_code == 0
    return list(world.allocations)[-1]


def submit(apply_id: str, name: str = "lost") -> str:
    """Give the scheduler an allocation of which no file on this machine tells; its id."""
    spec = JobSpec(name=name, backend="fake", meshes=make_meshes({"workers": 2}))
    FakeBackend().submit(Request(spec=spec, apply_id=apply_id))
    return apply_id


def files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*"))


# Which job


@pytest.mark.parametrize("command", ["status", "kill"])
def test_several_of_one_name_are_not_guessed(world: FakeScheduler, command: str) -> None:
    """A recorded job and a forgotten one of the same name are shown with their ids, and none is taken."""
    apply_id = apply(world, "lost")
    submit("aaaa1111-x")
    done = milkweed(command, "lost", "--on", "fake")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "2 jobs on fake are called 'lost'" in done.stderr
    assert apply_id[:8] in done.stderr
    assert done.stderr.count("record lost") == 1
    assert "such as aaaa1111" in done.stderr
    assert len(world.alive) == 2


@pytest.mark.parametrize("word", ["lots", "aaa"])
def test_a_job_that_nobody_knows_is_an_error(world: FakeScheduler, word: str) -> None:
    """A slip in a name, or too short a beginning of an id, ends nothing."""
    submit("aaaa1111-x")
    done = milkweed("kill", word, "--on", "fake")
    assert done.exit_code == 1
    assert f"there is no job called '{word}' on fake" in done.stderr
    assert "lost" in done.stderr
    assert world.alive == ["aaaa1111-x"]


def test_a_job_that_nobody_knows_where_nothing_is(world: FakeScheduler) -> None:
    """Where there is no job at all, nothing is suggested."""
    done = milkweed("kill", "demo", "--on", "fake")
    assert (done.exit_code, done.stderr) == (
        *(1, "milkweed: there is no job called 'demo' on fake\n"),
    )


def test_a_job_file_is_not_looked_for(world: FakeScheduler) -> None:
    """With --on a job file names nothing, which is told."""
    apply(world)
    done = milkweed("kill", "demo.yaml", "--on", "fake")
    assert done.exit_code == 1
    assert "named by its name or id, not by a file" in done.stderr
    assert len(world.alive) == 1


def test_a_file_of_that_name_is_not_in_the_way(world: FakeScheduler) -> None:
    """A file that is called like the job does not hide the job at the scheduler."""
    Path("lost").write_text("something else")
    submit("aaaa1111-x")
    assert milkweed("kill", "lost", "--on", "fake").exit_code == 0


def test_a_missing_job_leads_to_the_scheduler(world: FakeScheduler) -> None:
    """A word that is not recorded is answered with the way to ask the scheduler itself."""
    for count in range(2):
        done = milkweed("kill", "lots")
        assert done.exit_code == 1
        assert "`milkweed ls --on slurm` asks the scheduler itself" in done.stderr
        assert ("milkweed init" in done.stderr) is (count == 0)
        apply(world, "lost")
    assert "did you mean 'lost'?" in done.stderr


# kill


@pytest.mark.parametrize("word", ["lost", "aaaa1", "aaaa1111-x"])
def test_what_only_the_scheduler_knows_can_be_ended(world: FakeScheduler, word: str) -> None:
    """A forgotten allocation is ended by its name or id, and no other."""
    submit("aaaa1111-x")
    submit("bbbb2222-x", "other")
    done = milkweed("kill", word, "--on", "fake")
    assert (done.exit_code, done.stdout) == (0, "killed lost (aaaa1111)\n")
    assert world.alive == ["bbbb2222-x"]


def test_with_every_file_gone_a_job_is_found_and_ended(
    world: FakeScheduler, home: Path, folder: Path
) -> None:
    """A job that was applied, and of which every file was deleted, is ended with nothing left."""
    apply_id = apply(world)
    for gone in (home, folder / ".milkweed"):
        shutil.rmtree(gone)
    Path("demo.yaml").unlink()
    assert milkweed("kill", "demo").exit_code == 1
    assert milkweed("kill", apply_id[:8], "--on", "fake").exit_code == 0
    assert world.alive == []
    assert files(home, folder) == []


def test_a_recorded_job_goes_with_its_record(world: FakeScheduler, home: Path) -> None:
    """With --on, too, a recorded job ends with its record and its entry."""
    apply(world)
    assert milkweed("kill", "demo", "--on", "fake").exit_code == 0
    assert world.alive == []
    assert not Path(".milkweed").exists()
    assert not home.exists()


def test_a_recorded_job_goes_by_its_record(world: FakeScheduler) -> None:
    """What a record refuses without --on it refuses with it: the id is no way around a lock or a machine."""
    apply(world)
    world.capabilities = replace(world.capabilities, machine_bound=True)
    file = StateFile(".milkweed/demo.json")
    record = file.load()
    assert record is not None
    file.save(replace(record, machine={"hostname": "far", "machine_id": "x"}))
    done = milkweed("kill", "demo", "--on", "fake")
    assert done.exit_code == 1
    assert "far" in done.stderr
    assert len(world.alive) == 1


def test_an_entry_without_its_record_goes_too(world: FakeScheduler, home: Path) -> None:
    """An allocation whose record alone is gone ends, and its entry with it."""
    apply(world)
    Path(".milkweed/demo.json").unlink()
    assert milkweed("kill", "demo", "--on", "fake").exit_code == 0
    assert world.alive == []
    assert not home.exists()


def test_what_ends_meanwhile_is_fine(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation that is gone between the list and the end of it is no error."""
    submit("aaaa1111-x")
    listed = FakeBackend().allocations()
    world.forget("aaaa1111-x")
    monkeypatch.setattr(FakeBackend, "allocations", lambda _self: listed)
    assert milkweed("kill", "lost", "--on", "fake").exit_code == 0
    assert milkweed("ls", "--on", "fake").stdout.count("ended (record lost)") == 1


def test_silence_at_the_end_is_an_error(world: FakeScheduler) -> None:
    """A scheduler that gives a list and then falls silent keeps its allocation, and the exit code tells."""
    submit("aaaa1111-x")
    world.unreachable_at = frozenset({len(world.calls) + 1})
    done = milkweed("kill", "lost", "--on", "fake")
    assert (done.exit_code, done.stdout) == (1, "")
    assert world.alive == ["aaaa1111-x"]


def test_kill_all_on_a_backend(world: FakeScheduler, home: Path) -> None:
    """--all with --on ends everything there, recorded or not."""
    apply(world)
    submit("aaaa1111-x")
    done = milkweed("kill", "--all", "--on", "fake")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["demo", "lost"]
    assert world.alive == []
    assert not home.exists()


def test_kill_all_on_a_backend_leaves_the_others(world: FakeScheduler) -> None:
    """Jobs that are recorded for other backends stay."""
    world.forget(apply(world))
    registry.save_entry(replace(next(registry.load_entries()), backend="process"))
    done = milkweed("kill", "--all", "--on", "fake")
    assert (done.exit_code, done.stdout) == (0, "")
    assert len(list(registry.load_entries())) == 1


def test_kill_all_on_a_backend_goes_on(world: FakeScheduler) -> None:
    """One that cannot be ended is told, and the others end."""
    submit("aaaa1111-x", "one")
    submit("bbbb2222-x", "two")
    world.unreachable_at = frozenset({len(world.calls) + 1})
    done = milkweed("kill", "--all", "--on", "fake")
    assert done.exit_code == 1
    assert done.stdout == "killed two (bbbb2222)\n"
    assert "one (aaaa1111): the fake scheduler does not answer" in done.stderr
    assert world.alive == ["aaaa1111-x"]


def test_kill_on_a_backend_needs_a_job(world: FakeScheduler) -> None:
    """The job of this folder may not be the one that the scheduler has, so it is not guessed."""
    apply(world)
    done = milkweed("kill", "--on", "fake")
    assert done.exit_code == 1
    assert "no job on fake was named" in done.stderr
    assert "`milkweed ls --on fake` lists them" in done.stderr
    assert len(world.alive) == 1
