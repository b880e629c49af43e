"""What `milkweed doctor` looks at: whether this machine has what milkweed needs, and what to do."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["ok", "note", "warn", "fail"]

MIN_PYTHON = (3, 11)
ENGINE_TIMEOUT_S = 120.0
FULL_BYTES = 100 * 2**20
TIGHT_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    level: Level
    name: str
    seen: str
    do: str = ""

    @property
    def text(self) -> str:
        """What was seen and what to do."""
        return f"{self.seen}; {self.do}" if self.do else self.seen


def run_checks() -> list[Check]:
    """Look at everything."""
    return [check for make in CHECKS for check in make()]


def check_python() -> Iterator[Check]:
    """Is Python new enough?"""
    shown = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info >= MIN_PYTHON:
        yield Check(level="ok", name="python", seen=shown)
    else:
        need = ".".join(map(str, MIN_PYTHON))
        yield Check(level="fail", name="python", seen=shown, do=f"use Python {need} or newer")


def check_engine() -> Iterator[Check]:
    """Can the engine be imported? Asked in a process of its own, since it may crash."""
    script = (
        "import importlib.metadata as m; import monarch.actor; print(m.version('torchmonarch'))"
    )
    do = (
        "install torchmonarch for this Python; without it jobs can be planned and applied, not used"
    )
    try:
        done = subprocess.run(  # noqa: S603  our own interpreter and text
            [sys.executable, "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ENGINE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        seen = f"torchmonarch was not imported within {ENGINE_TIMEOUT_S:.0f} s"
        yield Check(level="fail", name="engine", seen=seen, do=do)
        return
    if done.returncode == 0:
        yield Check(level="ok", name="engine", seen=f"torchmonarch {done.stdout.split()[-1]}")
    else:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        seen = f"torchmonarch cannot be imported: {last}"
        yield Check(level="fail", name="engine", seen=seen, do=do)


def check_kernel() -> Iterator[Check]:
    """Can processes be told apart and signalled safely?"""
    if Path("/proc/self/stat").is_file():
        yield Check(level="ok", name="/proc", seen="it is mounted")
    else:
        yield Check(level="fail", name="/proc", seen="it is not there", do="mount it")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        seen = f"not available: {error}"
        yield Check(level="fail", name="pidfd", seen=seen, do="use Linux 5.3 or newer")
    else:
        yield Check(level="ok", name="pidfd", seen="available")


def check_folders() -> Iterator[Check]:
    """Are milkweed's own folders private and writable, and is there room?"""
    from ..backends.process import runs_folder
    from ..registry import home

    for name, folder in (("run folder", runs_folder()), ("records", home())):
        yield check_folder(name, folder)
        yield check_disk(name, folder)


def check_folder(name: str, folder: Path) -> Check:
    """Look at one folder without making it."""
    try:
        info = folder.lstat()
    except FileNotFoundError:
        parent = _existing(folder)
        if os.access(parent, os.W_OK | os.X_OK):
            return Check(level="ok", name=name, seen=f"{folder} will be made when it is needed")
        do = f"make {parent} writable for you"
        return Check(level="fail", name=name, seen=f"{folder} cannot be made", do=do)
    level, problem, do = _folder_problem(folder, info)
    if problem:
        return Check(level=level, name=name, seen=f"{folder} {problem}", do=do)
    return Check(level="ok", name=name, seen=f"{folder} is private and writable")


def _folder_problem(folder: Path, info: os.stat_result) -> tuple[Level, str, str]:
    mode, close = info.st_mode & 0o777, f"chmod 700 {folder}"
    if not stat.S_ISDIR(info.st_mode):
        return "fail", "is not a folder", f"move it away: mv {folder} {folder}.old"
    if info.st_uid != os.getuid():
        return "fail", f"belongs to user {info.st_uid}", "ask them to remove it"
    if mode & 0o022:
        return "fail", f"can be written to by others (mode {mode:03o})", close
    if mode & 0o077:
        return "warn", f"can be read by others (mode {mode:03o})", close
    if not os.access(folder, os.W_OK | os.X_OK):
        return "fail", "cannot be written to", close
    return "ok", "", ""


