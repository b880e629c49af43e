"""`run`: the program is found before anything starts, then runs as the job's client."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from milkweed.backends.base import Capabilities
from milkweed.backends.fake import FakeScheduler
from milkweed.cli.app import app
from milkweed.plan import Renewal
from milkweed.status import Status
from unit.follow_ups import ENDED, running, tell_story

PYTHON = sys.executable


class Became(Exception):  # noqa: N818
    """What the process turned into."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__()
        self.argv = tuple(argv)
        self.state = env.get("MILKWEED_STATE")
        self.folder = Path.cwd()


@pytest.fixture(autouse=True)
def _stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not turn the test into another program."""

    def execve(path: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        assert path == argv[0]
        raise Became(argv, env)

    monkeypatch.setenv("MILKWEED_DEBUG", "1")
    monkeypatch.setattr(os, "execve", execve)


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def declare(more: str = "", *, path: str = "milkweed.yaml") -> None:
    Path(path).write_text(f"name: demo\non: fake\nmeshes: {{workers: 2}}\n{more}")
    Path("train.py").touch()


def became(*words: str) -> Became:
    done = milkweed(*words)
    assert isinstance(done.exception, Became), done.output
    return done.exception


def test_a_script_runs_with_this_python(folder: Path, world: FakeScheduler) -> None:
    """A script is run by milkweed's own Python, with its arguments unread and its job in the environment."""
    declare()
    found = became("run", "train.py", "--lr", "1", "--", "--help")
    assert found.argv == (PYTHON, "train.py", "--lr", "1", "--", "--help")
    assert found.state == str(folder / ".milkweed" / "demo.json")
    assert len(world.alive) == 1


def test_the_plan_goes_to_stderr(world: FakeScheduler) -> None:
    """What is asked for first is told on stderr: stdout is the program's."""
    declare()
    done = milkweed("run", "train.py")
    assert done.stderr.startswith("create: job 'demo'")
    assert done.stdout == ""
    assert milkweed("run", "train.py").stderr == ""
    assert len(world.allocations) == 1


@pytest.mark.parametrize(
    ("declared", "argv"),
    [
        ("python train.py --lr 0.1", (PYTHON, "train.py", "--lr", "0.1")),
        ("[python3, -m, pytest]", (PYTHON, "-m", "pytest")),
        ("train.py a", (PYTHON, "train.py", "a")),
        ("sh -c true", ("/bin/sh", "-c", "true")),
    ],
)
def test_without_a_script_the_job_file_says(
    world: FakeScheduler, declared: str, argv: tuple[str, ...]
) -> None:
    """`run` of the job file is what runs when no script is given."""
    declare(f"run: {declared}\n")
    found = became("run")
    assert Path(found.argv[0]).name == Path(argv[0]).name
    assert found.argv[1:] == argv[1:]


def test_what_a_job_file_says_runs_in_its_folder(folder: Path, world: FakeScheduler) -> None:
    """Names in a job file are seen from its own folder."""
    declare("run: ./go.sh x\n")
    program = folder / "go.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (folder / "elsewhere").mkdir()
    os.chdir("elsewhere")
    found = became("run", "--job", "../milkweed.yaml")
    assert found.folder == folder
    assert found.argv == (str(folder / "go.sh"), "x")


@pytest.mark.parametrize(
    "words",
    [["gone.py"], ["python", "gone.py"], ["./gone"], ["no-such-program"], ["--detach", "gone.py"]],
)
def test_a_missing_program_starts_nothing(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """A program that is not there is named before anything is asked for."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    declare()
    done = milkweed("run", *words)
    assert done.exit_code == 1
    assert "there is no" in done.stderr
    assert world.allocations == {}


def test_a_script_that_is_no_program_has_a_hint(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be executed is answered with how Python would run it."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    declare()
    Path("train").touch()
    assert "python train" in milkweed("run", "train").stderr


def test_nothing_to_run_is_an_error(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a script, and without `run` in the job file, the two ways to say it are shown."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    declare()
    done = milkweed("run")
    assert done.exit_code == 1
    assert "run: python train.py" in done.stderr
    assert world.allocations == {}


def test_a_recorded_job_is_run_by_name(world: FakeScheduler) -> None:
    """A program runs as the client of a recorded job, too."""
    declare()
    milkweed("apply")
    Path("milkweed.yaml").unlink()
    assert (became("run", "-j", "demo", "train.py").state or "").endswith("/.milkweed/demo.json")
    assert len(world.allocations) == 1


def test_a_change_needs_a_word(world: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed declaration does not end an allocation because somebody runs a program."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    declare()
    milkweed("apply")
    declare("env: {MODE: fast}\n")
    done = milkweed("run", "train.py")
    assert done.exit_code == 1
    assert "MODE" in done.stderr
    assert len(world.allocations) == 1


def test_detached_the_program_runs_inside(world: FakeScheduler) -> None:
    """With --detach the scheduler gets the program, and where its record is."""
    world.capabilities = Capabilities(batch=True)
    declare()
    done = milkweed("run", "--detach", "train.py", "--lr", "1")
    assert done.exit_code == 0, done.output
    (found,) = world.allocations.values()
    assert found.request.client_script == (PYTHON, "train.py", "--lr", "1")
    assert found.request.state_path == str(Path(".milkweed/demo.json").absolute())
    assert "milkweed logs -f demo" in done.stdout


def test_detached_needs_an_allocation_of_its_own(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts that are there already have no client inside, and that is told instead of passed over."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    world.capabilities = Capabilities(batch=True)
    declare()
    milkweed("apply")
    done = milkweed("run", "-d", "train.py")
    assert done.exit_code == 1
    assert "milkweed kill" in done.stderr
    assert len(world.allocations) == 1


@pytest.mark.parametrize(("first", "renewal"), [(running(), Renewal.DUE), (ENDED, Renewal.WAITING)])
def test_detached_needs_an_allocation_that_starts_it(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch, first: Status, renewal: Renewal
) -> None:
    """A follow-up starts no client, whether it is asked for or gone over to: nothing is done, and told."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    story = tell_story(monkeypatch)
    world.capabilities = Capabilities(batch=True)
    Path("milkweed.yaml").write_text("name: demo\non: followed\nmeshes: {a: 2}\n")
    Path("train.py").touch()
    assert milkweed("apply").exit_code == 0
    before = Path(".milkweed/demo.json").read_text()
    story.says[0], story.renewal = [first], renewal
    done = milkweed("run", "-d", "train.py")
    assert done.exit_code == 1
    assert "a detached run makes its own" in done.stderr
    assert Path(".milkweed/demo.json").read_text() == before
    assert story.count("renew", 0) == story.count("retire", 1) == 0


def test_detached_is_refused_where_it_cannot_be(
    world: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that cannot run clients inside says so, and nothing starts."""
    monkeypatch.delenv("MILKWEED_DEBUG")
    declare()
    done = milkweed("run", "-d", "train.py")
    assert done.exit_code == 1
    assert "cannot run the client inside" in done.stderr
    assert world.allocations == {}
