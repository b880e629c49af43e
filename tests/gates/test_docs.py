"""The documentation is true: links lead somewhere, and examples run.

A block of Python in README.md or docs/ must compile. One that begins with ```` ```python run ````
is a whole program: it is run, alone in an empty folder, and must end well.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from gates.tree import ROOT, SRC, name_of, project_files

BLOCK = re.compile(
    r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence)\s*$", re.MULTILINE | re.DOTALL
)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE
)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
RUN_TIMEOUT_S = 100
LISTED = (
    *("worker", "backends", "backends/slurm", "backends/flux", "backends/kubernetes"),
    *("kube", "job", "spmd", "operator"),
)
"""The packages of which the design names every module; of the others it tells what they are for."""


@dataclass(frozen=True)
class Example:
    """One block of Python in a text."""

    path: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.path)}:{self.line}"


def pages() -> list[Path]:
    """Every Markdown file of the project."""
    return [path for path in project_files() if path.suffix == ".md"]


def examples() -> list[Example]:
    """Every block of Python that people are shown first."""
    shown = [path for path in pages() if path.parent in {ROOT, ROOT / "docs"}]
    return [example for path in shown for example in examples_of(path)]


def examples_of(path: Path) -> list[Example]:
    """The blocks of Python of one text."""
    text = path.read_text("utf-8")
    return [
        Example(path, text.count("\n", 0, found.start()) + 2, found["info"].strip(), found["text"])
        for found in BLOCK.finditer(text)
        if found["info"].split()[:1] == ["python"]
    ]


def prose(path: Path) -> str:
    """A text without its code."""
    return CODE.sub("", BLOCK.sub("", path.read_text("utf-8")))


def anchors(path: Path) -> set[str]:
    """The names by which the headings of a text can be linked."""
    headings = HEADING.findall(BLOCK.sub("", path.read_text("utf-8")))
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def is_broken(page: Path, link: str) -> bool:
    """Whether a link to a file or a heading of this project leads nowhere."""
    name, _, anchor = unquote(link).partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.is_relative_to(ROOT.resolve()) or not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@contextlib.contextmanager
def empty_home() -> Generator[Path]:
    """A folder with a short name, because sockets lie in it; what still runs there is ended."""
    home = Path(tempfile.mkdtemp(prefix="mw-"))
    try:
        yield home
    finally:
        end_processes(home)
        shutil.rmtree(home, ignore_errors=True)


def end_processes(home: Path) -> None:
    """End what an example leaves for its next run: the processes that were told this very home."""
    mark = f"MILKWEED_HOME={home}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file or a heading of this project finds it."""
    links = ["".join(found) for found in LINK.findall(prose(page))]
    ours = [link for link in links if not ELSEWHERE.match(link)]
    assert [link for link in ours if is_broken(page, link)] == []


@pytest.mark.parametrize("package", LISTED)
def test_the_design_names_every_module(package: str) -> None:
    """Whoever looks for a module by what it does finds it in the row of its package."""
    design = (ROOT / "docs" / "design.md").read_text("utf-8")
    [row] = [line for line in design.splitlines() if line.startswith(f"| `{package}/` |")]
    modules = (SRC / "milkweed" / package).glob("[!_]*.py")
    assert sorted(path.stem for path in modules if f"`{path.stem}`" not in row) == []


@pytest.mark.parametrize("example", examples(), ids=str)
def test_examples_compile(example: Example) -> None:
    """Every block of Python is Python."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    assert compile(example.text, str(example), "exec", flags)


@pytest.mark.e2e
@pytest.mark.parametrize("example", [e for e in examples() if "run" in e.info.split()], ids=str)
def test_examples_run(example: Example) -> None:
    """Every block that is a whole program ends well when it is run as it stands."""
    with empty_home() as home:
        program = home / "example.py"
        program.write_text(example.text, "utf-8")
        done = subprocess.run(
            [sys.executable, program.name],
            env={**os.environ, "MILKWEED_HOME": str(home)},
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
