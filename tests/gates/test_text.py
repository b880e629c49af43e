"""What the files say, whoever wrote them and wherever."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from gates.tree import functions, name_of, project_files, python_files

# Folders of machines that the code was written on; in pieces, or this line would be found too.
MACHINE = re.compile(r"(?<![\w.}])/" + "(?:work|farm|Users|opt/mw)/")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def read(path: Path) -> str:
    """A file's text; nothing for one that is not text."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Where a pattern is found."""
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(read(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_machine_of_its_author() -> None:
    """No file has a path in it that only exists where it was written."""
    assert lines_with(MACHINE, project_files()) == []


def test_nothing_is_left_for_later() -> None:
    """What is not finished is not in the source."""
    assert lines_with(UNFINISHED, python_files("src")) == []


def test_every_test_states_its_promise() -> None:
    """Each test has a docstring that says what it holds true."""
    silent = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files("tests")
        if path.name.startswith("test_")
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []
