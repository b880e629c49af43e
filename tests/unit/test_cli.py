"""The command line's edge: help, versions, errors as a few lines, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from milkweed import __version__
from milkweed.cli import look, main
from milkweed.cli.app import app
from milkweed.cli.commands import about, looking
from milkweed.cli.edge import describe, reported
from milkweed.errors import SpecError
from milkweed.jobfile import load_jobfile

COMMANDS = (
    "init plan apply status ls hosts logs exec run torchrun kill doctor schema version operator jobspec".split()  # noqa: SIM905
)


def milkweed(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="milkweed")


def test_help_names_every_command() -> None:
    """`--help` lists all commands, each with one line."""
    shown = milkweed("--help").stdout
    assert re.findall(r"^  (\w+)  +\w", shown, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    """Each command explains itself, and no line of it is cut short."""
    done = milkweed(command, "-h")
    assert done.exit_code == 0
    assert f"Usage: milkweed {command}" in done.stdout
    assert "..." not in done.stdout.partition("\n")[2]


def find_commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, those in groups included."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from find_commands(command, (*words, name))
        else:
            yield (*words, name), command


EVERY = dict(find_commands(get_command(app)))
NEEDING = {
    words: [each for each in command.params if each.required]
    for words, command in EVERY.items()
    if any(each.required for each in command.params)
}


@pytest.mark.parametrize("words", sorted(NEEDING), ids=" ".join)
def test_what_a_command_needs_is_asked_for(words: tuple[str, ...]) -> None:
    """Without what it needs, a command says how it is used and what is missing, and ends with code 2."""
    done = milkweed(*words)
    assert done.exit_code == 2, done.output
    assert f"Usage: milkweed {' '.join(words)}" in done.stderr
    assert "Missing " in done.stderr
    assert "mistake in milkweed" not in done.stderr


def test_each_thing_that_is_needed_is_asked_for(folder: Path) -> None:
    """Of several things that a command needs, each is asked for when it alone is missing."""
    assert {("jobspec", "run"), ("jobspec", "convert"), ("jobspec", "wait")} <= set(NEEDING)
    (folder / "x.yaml").write_text("version: 1\n")
    done = milkweed("jobspec", "convert", "x.yaml")
    assert done.exit_code == 2
    assert "--to" in done.stderr
    done = milkweed("jobspec", "convert", "--to", "flux-v1")
    assert done.exit_code == 2
    assert "FILE" in done.stderr


@pytest.mark.parametrize("words", sorted(set(EVERY) - set(NEEDING)), ids=" ".join)
def test_no_command_breaks_without_a_word(
    words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that needs nothing never says that milkweed is wrong when it gets nothing."""
    del folder
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = milkweed(*words)
    assert "mistake in milkweed" not in done.output
    assert done.exit_code in {0, 1, 2}


def test_version() -> None:
    """`version` and `--version` say the same."""
    assert milkweed("version").stdout == milkweed("--version").stdout == f"milkweed {__version__}\n"


def test_version_as_json() -> None:
    """`version --json` is one JSON document."""
    assert json.loads(milkweed("version", "--json").stdout)["milkweed"] == __version__


def test_schema_is_a_json_schema() -> None:
    """`schema` prints what editors check job files with."""
    found = json.loads(milkweed("schema").stdout)
    assert {"process", "local", "fake"} <= set(found["properties"]["on"]["enum"])


@pytest.mark.parametrize(
    ("words", "code"), [(["aply"], 2), (["ls", "--nope"], 2), (["exec"], 2), ([], 2)]
)
def test_usage_errors_are_2(words: list[str], code: int) -> None:
    """A wrong command line ends with 2, before anything is done."""
    assert milkweed(*words).exit_code == code


def test_a_near_word_is_suggested() -> None:
    """A slip in a command's name is answered with the right one."""
    assert "apply" in milkweed("aply").stderr


def test_main_ends_with_the_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """main() ends with SystemExit, and an error is told on stderr only."""
    with pytest.raises(SystemExit) as stop:
        main(["plan"])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("milkweed: there is no job here\n  seen: ")
    assert "Traceback" not in err


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Result:
    def raises(_allocations: object) -> None:
        raise error

    monkeypatch.setattr(look, "look_at_all", raises)
    return milkweed("ls")