def check_disk(name: str, folder: Path) -> Check:
    """Is there room where a folder is?"""
    free = shutil.disk_usage(_existing(folder)).free
    seen = f"{free / 2**30:.1f} GiB free for {folder}"
    if free < FULL_BYTES:
        return Check(level="fail", name=f"{name} disk", seen=seen, do="free some space")
    if free < TIGHT_BYTES:
        return Check(level="warn", name=f"{name} disk", seen=seen, do="logs may fill it")
    return Check(level="ok", name=f"{name} disk", seen=seen)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_fuse() -> Iterator[Check]:
    """Are there file systems in user space? Only mounts need them."""
    if Path("/dev/fuse").exists():
        yield Check(level="ok", name="fuse", seen="available")
    else:
        yield Check(level="note", name="fuse", seen="not available; only mounts would need it")


def check_slurm() -> Iterator[Check]:
    """Is there a Slurm that answers? Only jobs on it need one."""
    if shutil.which("sbatch") is None:
        yield Check(
            level="note", name="slurm", seen="not on PATH; only jobs on slurm would need it"
        )
        return
    from ..backends.slurm import commands
    from ..errors import MilkweedError

    try:
        version, rows = commands.check_version(), commands.load_nodes()
    except MilkweedError as error:
        seen = " ".join([error.what, *error.seen.splitlines()[:1]])
        yield Check(level="warn", name="slurm", seen=seen, do=error.hint)
        return
    nodes = len({row.name for row in rows})
    partitions = ", ".join(sorted({row.partition for row in rows}))
    yield Check(level="ok", name="slurm", seen=f"{version}, {nodes} nodes in {partitions}")


def check_flux() -> Iterator[Check]:
    """Is there a Flux instance that answers? Only jobs on it need one."""
    if shutil.which("flux") is None:
        yield Check(level="note", name="flux", seen="not on PATH; only jobs on flux would need it")
        return
    from ..backends.flux import commands
    from ..backends.flux.nodes import inventory
    from ..errors import MilkweedError, UnreachableError

    try:
        version = commands.check_version()
        nodes = inventory("").nodes()
    except UnreachableError as error:
        seen = f"no instance answers here: {error.seen}"
        yield Check(level="note", name="flux", seen=seen, do=error.hint)
    except MilkweedError as error:
        yield Check(level="warn", name="flux", seen=error.what, do=error.hint)
    else:
        yield Check(level="ok", name="flux", seen=f"{version}, {len(nodes)} nodes")


def check_entries() -> Iterator[Check]:
    """Are there recorded jobs that are over, or cannot be found as they should?"""
    from ..registry import load_entries
    from ..status import Liveness
    from .look import look_at_all, of_entry

    found = look_at_all([of_entry(entry) for entry in load_entries()])
    stale = [seen for seen in found if seen.status.liveness is Liveness.ENDED]
    lost = [seen for seen in found if seen.allocation.lost and seen not in stale]
    for seen in stale:
        text = f"{seen.allocation.name} has ended: {seen.status.reason or 'no reason was given'}"
        yield _entry_check(seen.allocation.short_id, text, "forgets it")
    for seen in lost:
        text = f"{seen.allocation.name} is {seen.status.liveness}, and its record is lost"
        yield _entry_check(seen.allocation.short_id, text, "ends it")
    if not stale and not lost:
        yield Check(level="ok", name="jobs", seen=f"{len(found)} recorded, none of them stale")


def _entry_check(short_id: str, text: str, what: str) -> Check:
    return Check(level="warn", name="jobs", seen=text, do=f"`milkweed kill {short_id}` {what}")


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    check_python,
    check_engine,
    check_kernel,
    check_folders,
    check_fuse,
    check_slurm,
    check_flux,
    check_entries,
)
