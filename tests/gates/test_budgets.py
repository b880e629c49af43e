"""The code stays small enough to read: the limits that docs/design.md sets."""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

from gates.tree import Function, count_lines, functions, name_of, parse, python_files

MAX_FILE_LINES = 400
MEDIAN_FUNCTION_LINES = 10
P95_FUNCTION_LINES = 40
LINES_PER_BROAD_EXCEPT = 1000

BROAD = {"Exception", "BaseException"}
NOQA = re.compile(r"noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?", re.IGNORECASE)


def lengths() -> list[tuple[int, str]]:
    """Every function of the source with its length, the longest first."""
    found = [
        (length(node), f"{name_of(path)}:{node.lineno} {node.name}")
        for path in python_files("src")
        for node in functions(path)
    ]
    return sorted(found, reverse=True)


def length(node: Function) -> int:
    """Lines from `def` to the end, docstring included, decorators not."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def broad_excepts(path: Path) -> Iterator[int]:
    """The lines that catch everything."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ExceptHandler):
            caught = [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = list(node.args)
        else:
            continue
        if any(is_broad(each) for each in caught):
            yield node.lineno


def is_broad(caught: ast.expr | None) -> bool:
    """Whether an `except` of this catches everything."""
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(part, ast.Name) and part.id in BROAD for part in parts)


def reasons(path: Path) -> dict[int, str]:
    """The comments of a file by line, without what only silences a linter."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
    comments = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
    return {line: NOQA.sub("", text).strip("# \t") for line, text in comments.items()}


def test_no_file_is_long() -> None:
    """A file has at most 400 lines."""
    sizes = {name_of(path): count_lines([path]) for path in python_files("src", "tests", "bench")}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    """Half of all functions have less than 10 lines."""
    assert statistics.median(size for size, _ in lengths()) < MEDIAN_FUNCTION_LINES


def test_few_functions_are_long() -> None:
    """Of twenty functions, nineteen have less than 40 lines."""
    found = lengths()
    size, _ = found[len(found) // 20]
    assert size < P95_FUNCTION_LINES, found[: len(found) // 20 + 1]


def test_broad_excepts_are_rare() -> None:
    """At most one place per thousand lines catches everything."""
    paths = python_files("src")
    found = [f"{name_of(path)}:{line}" for path in paths for line in broad_excepts(path)]
    assert len(found) <= count_lines(paths) / LINES_PER_BROAD_EXCEPT, found


def test_broad_excepts_have_reasons() -> None:
    """Whatever catches everything says on its line why."""
    bare = [
        f"{name_of(path)}:{line}"
        for path in python_files("src")
        for line in broad_excepts(path)
        if not reasons(path).get(line)
    ]
    assert bare == []


def test_there_are_more_tests_than_source() -> None:
    """The tests are at least as long as what they test."""
    tests, source = count_lines(python_files("tests")), count_lines(python_files("src"))
    assert tests >= source > 0
