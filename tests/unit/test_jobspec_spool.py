"""A spool folder: each file is taken once, and tells in the end how it went."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import AccessError, BackendError, StateError
from milkweed.jobspec import Run, load_runs, load_transformer
from milkweed.jobspec.driver import drive_here
from milkweed.jobspec.runs import load_run, remove_if_over, runs_folder
from milkweed.jobspec.spool import POINTS, SETTLE_S, Spool, make_claim, parse_claim
from milkweed.testing import FakeClock
from unit.jobspecs import TASKS
from unit.sites import PLUGIN, use_site

RUN = "0a1b2c3d-0000-4000-8000-000000000000"
OLD_S = 10_000.0


@pytest.fixture(autouse=True)
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A transformer `site`."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "jobspec_site.py").write_text(PLUGIN)
    yield from use_site(packages, monkeypatch)


@pytest.fixture
def place(folder: Path) -> Path:
    """The folder that is served."""
    path = folder / "spool"
    path.mkdir(mode=0o700)
    return path


class Service:
    """A service whose runs are driven when the test says so."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.said: list[str] = []
        self.started: list[str] = []
        more.setdefault("clock", lambda: OLD_S + SETTLE_S)
        more.setdefault("start", self._start)
        self.spool = Spool(folder, transformer="site", say=self.said.append, **more)

    def _start(self, run: Run) -> None:
        self.started.append(run.id)

    def look(self) -> None:
        """Let it look once."""
        self.spool.look()


def put(place: Path, name: str = "a.yaml", text: str = TASKS, *, at_s: float = OLD_S) -> Path:
    path = place / name
    path.write_text(text)
    os.utime(path, (at_s, at_s))
    return path


def names(place: Path) -> dict[str, list[str]]:
    """The files of each folder, without their ids."""
    plain = {
        name: sorted(re.sub(r"\.[0-9a-f-]{36}", "", path.name) for path in (place / name).iterdir())
        for name in ("running", "done", "failed")
    }
    return {name: found for name, found in plain.items() if found}


def drive() -> None:
    """Carry all runs to their end."""
    for run in load_runs():
        if not run.progress().over:
            drive_here(load_transformer("site", **run.plan.settings), run, until_over=True)


def test_a_file_is_run_once(place: Path) -> None:
    """It is taken, its run is started, and when that is over the file is done with a text beside it."""
    service = Service(place)
    put(place)
    service.look()
    assert names(place) == {"running": ["a.yaml"]}
    assert len(service.started) == 1
    drive()
    service.look()
    service.look()
    assert names(place) == {"done": ["a.yaml", "a.yaml.txt"]}
    (text,) = (path.read_text() for path in (place / "done").glob("*.txt"))
    assert text == f"run {service.started[0]} on site: exit code 0\n"
    assert len(load_runs()) == 1


def test_work_that_fails_is_told(place: Path) -> None:
    """The reason stands beside the file."""
    service = Service(place, settings={"code": "3"})
    put(place)
    service.look()
    drive()
    service.look()
    assert names(place) == {"failed": ["a.yaml", "a.yaml.txt"]}
    (text,) = (path.read_text() for path in (place / "failed").glob("*.txt"))
    assert "exit code 3\na: failed (3)\nb: skipped: it needs afterok:a" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file declares nothing"),
        (TASKS.replace("[a]", "[x]"), "no step beside it is named 'x'"),
        ("a: [", ".yaml:1:"),
        ("{}", "is no jobspec of a dialect"),
    ],
)
def test_a_bad_file_is_moved_with_its_errors(place: Path, text: str, said: str) -> None:
    """Nothing was submitted, and others are not held up."""
    service = Service(place)
    put(place, "a.yaml", text)
    put(place, "b.yaml")
    service.look()
    assert names(place) == {"failed": ["a.yaml", "a.yaml.txt"], "running": ["b.yaml"]}
    (reason,) = (path.read_text() for path in (place / "failed").glob("*.txt"))
    assert said in reason
    assert len(load_runs()) == 1


def test_a_file_that_comes_back_is_run_anew(place: Path) -> None:
    """Moving it out of failed/ is all it takes; it gets an id of its own."""
    service = Service(place)
    put(place, "a.yaml", "{}")
    service.look()
    (failed,) = (place / "failed").glob("*.yaml")
    put(place, failed.name)
    service.look()
    (claimed,) = (place / "running").iterdir()
    assert claimed.name == f"a.{service.started[0]}.yaml"


@pytest.mark.parametrize("name", [".a.yaml", "a.yaml.tmp", "a.txt", "a", "a.yaml~"])
def test_other_files_are_left_alone(place: Path, name: str) -> None:
    """Whoever writes beside and renames is never disturbed."""
    service = Service(place)
    put(place, name)
    (place / "folder.yaml").mkdir()
    os.mkfifo(place / "fifo.yaml")
    service.look()
    assert (place / name).exists()
    assert names(place) == {}


def test_a_young_file_is_not_taken(place: Path, clock: FakeClock) -> None:
    """It may still be written; a while later it is taken."""
    now = [OLD_S]
    service = Service(place, clock=lambda: now[0])
    put(place)
    service.look()
    assert names(place) == {}
    now[0] += SETTLE_S
    service.look()
    assert names(place) == {"running": ["a.yaml"]}


