"""Which job a word names, and which one without a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milkweed import registry
from milkweed.backends.fake import FakeScheduler
from milkweed.cli.choose import choose, choose_all, find_entry
from milkweed.errors import JobFileError, MilkweedError, NotAppliedError
from milkweed.job import SpecJob
from milkweed.registry import Entry
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import StateFile

JOB = "name: {name}\non: fake\nmeshes: {{workers: 2}}\n"


def enter(name: str, apply_id: str, *, created: float = 1.0) -> Entry:
    entry = Entry(
        apply_id=apply_id, name=name, backend="fake", state_path=f"/x/{name}.json", created=created
    )
    registry.save_entry(entry)
    return entry


def record(name: str, path: str) -> None:
    spec = JobSpec(name=name, backend="fake", meshes=make_meshes({"workers": 1}))
    SpecJob(spec)._apply(StateFile(path), keep=True)


def test_a_path_is_a_job_file(folder: Path) -> None:
    """A file that exists declares the job, and the record lies beside it under the job's name."""
    (folder / "sub").mkdir()
    (folder / "sub" / "train.job").write_text(JOB.format(name="demo"))
    found = choose("sub/train.job")
    assert found.name == "demo"
    assert found.jobfile is not None
    assert found.file.path == folder / "sub" / ".milkweed" / "demo.json"


@pytest.mark.parametrize("word", ["gone.yaml", "gone.yml", "./gone"])
def test_a_job_file_that_is_missing_is_named(folder: Path, word: str) -> None:
    """What looks like a path is never searched among recorded jobs."""
    with pytest.raises(JobFileError, match="gone"):
        choose(word)


def test_a_state_file_names_its_job(folder: Path, world: FakeScheduler) -> None:
    """A path to a record names the job that is recorded there."""
    record("demo", "here.json")
    found = choose("here.json")
    assert (found.name, found.jobfile, found.file.path) == ("demo", None, Path("here.json"))


def test_a_state_file_that_is_missing_is_named(folder: Path) -> None:
    """A path to a record that is not there is an error that names it."""
    with pytest.raises(NotAppliedError, match=r"x/gone\.json"):
        choose("x/gone.json")


def test_a_name_is_a_recorded_job() -> None:
    """A word that is no path is the name of a recorded job."""
    enter("other", "a" * 36)
    entry = enter("demo", "b" * 36)
    assert choose("demo").entry == entry


def test_the_beginning_of_an_id_is_enough() -> None:
    """A job is found by the first characters of its id."""
    enter("demo", "aaaa1111-x")
    entry = enter("demo", "bbbb2222-x")
    assert choose("bbbb2").entry == entry


def test_a_short_word_is_never_an_id() -> None:
    """Three characters are too few to name a job by its id."""
    enter("demo", "abcdef")
    with pytest.raises(NotAppliedError):
        choose("abc")


def test_a_name_wins_over_an_id() -> None:
    """A job whose name looks like the beginning of another one's id is the one that is meant."""
    enter("demo", "face1234")
    entry = enter("face", "0000")
    assert choose("face").entry == entry


def test_several_of_one_name_are_shown() -> None:
    """When a name is not clear, all candidates are listed with their ids, and how to choose."""
    enter("demo", "aaaa1111-x", created=1.0)
    enter("demo", "bbbb2222-x", created=2.0)
    with pytest.raises(MilkweedError) as caught:
        choose("demo")
    assert "aaaa1111" in caught.value.seen
    assert "bbbb2222" in caught.value.hint


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    """A slip in a job's name is answered with the name that was probably meant."""
    enter("trainer", "a" * 36)
    with pytest.raises(NotAppliedError) as caught:
        find_entry("trainr")
    assert "trainer" in caught.value.hint


def test_without_a_word_the_job_file_of_the_folder_comes_first(
    folder: Path, world: FakeScheduler
) -> None:
    """The job file of this folder is meant, whatever else is recorded."""
    record("old", ".milkweed/job.json")
    Path("milkweed.yaml").write_text(JOB.format(name="demo"))
    assert choose(None).name == "demo"


def test_without_a_job_file_the_record_of_the_folder_is_meant(
    folder: Path, world: FakeScheduler
) -> None:
    """What a program recorded here is nearer than what is recorded elsewhere."""
    record("here", ".milkweed/job.json")
    registry.remove_entry(next(registry.load_entries()).apply_id)
    enter("elsewhere", "a" * 36)
    assert choose(None).name == "here"


def test_the_only_recorded_job_is_meant(folder: Path) -> None:
    """Where nothing is declared, the only recorded job is meant."""
    enter("demo", "a" * 36)
    assert choose(None).name == "demo"


def test_several_recorded_jobs_are_not_guessed(folder: Path) -> None:
    """Where several jobs could be meant, all are listed and none is taken."""
    enter("a", "aaaa1111")
    enter("b", "bbbb2222")
    with pytest.raises(MilkweedError, match="2 jobs are recorded") as caught:
        choose(None)
    assert "bbbb2222" in caught.value.seen


def test_nothing_at_all_is_a_clear_error(folder: Path) -> None:
    """Without any job, the way to a first one is shown."""
    for find in (choose, choose_all):
        with pytest.raises(NotAppliedError) as caught:
            find(None)
        assert "milkweed init" in caught.value.hint


def test_reads_may_be_about_all_jobs(folder: Path) -> None:
    """Without a job here, a read is about every recorded one."""
    enter("a", "aaaa1111")
    enter("b", "bbbb2222")
    assert [found.name for found in choose_all(None)] == ["a", "b"]
    assert [found.name for found in choose_all("b")] == ["b"]


def test_inside_a_run_its_own_job_is_meant(
    folder: Path, world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that a job's client starts is about that job, unless it names another one."""
    record("inside", "state/x.json")
    Path("milkweed.yaml").write_text(JOB.format(name="demo"))
    monkeypatch.setenv("MILKWEED_STATE", str(folder / "state" / "x.json"))
    assert choose(None).name == "inside"
    assert choose_all(None)[0].name == "inside"
    assert choose("milkweed.yaml").name == "demo"
    assert "MILKWEED_STATE" not in os.environ
