"""`--on`: allocations that only the scheduler knows are listed and looked at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed import registry
from milkweed.backends.base import Request
from milkweed.backends.fake import FakeBackend, FakeScheduler
from milkweed.cli.app import app
from milkweed.cli.arguments import complete_backend
from milkweed.cli.asked import ask
from milkweed.errors import DeadlineError
from milkweed.spec import JobSpec, make_meshes

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


def rows(done: Result) -> list[list[str]]:
    return [row.split() for row in done.stdout.splitlines()[1:]]


def files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*"))


# ls


def test_what_only_the_scheduler_knows_is_listed(world: FakeScheduler) -> None:
    """With no file left, an allocation has its name and id, no age, and a record that is lost."""
    submit("aaaa1111-x")
    done = milkweed("ls", "--on", "fake")
    assert done.exit_code == 0
    assert rows(done) == [["lost", "fake", "running", "(record", "lost)", "2/2", "?", "aaaa1111"]]


def test_recorded_ones_are_shown_as_ever(world: FakeScheduler) -> None:
    """Recorded allocations come first and as without --on, and none is listed twice."""
    apply_id = apply(world)
    submit("aaaa1111-x", "also")
    first, second = milkweed("ls", "--on", "fake").stdout.splitlines()[1:]
    assert first.split()[:4] == ["demo", "fake", "running", "2/2"]
    assert first.split()[-1] == apply_id[:8]
    assert "record lost" in second


def test_recorded_ones_that_ended_are_listed(world: FakeScheduler) -> None:
    """The scheduler lists the living only; what is recorded stays listed until it is forgotten."""
    world.end(apply(world))
    world.end(submit("aaaa1111-x"))
    assert [row[:3] for row in rows(milkweed("ls", "--on", "fake"))] == [["demo", "fake", "ended"]]


def test_other_backends_jobs_are_left_out(world: FakeScheduler) -> None:
    """A job that is recorded for another backend, and that this scheduler does not have, is not its job."""
    world.forget(apply(world))
    registry.save_entry(replace(next(registry.load_entries()), backend="process"))
    done = milkweed("ls", "--on", "fake")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "there is no job on fake" in done.stderr


def test_an_entry_under_another_name_is_still_a_record(world: FakeScheduler) -> None:
    """What the scheduler lists and any entry tells of is recorded, whatever name its backend had."""
    apply(world)
    registry.save_entry(replace(next(registry.load_entries()), backend="fake-of-old"))
    (row,) = rows(milkweed("ls", "--on", "fake"))
    assert row[:2] == ["demo", "fake-of-old"]


def test_a_damaged_entry_is_told_by_the_scheduler(world: FakeScheduler, home: Path) -> None:
    """An entry that cannot be read has its name and backend from the scheduler."""
    apply_id = apply(world)
    (home / "jobs" / apply_id / "entry.json").write_text("{")
    (row,) = rows(milkweed("ls", "--on", "fake"))
    assert row[:4] == ["demo", "fake", "running", "(record"]
    assert milkweed("kill", "demo", "--on", "fake").exit_code == 0
    assert not home.exists()


def test_the_list_as_json(world: FakeScheduler) -> None:
    """`ls --on --json` has what is not known as null."""
    submit("aaaa1111-x")
    (job,) = json.loads(milkweed("ls", "--on", "fake", "--json").stdout)["jobs"]
    assert (job["name"], job["apply_id"], job["status"]) == ("lost", "aaaa1111-x", "running")
    assert (job["record_lost"], job["record"], job["created"], job["age_s"]) == (
        *(True, None, None, None),
    )


def test_without_on_the_scheduler_is_not_asked(world: FakeScheduler) -> None:
    """`ls` alone tells of recorded jobs only."""
    submit("aaaa1111-x")
    assert milkweed("ls").stdout == ""
    assert world.count("list") == 0


def test_listing_writes_nothing(world: FakeScheduler, home: Path, folder: Path) -> None:
    """Asking a scheduler changes neither files nor allocations."""
    submit("aaaa1111-x")
    for words in (["ls"], ["status"], ["status", "lost"]):
        assert milkweed(*words, "--on", "fake").exit_code == 0
    assert files(home, folder) == []
    assert world.alive == ["aaaa1111-x"]


def test_a_silent_scheduler_hides_no_record(world: FakeScheduler) -> None:
    """When the scheduler gives no list that is told, recorded jobs are listed, and the exit code is 1."""
    apply(world)
    submit("aaaa1111-x")
    world.go_silent()
    done = milkweed("ls", "--on", "fake")
    assert done.exit_code == 1
    assert [row[:3] for row in rows(done)] == [["demo", "fake", "running"]]
    assert "the fake scheduler does not answer" in done.stderr
    assert "only the recorded jobs on fake are listed" in done.stderr


def test_a_silent_scheduler_as_json(world: FakeScheduler) -> None:
    """The same for programs: one document on stdout, the problem on stderr, exit code 1."""
    apply(world)
    world.go_silent()
    done = milkweed("ls", "--on", "fake", "--json")
    assert done.exit_code == 1
    assert [job["name"] for job in json.loads(done.stdout)["jobs"]] == ["demo"]
    assert "does not answer" in done.stderr


def test_silence_and_no_record(world: FakeScheduler) -> None:
    """With nothing recorded and no answer nobody can say that there is no job."""
    world.go_silent()
    done = milkweed("ls", "--on", "fake")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no job is recorded" in done.stderr
    assert "there is no job" not in done.stderr


def test_whatever_the_backend_explains_is_told(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only silence: any explained failure of the list leaves the recorded ones listed."""
    apply(world)

    def late(self: FakeBackend) -> None:
        raise DeadlineError("squeue took too long")

    monkeypatch.setattr(FakeBackend, "allocations", late)
    asked = ask("fake")
    assert [entry.name for entry in asked.entries] == ["demo"]
    assert "squeue took too long" in milkweed("ls", "--on", "fake").stderr


