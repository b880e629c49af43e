"""`init`, `schema` and `version`: what needs no job."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from ... import __version__
from ...errors import MilkweedError
from ..arguments import JsonOption
from ..render import print_json

TEMPLATE = """\
# A milkweed job: the hosts a program needs, and who gives them.
#   milkweed plan     shows what would be done
#   milkweed apply    asks for the hosts
#   milkweed run      runs a program on them
#   milkweed kill     gives them back
name: {name}
on: process          # the backend: `process` stands hosts in with processes of this machine
meshes:              # named groups of equal hosts
  workers:
    hosts: 2
    # gpus: 8        # what each host needs; left out: nothing is asked for
    # memory: 64Gi

# env:               # variables for the hosts
#   MODE: fast

# lifetime:
#   idle_timeout: 1h # with nobody connected for this long, the hosts end

# run: python train.py       # what `milkweed run` runs

# on_change: ask     # when this file and the running hosts differ: ask, repair, replace or new
"""


def init() -> None:
    """Write a commented milkweed.yaml here. One that is there is never overwritten."""
    from ...jobfile import FILE_NAMES, find_jobfile

    if (found := find_jobfile(Path())) is not None:
        raise MilkweedError(
            f"there is a job file here already: {found}",
            hint="edit it, or move it away first; nothing was written",
        )
    with Path(FILE_NAMES[0]).open("x", encoding="utf-8") as file:
        file.write(TEMPLATE.format(name=_make_name(Path.cwd().name)))
    typer.echo(f"wrote {FILE_NAMES[0]}; `milkweed plan` shows what it would do")


def _make_name(folder: str) -> str:
    """A job name made of a folder's name; in quotes where YAML would read something else."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-._")[:63] or "demo"
    return name if re.search("[A-Za-z]", name) and not _is_yaml_word(name) else f'"{name}"'


def _is_yaml_word(name: str) -> bool:
    word = name.lower()
    return (
        word in {"true", "false", "null"}
        or re.fullmatch(r"[0-9.]+e[0-9]+|0[xo].*", word) is not None
    )


def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    from ...jobfile import make_schema

    print_json(make_schema())


def version(as_json: JsonOption = False) -> None:
    """Print milkweed's version."""
    import platform

    if as_json:
        print_json({"milkweed": __version__, "python": platform.python_version()})
    else:
        typer.echo(f"milkweed {__version__}")
