"""Texts that are no job file, or no YAML, or mean harm: explained, and never run or grown."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from milkweed.errors import JobFileError
from milkweed.jobfile import parse_jobfile
from milkweed.option_tables import BUILTIN_OPTIONS

SMALL = "name: demo\non: process\nmeshes: {workers: 2}\n"


def error_of(text: str) -> str:
    """The text of the error that a job file gives."""
    with pytest.raises(JobFileError) as caught:
        parse_jobfile(text, "job.yaml", options_of=BUILTIN_OPTIONS.get)
    return str(caught.value)


def lines(text: str) -> str:
    """A text without the indentation it has in this file."""
    return dedent(text).strip("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "name: demo\nmeshes:\n\tworkers: 2\n",
            """
            job.yaml:3:1: a tab where YAML wants spaces
              |  workers: 2
              | ^
              do:   indent with spaces
            """,
        ),
        (
            "name: a: b\n",
            """
            job.yaml:1:8: a ':' that does not belong here
              | name: a: b
              |        ^
              do:   put a text that holds ': ' in quotes; check that the lines above line up
            """,
        ),
        (
            "name: @x\n",
            """
            job.yaml:1:7: a text cannot start with '@'
              | name: @x
              |       ^
              do:   put it in quotes
            """,
        ),
        (
            "name: demo\nenv: {A: b\n\n",
            """
            job.yaml:2:6: this is not YAML: expected ',' or '}', but got '<stream end>', while parsing a flow mapping that starts in line 2
              | env: {A: b
              |      ^
            """,
        ),
        (
            "name: de\x07mo\n",
            """
            job.yaml:1:9: the character '\\x07' is not allowed
              | name: de�mo
              |         ^
            """,
        ),
        (
            'name: "\\UFFFFFFFF"\n',
            """
            job.yaml:1:8: an escape that is no character
              | name: "\\UFFFFFFFF"
              |        ^^^^^^^^^^
            """,
        ),
        (
            "%YAML 1.1\n---\nname: no\n",
            """
            job.yaml:1:1: a job file is YAML 1.2
              | %YAML 1.1
              | ^^^^^
              do:   take this line out
            """,
        ),
        (
            "%YAML 1.9\n---\nname: no\n",
            """
            job.yaml:1:1: a job file is YAML 1.2
              | %YAML 1.9
              | ^^^^^
              do:   take this line out
            """,
        ),
        (
            "name: a\n---\nname: b\n",
            """
            job.yaml:2:1: a second document starts here
              | ---
              | ^^^
              do:   keep one document in a file
            """,
        ),
        (
            "- name: demo\n",
            """
            job.yaml:1:1: a job file is a mapping of keys to values, not a list
              | - name: demo
              | ^
              do:   write at least:
                    name: demo
                    on: process
                    meshes: {workers: 2}
            """,
        ),
        (
            "# nothing but words\n",
            """
            job.yaml:1:1: the file declares nothing
              do:   write at least:
                    name: demo
                    on: process
                    meshes: {workers: 2}
            """,
        ),
    ],
)
def test_broken_text_is_explained(text: str, expected: str) -> None:
    """A text that is no job file at all gives one error, at the place where reading stopped."""
    assert error_of(text) == lines(expected)


@pytest.mark.parametrize("text", ["", "\n", "---\n", "~\n", "\ufeff"])
def test_an_empty_file_is_told_what_to_hold(text: str) -> None:
    """A file without anything shows the smallest job."""
    assert error_of(text).startswith("job.yaml:1:1: the file declares nothing\n  do:   write at")


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    """Nested aliases that stand for billions of values are refused."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 12):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    assert "the file stands for more than 100,000 values" in error_of(text)
    assert "do:   use fewer aliases" in error_of(text)


def test_deep_nesting_is_refused() -> None:
    """Values inside values inside values end in an error, not in a crash."""
    assert "more than 40 values inside each other" in error_of("a: " + "[" * 10_000)


def test_deep_nesting_by_aliases_is_refused() -> None:
    """Aliases cannot build what could not be written."""
    text = "a0: &a0 x\n"
    for level in range(1, 70):
        text += f"a{level}: &a{level} {'[' * 20}*a{level - 1}{']' * 20}\n"
    assert "more than 40 values inside each other" in error_of(text)


def test_tags_run_nothing(tmp_path: Path) -> None:
    """A tag that would run a program elsewhere is refused, and runs nothing."""
    trace = tmp_path / "trace"
    text = f"run: !!python/object/apply:os.mkdir ['{trace}']\n"
    assert "the tag !!python/object/apply:os.mkdir is not allowed" in error_of(SMALL + text)
    assert not trace.exists()
