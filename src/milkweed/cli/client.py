"""The program that `milkweed run` starts as a job's client."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import SpecError
from .choose import Chosen

PYTHONS = frozenset({"python", "python3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program, ready to be started."""

    argv: tuple[str, ...]
    folder: Path


def make_client(words: Sequence[str], chosen: Chosen) -> Client:
    """The program that words, or else the job file, name; it must exist before anything starts."""
    folder = Path.cwd()
    if not words:
        declared = chosen.jobfile
        if declared is None or not declared.spec.run:
            raise SpecError(
                f"job {chosen.name!r} does not say what to run",
                hint="`milkweed run train.py`, or write `run: python train.py` into the job file",
            )
        words, folder = declared.spec.run, Path(os.path.abspath(declared.path)).parent
    return Client(argv=_resolve(words, folder), folder=folder)


def _resolve(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Scripts run with the Python that milkweed runs with, where it is sure to be importable."""
    first, *rest = words
    if first in PYTHONS:
        if rest and not rest[0].startswith("-"):
            _check_script(rest[0], folder)
        return (sys.executable, *rest)
    if first.endswith(".py"):
        _check_script(first, folder)
        return (sys.executable, first, *rest)
    at = str(folder / first) if os.sep in first else first
    if (found := shutil.which(at)) is None:
        hint = f"for a Python script: python {first}" if (folder / first).is_file() else ""
        raise SpecError(
            f"there is no program {first!r}", seen=f"looked in {_places(first, folder)}", hint=hint
        )
    return (found, *rest)


def _places(first: str, folder: Path) -> str:
    return str(folder) if os.sep in first else "the folders of PATH"


def _check_script(script: str, folder: Path) -> None:
    if not (folder / script).is_file():
        raise SpecError(f"there is no file {script!r}", seen=f"looked in {folder}")
