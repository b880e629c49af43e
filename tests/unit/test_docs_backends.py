"""The backend that the documentation builds is a real one: it passes the suite, and actors run on its hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.backends import GROUP
from milkweed.testing import BackendContract

pytestmark = pytest.mark.e2e

DOC = Path(__file__).parents[2] / "docs" / "backends.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    """The fenced blocks of one kind."""
    return [found[2] for found in BLOCK.finditer(DOC.read_text("utf-8")) if found[1] == kind]


@pytest.fixture
def plugin() -> Iterator[Path]:
    """A folder with the example in it, installed as the documentation says; short, because of its sockets."""
    backend, use, suite = blocks("python")
    (project,) = blocks("toml")
    with tempfile.TemporaryDirectory(prefix="mw-") as name:
        folder = Path(name)
        (folder / "shell_backend.py").write_text(backend)
        (folder / "use.py").write_text(use)
        (folder / "test_shell_backend.py").write_text(suite)
        info = folder / "shell_backend-1.0.dist-info"
        info.mkdir()
        points = tomllib.loads(project)["project"]["entry-points"][GROUP]
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shell-backend\nVersion: 1.0\n")
        yield folder


def run(folder: Path, *words: str) -> str:
    """Run Python with the example installed, and check that it leaves nothing."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "MILKWEED_HOME": str(folder / "h")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path for path in (folder / "h").rglob("*") if path.is_file()] == []
    return done.stdout


def test_the_example_passes_the_suite(plugin: Path) -> None:
    """Every test of the contract passes, as many as the documentation shows."""
    shown = run(plugin, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    count = sum(name.startswith("test_") for name in dir(BackendContract))
    assert f"{count} passed" in shown
    assert f"{count} passed" in blocks("console")[0]


def test_actors_run_on_the_hosts_of_the_example(plugin: Path) -> None:
    """Found by its entry point, the example gives hosts to a program."""
    assert run(plugin, "use.py").splitlines()[-1] == "['hello', 'hello']"
