"""What commands import: nothing they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from milkweed.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print("MODULES", *sys.modules, file=sys.stderr)
    raise
"""


def modules_after(folder: Path, *words: str) -> set[str]:
    """The modules that a command has imported when it ends well."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("words", [["--help"], ["version"], ["--version"], ["ls"], ["exec", "-h"]])
def test_answers_need_little(folder: Path, words: list[str]) -> None:
    """What only answers imports no engine, no YAML, no pydantic, no rich and no backend."""
    found = modules_after(folder, *words)
    packages = {name.partition(".")[0] for name in found}
    assert packages & {"monarch", "torch", "pydantic", "ruamel", "cryptography", "rich"} == set()
    assert {name for name in found if name.startswith("milkweed.backends.")} == set()
    assert {name for name in found if name.startswith("milkweed.job")} == set()


def test_asking_a_scheduler_needs_that_backend_only(folder: Path) -> None:
    """`--on` imports one backend, and neither the engine nor pydantic for the sake of its name."""
    found = modules_after(folder, "ls", "--on", "fake")
    packages = {name.partition(".")[0] for name in found}
    assert packages & {"monarch", "torch", "pydantic", "ruamel", "cryptography", "rich"} == set()
    backends = {name.rpartition(".")[2] for name in found if name.startswith("milkweed.backends.")}
    assert backends == {"base", "fake", "fake_world"}


def test_a_job_file_needs_no_engine(folder: Path) -> None:
    """Reading a job file, planning and looking import neither the engine nor pydantic."""
    (folder / "milkweed.yaml").write_text("name: demo\non: process\nmeshes: {workers: 2}\n")
    for words in (["plan"], ["status"], ["kill"]):
        packages = {name.partition(".")[0] for name in modules_after(folder, *words)}
        assert packages & {"monarch", "torch", "pydantic", "rich"} == set(), words
