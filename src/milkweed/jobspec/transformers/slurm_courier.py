"""Nodes that do not see the run's folder: whoever drives the run brings secrets and large files, and takes output.

Everything goes through the standard input and output of an srun inside the job, so no argument, no variable
and no file of somebody else's holds a secret.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ...backends.slurm.text import make_env
from .slurm_script import PLACE
from .slurm_shape import OWN_STEP
from .slurm_status import find_began

PATIENCE_S = 3.0
"""How long a job that runs may take until its sign is seen in the run's folder."""
EVERY_S = 1.0
TIMEOUT_S = 300.0
_DELIVERED = "./.delivered"
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")

VISIT = f"""\
{PLACE}
umask 077
if [ ! -d "$mw_folder/own/logs" ]; then exit 0; fi
: >"$mw_folder/own/visited"
mw_over=
if [ -e "$mw_folder/own/over" ]; then mw_over=1; fi
if [ "$1" = deliver ] && [ -e "$mw_folder/own/wants" ]; then
  rm -rf -- "$mw_folder/own/parcels.new"
  mkdir -- "$mw_folder/own/parcels.new" && tar -xf - --no-same-owner -C "$mw_folder/own/parcels.new" || exit 1
  rm -f -- "$mw_folder/own/wants"
  mv -- "$mw_folder/own/parcels.new" "$mw_folder/own/parcels"
  : >"$mw_folder/own/logs/.delivered"
else
  cat >/dev/null
fi
tar -C "$mw_folder/own/logs" -cf - .
if [ -n "$mw_over" ]; then : >"$mw_folder/own/taken"; fi"""


@dataclass
class Visited:
    """What is known of one job that runs."""

    since_s: float
    next_s: float
    delivered: bool = False


@dataclass
class Courier:
    """Looks after the jobs of a run while somebody drives it."""

    clock: Callable[[], float] = time.monotonic
    _jobs: dict[str, Visited] = field(default_factory=dict[str, Visited])

    def attend(
        self, job_id: str, labels: Sequence[str], record: Path, parcels: Sequence[str]
    ) -> None:
        """A job runs: see to it, unless its nodes see the run's folder themselves."""
        now_s = self.clock()
        known = self._jobs.setdefault(job_id, Visited(now_s, now_s + PATIENCE_S))
        if now_s < known.next_s or find_began(record / "logs", labels) is not None:
            return
        with (
            tempfile.TemporaryFile(dir=record) as given,
            tempfile.TemporaryFile(dir=record) as taken,
        ):
            if parcels and not known.delivered:
                _pack(record, parcels, given)
            if _visit(job_id, given, taken, deliver=bool(parcels) and not known.delivered):
                known.delivered |= _unpack(taken, record / "logs")
        known.next_s = self.clock() + EVERY_S


def _pack(record: Path, parcels: Sequence[str], target: IO[bytes]) -> None:
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in parcels:
            archive.add(record / name, name, recursive=False)
    target.seek(0)


def make_visit(job_id: str, *, deliver: bool) -> list[str]:
    """The command that goes to the first node of a job."""
    where = [f"--jobid={job_id}", "--nodes=1", "--ntasks=1", "--relative=0"]
    words = ["/bin/sh", "-c", VISIT, "sh", "deliver" if deliver else "look"]
    return ["srun", *where, *OWN_STEP, *words]


def _visit(job_id: str, given: IO[bytes], taken: IO[bytes], *, deliver: bool) -> bool:
    """Go there once; a job that has just ended is not there any more, which is fine."""
    environ = {
        key: value
        for key, value in os.environ.items()
        if key == "SLURM_CONF" or not key.startswith("SLURM_")
    }
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603  a list of arguments: there is nothing to quote
            make_visit(job_id, deliver=deliver),
            stdin=given,
            stdout=taken,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            env=make_env(environ),
            check=False,
        )
        taken.seek(0)
        return done.returncode == 0
    return False


def _unpack(source: IO[bytes], logs: Path) -> bool:
    """Save what a job has printed so far; whether it has what it wanted."""
    delivered = False
    try:
        with tarfile.open(fileobj=source, mode="r:") as archive:
            for entry in archive:
                delivered |= entry.name == _DELIVERED
                if entry.isreg() and (file := archive.extractfile(entry)):
                    with file:
                        _save(logs, entry.name.removeprefix("./"), file.read())
    except tarfile.TarError:  # it ended while it answered
        return delivered
    return delivered


def _save(logs: Path, name: str, content: bytes) -> None:
    """Write one file of the job's; a sign that it began would say that its nodes see this folder."""
    if not _NAME.fullmatch(name) or name.endswith((".began", ".delivered")):
        return
    beside = logs / f".{name}.new"
    fd = os.open(
        beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    os.replace(beside, logs / name)