def test_an_error_is_shown_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A milkweed error is printed as it reads, with exit code 1."""
    done = fail_with(monkeypatch, SpecError("too much", seen="9 hosts", hint="ask for less"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "milkweed: too much\n  seen: 9 hosts\n  do:   ask for less\n"


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with 130 and one line."""
    done = fail_with(monkeypatch, KeyboardInterrupt())
    assert (done.exit_code, done.stderr) == (130, "milkweed: interrupted\n")


def test_a_closed_pipe_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody reads any more, the command ends as SIGPIPE would end it, saying nothing."""
    monkeypatch.setattr("milkweed.cli.edge._drop_output", lambda: None)
    done = fail_with(monkeypatch, BrokenPipeError())
    assert (done.exit_code, done.output) == (141, "")


def test_system_errors_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operating system refuses is told with the file it is about."""
    done = fail_with(monkeypatch, PermissionError(13, "Permission denied", "/etc/shadow"))
    assert (done.exit_code, done.stderr) == (1, "milkweed: Permission denied: /etc/shadow\n")


def test_a_mistake_of_ours_has_no_bare_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error says what it is and how to see more."""
    done = fail_with(monkeypatch, KeyError("handle"))
    assert done.exit_code == 1
    assert "unexpected KeyError: 'handle'" in done.stderr
    assert "MILKWEED_DEBUG=1" in done.stderr


def test_debugging_lets_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MILKWEED_DEBUG=1 the error itself comes out, with its traceback."""
    monkeypatch.setenv("MILKWEED_DEBUG", "1")
    assert isinstance(fail_with(monkeypatch, KeyError("handle")).exception, KeyError)


def test_what_typer_raises_passes() -> None:
    """Exit codes of commands are not errors to be reported."""
    with pytest.raises(typer.Exit) as stop, reported():
        raise typer.Exit(7)
    assert stop.value.exit_code == 7


def test_an_error_without_words_has_a_name() -> None:
    """An operating system error without a text is told by its kind."""
    assert describe(TimeoutError()) == "TimeoutError"


def test_init_writes_a_job_file_that_is_valid(folder: Path) -> None:
    """`init` writes a job file without mistakes, named after the folder."""
    done = milkweed("init")
    assert done.exit_code == 0, done.output
    found = load_jobfile("milkweed.yaml")
    assert (found.spec.name, found.spec.backend) == ("work", "process")
    assert found.spec.sizes == {"workers": 2}


def test_every_comment_of_init_is_true(folder: Path) -> None:
    """The keys that `init` only mentions are keys of job files: with their marks taken out, it parses."""
    text = about.TEMPLATE.format(name="demo")
    head, _, rest = text.partition("# env:")
    wanted = re.sub(r"^( *)# ", r"\1", "# env:" + rest, flags=re.MULTILINE)
    meshes = re.sub(r"^    # ", "    ", head, flags=re.MULTILINE)
    Path("milkweed.yaml").write_text(meshes + wanted)
    spec = load_jobfile("milkweed.yaml").spec
    assert spec.run == ("python", "train.py")
    assert spec.meshes[0].resources.gpus == 8
    assert spec.env == {"MODE": "fast"}


@pytest.mark.parametrize("name", ["milkweed.yaml", "job.yaml"])
def test_init_overwrites_nothing(folder: Path, name: str) -> None:
    """A job file that is there stays as it is."""
    Path(name).write_text("mine")
    done = milkweed("init")
    assert done.exit_code == 1
    assert name in done.stderr
    assert [path.read_text() for path in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("folder_name", "name"),
    [
        ("my project!", "my-project"),
        ("...", "demo"),
        ("2024", "2024"),
        ("true", "true"),
        ("1e5", "1e5"),
        ("x" * 99, "x" * 63),
    ],
)
def test_init_makes_a_name_of_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_name: str, name: str
) -> None:
    """Whatever the folder is called, the job's name is text that schedulers carry."""
    path = tmp_path / f"in-{folder_name}" if folder_name == "..." else tmp_path / folder_name
    path.mkdir()
    monkeypatch.chdir(path)
    assert milkweed("init").exit_code == 0
    expected = "in" if folder_name == "..." else name
    assert load_jobfile("milkweed.yaml").spec.name == expected


def test_the_commands_have_no_surprising_options() -> None:
    """Every command that tells something tells it to programs, too."""
    for command in ("plan", "apply", "status", "ls", "hosts", "doctor", "version"):
        assert "--json" in milkweed(command, "-h").stdout
    assert looking.TAIL_LINES > 0
