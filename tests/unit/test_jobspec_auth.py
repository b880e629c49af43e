"""Secrets: from where they are to the run's own folder, and nowhere else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from milkweed.errors import AccessError
from milkweed.jobspec.auth import get_secret, save_secret
from milkweed.jobspec.graph import Auth, Stage
from milkweed.jobspec.progress import DONE
from milkweed.jobspec.runs import create_run
from milkweed.jobspec.whole_paths import make_whole
from unit.jobspecs import Talker, graph, job

SECRET = "hunter2-and-more"


def failure(source: dict[str, object], environment: dict[str, str] | None = None) -> AccessError:
    with pytest.raises(AccessError) as caught:
        get_secret({"secret": "hub", **source}, environment or {})
    assert SECRET not in str(caught.value)
    return caught.value


def test_a_variable_holds_it() -> None:
    """The variable of whoever runs the file is read."""
    assert get_secret({"secret": "hub", "variable": "T"}, {"T": SECRET}) == SECRET.encode()


def test_a_command_prints_it() -> None:
    """Its words are not read by a shell, and the newline at the end is not part of it."""
    argv = [sys.executable, "-c", "import sys; print(sys.argv[1])", "$(x); 'y'"]
    assert get_secret({"secret": "hub", "command": argv}, {}) == b"$(x); 'y'"


def test_a_file_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that only its owner reads; a tilde is the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text(SECRET + "\r\n")
    (tmp_path / "token").chmod(0o600)
    assert get_secret({"secret": "hub", "file": "~/token"}, {}) == SECRET.encode()


def test_what_is_missing_is_told() -> None:
    """The variable, command or file is named."""
    assert "the variable T is not set" in str(failure({"variable": "T"}))
    assert "cannot be started" in str(failure({"command": ["/nowhere/tool"]}))
    assert "No such file" in str(failure({"file": "/nowhere/token"}))


def test_a_command_that_fails_tells_its_code_only() -> None:
    """What it printed may be what must not be seen."""
    code = f"import sys; print({SECRET!r}); print({SECRET!r}, file=sys.stderr); sys.exit(3)"
    assert failure({"command": [sys.executable, "-c", code]}).seen == "exit code 3"


def test_a_command_that_hangs_is_given_up() -> None:
    """Nobody waits for a prompt that nobody sees."""
    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(AccessError, match=r"did not end within 0\.01 s"):
        get_secret({"secret": "hub", "command": argv}, {}, timeout_s=0.01)


def test_a_file_that_others_read_is_no_secret(tmp_path: Path) -> None:
    """It is refused, with what to do."""
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o644)
    assert f"chmod 600 {path}" in failure({"file": str(path)}).hint


@pytest.mark.parametrize("value", ["", "\n"])
def test_nothing_is_no_secret(value: str) -> None:
    """An empty variable is a mistake."""
    assert "is empty" in str(failure({"variable": "T"}, {"T": value}))


def test_too_much_is_no_secret() -> None:
    """A file that is named by mistake does not travel."""
    assert "has more than" in str(failure({"variable": "T"}, {"T": "x" * (2**20 + 1)}))


def test_a_secret_is_in_one_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the run goes on it is in a closed file; never in the plan, the record or the journal."""
    monkeypatch.setenv("HUB_TOKEN", SECRET)
    talker = Talker()
    found = graph(Auth(id="k", secret="hub", variable="HUB_TOKEN"), job("a", "k"))
    plan = talker.render(found)
    run = talker.run(plan)
    path = run.secrets / "hub"
    assert path.read_text() == SECRET
    assert path.stat().st_mode & 0o777 == 0o600
    holding = [
        each for each in run.folder.rglob("*") if each.is_file() and SECRET in each.read_text()
    ]
    assert holding == [path]
    assert SECRET not in plan.render()


def test_a_secret_is_gone_when_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not stay for whoever comes later."""
    monkeypatch.setenv("HUB_TOKEN", SECRET)
    talker = Talker()
    talker.world.story = iter([{"a": DONE}])
    found = graph(Auth(id="k", secret="hub", variable="HUB_TOKEN"), job("a", "k"))
    run = talker.run(talker.render(found), wait=True)
    assert not run.secrets.exists()


def test_no_secret_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the step fails, and what needs it is never submitted."""
    monkeypatch.delenv("HUB_TOKEN", raising=False)
    talker = Talker()
    found = graph(Auth(id="k", secret="hub", variable="HUB_TOKEN"), job("a", "k"))
    run = talker.run(talker.render(found), wait=True)
    assert talker.world.submitted == []
    assert run.progress().exit_code() == 1
    assert "HUB_TOKEN is not set" in run.progress().entries["k"].status.reason


def test_a_secret_replaces_the_one_before() -> None:
    """The same name twice is the later one, and no link is followed."""
    run = create_run(Talker().render(graph(job("a"))))
    outside = run.folder / "outside"
    outside.write_text("old")
    os.symlink(outside, run.secrets / "hub")
    save_secret(run, "hub", b"new")
    assert ((run.secrets / "hub").read_text(), outside.read_text()) == ("new", "old")


def test_whole_paths_are_left_as_they_are() -> None:
    """A graph without paths of the working folder is the same one; `~` is the home of whoever plans."""
    found = graph(Stage(id="s", path="/etc/hosts"), Auth(id="a", secret="a", command=("vault",)))
    assert make_whole(found) is found
    [step] = make_whole(graph(Stage(id="s", path="~/x"))).steps
    assert isinstance(step, Stage)
    assert step.path == os.path.expanduser("~/x")
