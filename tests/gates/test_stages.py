"""The stages of `make test`: what fails twice fails, what fails once is named."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

STAGES = Path(__file__).parents[1] / "stages.py"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"]
UNSTEADY = """
from pathlib import Path

def test_at_the_second_try():
    tried = Path("tried")
    before = tried.exists()
    tried.touch()
    assert before

def test_always(): ...
"""
BROKEN = "def test_never(): raise AssertionError\n"


def run(folder: Path, *groups: list[str]) -> subprocess.CompletedProcess[str]:
    """Run stages in a folder; each runs the file of its name."""
    words: list[str] = []
    for group in groups:
        words += [f"{name}: {shlex.join([*PYTEST, f'test_{name}.py'])}" for name in group] + ["+"]
    command = [sys.executable, str(STAGES), *words[:-1]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Tests that pass, that fail once, and that fail."""
    (tmp_path / "test_good.py").write_text("def test_good(): ...\n")
    (tmp_path / "test_unsteady.py").write_text(UNSTEADY)
    (tmp_path / "test_broken.py").write_text(BROKEN)
    many = "".join(f"def test_{n}(): raise AssertionError\n" for n in range(6))
    (tmp_path / "test_many.py").write_text(many)
    return tmp_path


def test_a_test_that_fails_once_is_named(files: Path) -> None:
    """The second try decides, and the end tells of the first; stages side by side print whole."""
    done = run(files, ["good"], ["unsteady", "good"])
    assert done.returncode == 0, done.stdout
    told = done.stdout.partition("unsteady, passed at the second try only:")[2]
    assert told.strip() == "test_unsteady.py::test_at_the_second_try"
    assert done.stdout.count("1 failed, 1 passed") == 1


def test_a_test_that_fails_twice_fails(files: Path) -> None:
    """And the stages after it are run."""
    done = run(files, ["broken"], ["good"])
    assert done.returncode == 1
    assert done.stdout.count("1 failed") == 3  # twice by pytest, once by us
    assert "1 passed" in done.stdout
    assert done.stdout.rstrip().endswith("failed: broken")


def test_many_failures_have_no_second_try(files: Path) -> None:
    """Nor has a stage that fails for another reason than its tests."""
    done = run(files, ["many", "missing"])
    assert done.returncode == 1
    assert "second try" not in done.stdout
    assert done.stdout.rstrip().endswith("failed: many, missing")