@pytest.mark.parametrize(
    "words", [["ls"], ["status"], ["status", "demo"], ["kill", "demo"], ["kill", "--all"]]
)
def test_a_backend_without_a_list_says_so(words: list[str]) -> None:
    """A backend that cannot be asked is named, with what can be done instead."""
    done = milkweed(*words, "--on", "process")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "backend 'process' cannot be asked for its allocations" in done.stderr
    assert "recorded ones: `milkweed ls`" in done.stderr


@pytest.mark.parametrize("words", [["ls"], ["status"], ["kill", "demo"], ["kill", "--all"]])
def test_an_unknown_backend_is_answered_with_a_near_one(words: list[str]) -> None:
    """A slip in a backend's name is answered with the right one."""
    done = milkweed(*words, "--on", "slrum")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no backend called 'slrum'" in done.stderr
    assert "did you mean 'slurm'?" in done.stderr


# status


def test_status_of_what_only_the_scheduler_knows(world: FakeScheduler) -> None:
    """`status --on` tells how a forgotten job and its hosts are."""
    submit("aaaa1111-x")
    submit("bbbb2222-x", "other")
    first, *hosts = milkweed("status", "lost", "--on", "fake").stdout.splitlines()
    assert first == (
        "lost on fake: running, 2/2 hosts ready, its record is lost, of unknown age, id aaaa1111"
    )
    assert [line.split() for line in hosts] == [["workers/0", "ready"], ["workers/1", "ready"]]
    assert "other on fake" in milkweed("status", "bbbb2", "--on", "fake").stdout


def test_status_of_all_on_a_backend(world: FakeScheduler) -> None:
    """Without a job, `status --on` tells of all on that backend, though this folder declares one."""
    submit("aaaa1111-x")
    Path("milkweed.yaml").write_text("name: demo\non: fake\nmeshes: {workers: 2}\n")
    jobs = json.loads(milkweed("status", "--on", "fake", "--json").stdout)["jobs"]
    assert [job["name"] for job in jobs] == ["lost"]


def test_status_tells_why_without_records(world: FakeScheduler) -> None:
    """`--why` has no events of what is not recorded, and still the logs of failed hosts."""
    submit("aaaa1111-x")
    world.fail_host("aaaa1111-x", "workers/1", "it died")
    world.write_log("aaaa1111-x", "workers/1", "last words")
    shown = milkweed("status", "lost", "--on", "fake", "--why").stdout
    assert "none are recorded" in shown
    assert "last words" in shown


def test_status_without_any_job_there(world: FakeScheduler) -> None:
    """A scheduler that has nothing is told, and that is an error as it is without --on."""
    done = milkweed("status", "--on", "fake")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no job on fake" in done.stderr


@pytest.mark.parametrize(
    "words", [["status"], ["status", "demo"], ["kill", "demo"], ["kill", "--all"]]
)
def test_silence_is_an_error_where_all_must_be_known(
    world: FakeScheduler, words: list[str]
) -> None:
    """Without a list nobody knows which job is meant: nothing is done, recorded or not."""
    apply(world)
    submit("aaaa1111-x", "demo")
    world.go_silent()
    done = milkweed(*words, "--on", "fake")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the fake scheduler does not answer" in done.stderr
    assert len(world.alive) == 2
    assert len(list(registry.load_entries())) == 1


def test_shells_complete_backends() -> None:
    """The values of --on are the names of backends."""
    assert {"fake", "slurm"} <= set(complete_backend(""))
    assert complete_backend("slu") == ["slurm"]
