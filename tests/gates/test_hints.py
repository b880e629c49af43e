"""An error that does not say what to do helps nobody; which errors say it is read from the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from gates.tree import SRC, name_of, parse
from milkweed import errors
from milkweed.errors import MilkweedError

HELD = ("backends", "job", "options.py", "spec.py", "units.py", "quantities.py")
"""What of the package is held to it."""
HINTLESS = {
    name
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MilkweedError) and not kind.usual_hint
}


def sources() -> Iterator[Path]:
    """The files that are held to it."""
    for name in HELD:
        path = SRC / "milkweed" / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def is_told(call: ast.Call) -> bool:
    """Whether a call has a hint, or takes on what may have one; an empty text is none."""
    said = [word.value for word in call.keywords if word.arg in {"hint", None}]
    return any(not (isinstance(value, ast.Constant) and not value.value) for value in said)


def silent(tree: ast.Module) -> list[int]:
    """The lines on which errors are made that do not say what to do."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in HINTLESS
        and not is_told(node)
    ]


def test_every_error_says_what_to_do() -> None:
    """Each error has a hint where it is raised, or its class has one that is always true."""
    assert [f"{name_of(path)}:{line}" for path in sources() for line in silent(parse(path))] == []


def test_what_says_nothing_is_found() -> None:
    """No hint and an empty one are found; a hint, words that are passed on and a usual hint are enough."""
    text = """
raise BackendError("no", seen="x")
raise BackendError("no", hint="")
raise BackendError("no", hint="try another")
raise BackendError("no", **more)
raise UnreachableError("no")
"""
    assert silent(ast.parse(text)) == [2, 3]
