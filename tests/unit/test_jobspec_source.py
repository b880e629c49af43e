"""Files: which dialect they are in, what is shown of mistakes, and what is no jobspec at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from milkweed.errors import JobspecError
from milkweed.jobspec import DIALECTS, load_jobspec, parse_jobspec
from unit.jobspecs import EXAMPLES, FLUX, STEPS, TASKS, wrong


@pytest.mark.parametrize(
    ("text", "dialect"),
    [(STEPS, "compspec-0.0.1"), (TASKS, "compspec-0.1"), (FLUX, "flux-v1")],
)
def test_the_dialect_is_told_by_the_keys(text: str, dialect: str) -> None:
    """Nobody has to say which language a file is in."""
    assert parse_jobspec(text).dialect == dialect
    assert parse_jobspec(text, dialect=dialect) == parse_jobspec(text)


def test_another_dialect_can_be_asked_for() -> None:
    """A file that is read as another language is refused by the rules of that one."""
    assert "task: is missing" in wrong(FLUX, "compspec-0.0.1")


def test_an_unknown_dialect_is_refused() -> None:
    """The nearest one is suggested."""
    with pytest.raises(JobspecError, match="did you mean 'flux-v1'"):
        parse_jobspec(FLUX, dialect="flux-v2")


def test_what_is_in_no_dialect_says_its_keys() -> None:
    """The keys that were seen, and those that would make it one, are told."""
    text = wrong("version: 1\njobs: []\n")
    assert "job.yaml:1:1: this is no jobspec of a dialect that is known" in text
    assert "'version', 'jobs'" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job.yaml:1:1: the file declares nothing"),
        ("# only words\n", "the file declares nothing"),
        ("- a\n- b\n", "a jobspec is a mapping of keys to values, not a list"),
        ("hello", "not 'hello'"),
        ("a: [", "job.yaml:1:5: this is not YAML"),
        ("tasks: []\nversion: 1\n", "the file declares no step"),
        ("tasks: &a [*a]\nversion: 1\n", "contains itself"),
        ("tasks: !!python/object:os.system []\n", "is not allowed"),
        ("tasks: []\ntasks: []\nversion: 1\n", "is set twice"),
    ],
)
def test_what_is_no_jobspec_is_told_as_such(text: str, said: str) -> None:
    """Empty files, lists, broken YAML, tags and loops end in one error."""
    assert said in wrong(text)


def test_a_mistake_is_shown_in_its_line() -> None:
    """The whole text of an error: place, line, caret, and what to do."""
    assert wrong(TASKS.replace("depends_on: [a]", "depends_on: [aa]")) == (
        "job.yaml:6:64: tasks[1].depends_on[0]: no step beside it is named 'aa'\n"
        "  | - {name: b, resources: small, command: [echo, b], depends_on: [aa]}\n"
        "  |                                                                ^^\n"
        "  do:   did you mean 'a'?"
    )


def test_all_mistakes_are_shown_at_once() -> None:
    """One look at the error is enough to mend the file."""
    text = TASKS.replace("version: 1", "version: 2").replace(
        "resources: small, command: [echo, a]", "command: 5"
    )
    assert wrong(text).count("job.yaml:") == 3


def test_files_are_read_from_disk(tmp_path: Path) -> None:
    """The name of the file is in the graph, for errors to come."""
    path = tmp_path / "x.yaml"
    path.write_text(TASKS)
    assert load_jobspec(path).source == str(path)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir()))
def test_every_example_is_read(example: str) -> None:
    """Every example in the folder is a jobspec without mistakes."""
    assert load_jobspec(EXAMPLES / example).dialect in DIALECTS


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Not there, a folder, too large, not UTF-8: each is told with its name."""
    with pytest.raises(JobspecError, match="cannot be read"):
        load_jobspec(tmp_path / "gone.yaml")
    with pytest.raises(JobspecError, match="cannot be read"):
        load_jobspec(tmp_path)
    with pytest.raises(JobspecError, match="cannot be read"):
        load_jobspec("a\0b")
    (tmp_path / "latin").write_bytes(b"version: 1\nname: \xe4\n")
    with pytest.raises(JobspecError, match=r":2:7: the byte 0xe4 is not UTF-8"):
        load_jobspec(tmp_path / "latin")
    (tmp_path / "huge").write_bytes(b"#" * (16 * 2**20 + 1))
    with pytest.raises(JobspecError, match="has more than"):
        load_jobspec(tmp_path / "huge")


def test_other_line_ends_are_fine() -> None:
    """A file from another system is the same file."""
    assert parse_jobspec("\ufeff" + TASKS.replace("\n", "\r\n")) == parse_jobspec(TASKS)


def test_reading_needs_nothing_that_is_not_declared() -> None:
    """A clean install can read a jobspec: no undeclared YAML library, no engine, no validation library."""
    code = (
        "import sys; from milkweed.jobspec import parse_jobspec, load_transformer; "
        "load_transformer('local').render(parse_jobspec(sys.stdin.read())); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=TASKS, capture_output=True, text=True, check=True
    )
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages & {"yaml", "monarch", "torch", "pydantic", "typer", "jsonschema"} == set()


def test_naming_the_package_imports_nothing_else() -> None:
    """What is public is imported on first use."""
    code = "import sys; import milkweed.jobspec; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("milkweed.")}
    assert ours == {"milkweed.jobspec"}


def test_unknown_names_of_the_package() -> None:
    """A slip is an AttributeError, as everywhere."""
    import milkweed.jobspec as package

    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing
