"""Where there is no torchrun to compare with, that is plain, and green only where it is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, path: str, **env: str) -> tuple[int, str]:
    """Run a test that compares, where no torch is; its exit code, and what is printed."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in {"CI", "TORCH"} and not key.startswith("PYTEST_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", path],
        cwd=ROOT,
        env={**kept, "MILKWEED_TORCH": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


PARSING = "tests/spmd/test_parsing.py::test_options_are_the_same"
RUNS = "tests/spmd/test_runs.py::test_other_differences_are_noticed"


@pytest.mark.parametrize("path", [PARSING, RUNS])
@pytest.mark.parametrize("env", [{}, {"CI": "true", "TORCH": "0"}])
def test_what_is_skipped_is_counted(tmp_path: Path, path: str, env: dict[str, str]) -> None:
    """At the end of all tests, with the reason."""
    code, out = run(tmp_path, path, **env)
    assert code == 0, out
    assert "1 tests that compare with the real torchrun were skipped" in out
    assert f"no torch 2.13.0 in {tmp_path}" in out.replace("\n", "")


@pytest.mark.parametrize("path", [PARSING, RUNS])
def test_where_it_decides_a_skip_is_a_failure(tmp_path: Path, path: str) -> None:
    """What decides about a commit compares with torchrun, unless somebody says that it should not."""
    code, out = run(tmp_path, path, CI="true")
    assert code == 1, out
    assert f"no torch 2.13.0 in {tmp_path}" in out
    assert "TORCH=0 says that this is meant" in out
