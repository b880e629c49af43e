"""The project's own files, as the gates look at them."""

from __future__ import annotations

import ast
import os
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    """Every Python file below these folders, the labs' tools aside."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if ROOT / "tests" / "labs" not in path.parents)


def project_files() -> list[Path]:
    """Every file that is tracked, or would be by `git add`; all files where this is no clone."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(_walk(ROOT))
    return sorted({path for name in done.stdout.split(b"\0") if (path := _file(name))})


def _file(name: bytes) -> Path | None:
    path = ROOT / os.fsdecode(name)
    return path if name and path.is_file() else None


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file():
            yield path
        elif not path.name.startswith(".") and path.name not in {"__pycache__", "dist"}:
            yield from _walk(path)


def name_of(path: Path) -> str:
    """A file's name in messages."""
    return str(path.relative_to(ROOT))


def count_lines(paths: Iterable[Path]) -> int:
    """How many lines the files have together."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def functions(path: Path) -> list[Function]:
    """Every function and method of a file, inner ones too."""
    return [node for node in ast.walk(parse(path)) if isinstance(node, Function)]


def parse(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text("utf-8"), str(path))


def pyproject() -> dict[str, Any]:
    """The project's settings."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
