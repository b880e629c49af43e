"""The reference of the command line says what the commands do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from milkweed import __version__
from milkweed.cli.app import app
from milkweed.cli.commands.about import TEMPLATE
from milkweed.cli.edge import BROKEN_PIPE, INTERRUPTED

DOC = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", DOC, re.MULTILINE | re.DOTALL))
OTHER = {"Completion"}


def help_of(*words: str) -> str:
    return CliRunner().invoke(app, [*words, "--help"], prog_name="milkweed").stdout


def commands() -> list[str]:
    return re.findall(r"^  (\w+)  +\w", help_of().partition("Commands:")[2], re.MULTILINE)


def helps(command: str) -> str:
    """The help of a command, and of those below it."""
    own = help_of(command)
    below = re.findall(r"^  (\w+)  +\w", own.partition("Commands:")[2], re.MULTILINE)
    return "".join([own, *(help_of(command, word) for word in below)])


def options(command: str) -> set[str]:
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", helps(command), re.MULTILINE)) - {"--help"}


def test_every_command_has_a_section() -> None:
    """The sections are the commands, in their order."""
    assert [name for name in SECTIONS if name not in OTHER] == commands()


@pytest.mark.parametrize("command", commands())
def test_every_option_is_explained(command: str) -> None:
    """Each option that a command takes is named in its section, and none that it does not take."""
    text = SECTIONS[command]
    assert {option for option in options(command) if option not in text} == set()
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(--[a-z-]+)", prose)) <= options(command)


def test_examples_use_commands_that_exist() -> None:
    """Every line that calls milkweed calls a command of it."""
    called = set(re.findall(r"^\s*\$ milkweed (\w+)", DOC, re.MULTILINE))
    assert called == set(commands())


def test_exit_codes_are_the_real_ones() -> None:
    """The table of exit codes has those that the edge gives."""
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", DOC, re.MULTILINE)]
    assert codes == [0, 1, 2, INTERRUPTED, BROKEN_PIPE]


def test_the_version_is_the_real_one() -> None:
    """The version that is shown is the one there is."""
    assert f"milkweed {__version__}\n" in SECTIONS["version"]


def test_the_first_plan_is_that_of_init() -> None:
    """What `plan` shows first is what `init` declares."""
    assert "hosts: 2" in TEMPLATE
    assert "create: job 'demo' on process (workers=2)" in SECTIONS["plan"]