def test_a_file_that_somebody_has_open_to_write_is_not_taken(place: Path) -> None:
    """However long its writer pauses."""
    service = Service(place)
    path = put(place)
    with path.open("a"):
        service.look()
        assert names(place) == {}
    os.utime(path, (OLD_S, OLD_S))
    service.look()
    assert names(place) == {"running": ["a.yaml"]}


def test_two_services_do_not_take_the_same_file(place: Path) -> None:
    """While one acts on a file, the other leaves it alone, taken or not."""
    other = Service(place)
    looked: list[str] = []

    def passed(point: str) -> None:
        looked.append(point)
        other.look()

    one = Service(place, passed=passed)
    put(place)
    one.look()
    drive()
    one.look()
    assert other.started == []
    assert looked == list(POINTS)
    assert names(place) == {"done": ["a.yaml", "a.yaml.txt"]}
    assert len(load_runs()) == 1


def test_a_lock_of_another_process_is_respected(place: Path) -> None:
    """What a service holds, nobody else touches."""
    path = put(place)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        service = Service(place)
        service.look()
        assert names(place) == {}
    service.look()
    assert names(place) == {"running": ["a.yaml"]}


class Killed(BaseException):
    """The service is gone."""


@pytest.mark.parametrize("point", POINTS)
def test_a_service_that_ends_anywhere_loses_and_repeats_nothing(place: Path, point: str) -> None:
    """The next one finds the file where it was left, and its work is done once."""

    def passed(name: str) -> None:
        if name == point:
            raise Killed

    put(place)
    first = Service(place, passed=passed)
    try:
        first.look()
        drive()
        first.look()
    except Killed:
        pass
    second = Service(place)
    for _ in range(3):
        second.look()
        drive()
    assert names(place) == {"done": ["a.yaml", "a.yaml.txt"]}
    (run,) = load_runs()
    assert (run.folder / "ran").read_text().count("a ['echo', 'a']") == 1


def test_a_half_made_record_is_made_anew(place: Path) -> None:
    """A folder without a record submitted nothing."""
    service = Service(place)
    claim = make_claim(Path("a.yaml"), place / "running", RUN)
    put(place / "running", claim.path.name)
    (runs_folder() / RUN / "files").mkdir(parents=True)
    runs_folder().chmod(0o700)
    service.look()
    assert service.started == [RUN]
    assert load_run(runs_folder() / RUN).plan.run_id == RUN


def test_a_run_that_cannot_be_carried_on_is_told(place: Path) -> None:
    """After a few tries nobody starts it again, and a person is told what to do, once."""
    service = Service(place)
    put(place)
    for _ in range(10):
        service.look()
    assert len(service.started) == 6
    (said,) = (each for each in service.said if "cannot be carried on" in each)
    assert "milkweed jobspec cancel" in said
    (run,) = load_runs()
    load_transformer("site").cancel(run)
    service.look()
    assert names(place) == {"failed": ["a.yaml", "a.yaml.txt"]}


def test_what_may_pass_is_tried_again(place: Path) -> None:
    """A scheduler that does not answer today may tomorrow: the file waits."""
    answers = iter([BackendError("not today"), None])

    def start(run: Run) -> None:
        if error := next(answers):
            raise error

    service = Service(place, start=start)
    put(place)
    service.look()
    assert names(place) == {"running": ["a.yaml"]}
    assert "not today" in service.said[-1]
    service.look()
    drive()
    service.look()
    assert names(place) == {"done": ["a.yaml", "a.yaml.txt"]}


def test_a_record_that_a_file_waits_for_is_not_cleaned_away(place: Path) -> None:
    """Else the file would look as if it had never run."""
    service = Service(place)
    put(place)
    service.look()
    drive()
    (run,) = load_runs()
    assert not remove_if_over(run, float("inf"))
    service.look()
    assert remove_if_over(run, float("inf"))


def test_a_folder_that_others_can_write_to_is_refused(place: Path) -> None:
    """Whoever puts a file there runs it with our rights."""
    place.chmod(0o770)
    with pytest.raises(AccessError, match="others can put files into"):
        Service(place)
    with pytest.raises(StateError, match="cannot be served"):
        Service(place / "nowhere")
    with pytest.raises(StateError, match="is not a folder"):
        Service(put(place))


def test_a_link_is_told_and_not_followed(place: Path, folder: Path) -> None:
    """It could lead anywhere."""
    outside = put(folder, "outside.yaml")
    (place / "a.yaml").symlink_to(outside)
    service = Service(place)
    service.look()
    service.look()
    assert [each.startswith("a.yaml: ") for each in service.said] == [True]
    assert outside.exists()


def test_names_hold_the_run(place: Path) -> None:
    """Long ones are cut, and what is no claim is none."""
    claim = make_claim(Path("x" * 250 + ".yml"), place, RUN)
    assert len(claim.path.name) < 255
    assert parse_claim(claim.path) == claim
    assert parse_claim(Path("a.yaml")) is None
    assert parse_claim(Path(f"a.{RUN}.yaml.txt")) is None
