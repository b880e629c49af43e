"""What runs on the login node of a Slurm that is measured: programs, Slurm's commands, and a node that dies."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import sides
from sides import Result

HERE = Path(__file__).resolve()
PROGRAMS = HERE.parent / "programs" / "slurm.py"
LAB = HERE.parents[1] / "tests" / "labs" / "slurm"
INSIDE, OUTSIDE = "MILKWEED_SLURM_LAB", "MILKWEED_SLURM_LAB_OUTSIDE"

TIMEOUT_S = 300
CLEAR_TIMEOUT_S = 60
UNUSUAL = ("PYTHONDONTWRITEBYTECODE", "RUST_BACKTRACE")
"""Variables that a developer's machine may have, and that make either side slower."""


def prepare() -> None:
    """Byte code for both sides, and the engine in memory."""
    places: list[str] = []
    for name in ("milkweed", "monarch"):
        spec = importlib.util.find_spec(name)
        places += list(spec.submodule_search_locations or ()) if spec else []
    subprocess.run([sys.executable, "-m", "compileall", "-q", *places], check=True)
    warm = "import milkweed.job, monarch.job, monarch.actor"
    subprocess.run([sys.executable, "-c", warm], env=environment(Path("/")), check=True)


def run_folder() -> Path:
    """The folder of the cluster, which every node sees."""
    return Path(os.environ["SLURM_CONF"]).parent


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder without any record, that every node sees; afterwards the cluster is empty again."""
    shared = run_folder() / "shared"
    shared.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=shared))
    try:
        yield folder
    finally:
        clear()
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """What programs see: records of their own, byte code, and no wish to debug the engine."""
    kept = {key: text for key, text in os.environ.items() if key not in UNUSUAL}
    return {**kept, "MILKWEED_HOME": str(folder / "home")}


def start(who: str, what: str, number: int, folder: Path, **env: str) -> subprocess.Popen[str]:
    """Start a program of one side."""
    own = {**environment(folder), **env}
    err = folder / f"{what}.err"
    return sides.start(PROGRAMS, who, what, str(number), folder=folder, env=own, err=err)


def finish(program: subprocess.Popen[str], err: Path) -> Result:
    """The result of a program."""
    return sides.finish(program, err, TIMEOUT_S)


def ask(*argv: str) -> str:
    """Run a command of Slurm."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def clear() -> None:
    """End every job, and wait until every node is free."""
    ask("scancel", f"--user={os.getuid()}")
    deadline_s = time.monotonic() + CLEAR_TIMEOUT_S
    while ask("squeue", "-h") or set(ask("sinfo", "-h", "-o", "%t").split()) != {"idle"}:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the cluster is not free:\n{ask('squeue')}\n{ask('sinfo')}")
        time.sleep(0.2)
    time.sleep(0.5)


# A node that dies


@contextlib.contextmanager
def dead_node(name: str) -> Iterator[float]:
    """A node without power, from the moment that is given; afterwards it is there again."""
    number, began_s = name.removeprefix("n"), time.monotonic()
    node("poweroff", number)
    try:
        yield began_s
    finally:
        deadline_s = time.monotonic() + CLEAR_TIMEOUT_S
        while node("pid", number, check=False) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        node("start", number)
        while not ask("sinfo", "-h", "-n", name, "-o", "%T").startswith(("idle", "alloc", "mix")):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{name} is not there again:\n{ask('sinfo', '-R')}")
            subprocess.run(
                ["scontrol", "update", f"nodename={name}", "state=resume"],
                check=False,
                capture_output=True,
            )
            time.sleep(0.5)


def node(command: str, number: str, *, check: bool = True) -> str:
    """Do something with a node, as only whoever is outside of the cluster can."""
    enter = ("nsenter", "-t", os.environ[OUTSIDE], "-m", "-u", "-n", "-r", "-w", "--")
    script = (str(LAB / "node.sh"), command, number)
    return subprocess.run([*enter, *script], check=check, capture_output=True, text=True).stdout
