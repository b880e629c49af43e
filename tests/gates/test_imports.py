"""What gets imported when: the outer ring stays cheap, the inner one needs nothing."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gates.tree import ROOT, SRC, name_of, parse, pyproject, python_files

# What costs too much for a command that only answers.
HEAVY = {"monarch", "pydantic", "ruamel", "cryptography"}

# Names people program against. One that goes away breaks them, so taking one out is a decision.
PUBLIC = {
    "milkweed": [
        "Compute",
        "FluxJob",
        "Image",
        "JobState",
        "JobTrait",
        "KubernetesJob",
        "LocalJob",
        "ProcessJob",
        "SlurmJob",
        "__version__",
        "job_load",
        "job_loads",
    ],
    "milkweed.job": [
        "DEFAULT_JOB_PATH",
        "FluxJob",
        "JobState",
        "JobTrait",
        "KubernetesJob",
        "LocalJob",
        "MeshAdminConfig",
        "ProcessJob",
        "SlurmJob",
        "SpecJob",
        "TelemetryConfig",
        "job_load",
        "job_loads",
        "load_current_job",
    ],
    "milkweed.jobspec": [
        "DIALECTS",
        "Action",
        "Graph",
        "Plan",
        "Run",
        "StepBase",
        "TransformerBase",
        "find_run",
        "list_transformers",
        "load_jobspec",
        "load_runs",
        "load_transformer",
        "parse_jobspec",
        "render_jobspec",
        "steps",
        "transformer_names",
    ],
    "milkweed.jobspec.steps": [
        "AuthStep",
        "EmptyStep",
        "Handle",
        "PlainStep",
        "Scene",
        "StepBase",
        "WriterStep",
    ],
}

# Each library is met in one place; import-linter knows the same of those that are imported today.
ONLY_IN = {
    "cryptography": ["milkweed/pki.py", "milkweed/worker/enrol.py"],
    "monarch": ["milkweed/engine.py", "milkweed/worker/serve.py", "milkweed/actor.py"],
    "pydantic": ["milkweed/cli", "milkweed/jobfile"],
    "rich": ["milkweed/cli"],
    "ruamel": ["milkweed/jobfile", "milkweed/kube"],
    "typer": ["milkweed/cli"],
}

# Runs the command line in this very process, then names every module it took.
COMMAND = """
import sys
from milkweed.cli import main
code = 0
try:
    code = main()
except SystemExit as stop:
    code = stop.code
print("MODULES", *sys.modules, file=sys.stderr)
sys.exit(code)
"""


def value_modules() -> list[str]:
    """The innermost ring, from the contract that import-linter holds."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    rings = next(each for each in contracts if each["id"] == "rings")
    return [f"milkweed.{name.strip()}" for name in rings["layers"][-1].split(":")]


def worker_modules() -> list[str]:
    """Everything that runs on hosts."""
    names = [path.stem for path in python_files("src/milkweed/worker")]
    return [f"milkweed.worker.{name}" for name in names if not name.startswith("__")]


def modules_after(*command: str, home: Path) -> set[str]:
    """The modules that a command line has imported when it ends well."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *command],
        env={**os.environ, "MILKWEED_HOME": str(home)},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("MODULES")[2].split())


def top_level(modules: set[str]) -> set[str]:
    """The packages that modules belong to."""
    return {name.partition(".")[0] for name in modules}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, with its full name."""
    package = path.relative_to(SRC).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            own = not node.module
            found |= {f"{name}.{alias.name}" for alias in node.names} if own else {name}
    return found


def test_importing_milkweed_is_cheap() -> None:
    """`import milkweed` brings nothing but itself, not even its own job classes."""
    code = "import sys; bare = set(sys.modules); import milkweed; print(*set(sys.modules) - bare)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    ours = {name for name in shown.split() if name.startswith("milkweed")}
    assert ours == {"milkweed"}
    assert top_level(set(shown.split())) - {"milkweed"} <= sys.stdlib_module_names


@pytest.mark.parametrize("command", [["--help"], ["ls"]], ids=" ".join)
def test_commands_that_only_answer_import_little(command: list[str], tmp_path: Path) -> None:
    """Help and lists come without the engine, YAML, validation and certificates."""
    assert top_level(modules_after(*command, home=tmp_path)) & HEAVY == set()


@pytest.mark.parametrize("module", [*value_modules(), *worker_modules(), "milkweed.identity"])
def test_inner_modules_need_only_python(module: str) -> None:
    """Values, and what runs on hosts, can be imported with the standard library alone."""
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); import {module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", value_modules())
def test_values_import_only_python_and_each_other(module: str) -> None:
    """A value never reaches out, not even from inside a function."""
    path = ROOT / "src" / (module.replace(".", "/") + ".py")
    foreign = {
        name
        for name in imported(path)
        if name not in value_modules() and name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert foreign == set(), name_of(path)


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_has_its_place(library: str) -> None:
    """What comes from outside is imported where it belongs, and nowhere else."""
    importers = [path for path in python_files("src") if library in top_level(imported(path))]
    places = [SRC / place for place in ONLY_IN[library]]
    strays = [path for path in importers if not {path, *path.parents} & set(places)]
    assert [name_of(path) for path in strays] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_the_recorded_ones(module: str) -> None:
    """Every public name is there, and none comes or goes without being written down here."""
    found: Any = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(PUBLIC[module])
    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []
    assert set(found.__all__) <= set(dir(found))
