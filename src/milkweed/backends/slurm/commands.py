"""Running Slurm's own commands, and asking for the queue no more often than it is worth."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import BackendError, UnreachableError
from .nodes import NodeRow, make_sinfo, parse_sinfo
from .text import (
    MINIMUM_VERSION,
    JobRow,
    is_unreachable,
    make_env,
    make_squeue,
    parse_squeue,
    parse_version,
)

_T = TypeVar("_T")
_READS = ("squeue", "sinfo")
"""Commands that may say nothing, mention an error and call it a success."""
TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1
SLOWEST_S = 10.0
"""The longest pause between two looks at the queue."""
_PACE = 0.1
"""After waiting for t seconds without a change, look again after this share of t."""


def run(
    argv: Sequence[str],
    *,
    text: str = "",
    timeout_s: float = TIMEOUT_S,
    cwd: str | None = None,
    tied: bool = False,
) -> str:
    """Run a command of Slurm; UnreachableError when its controller did not answer.

    One that is `tied` ends with this process, however that ends.
    """
    try:
        done = subprocess.run(  # noqa: S603  a list of arguments: there is nothing to quote
            argv,
            input=os.fsencode(text),  # a path need not be text
            capture_output=True,
            timeout=timeout_s,
            cwd=cwd,
            env=make_env(_environment()),
            check=False,
            preexec_fn=_make_tie() if tied else None,
        )
    except FileNotFoundError as error:
        raise BackendError(
            f"there is no {argv[0]} here: Slurm's commands are not on PATH",
            hint="run this on a login node of the cluster, or load its Slurm module first",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(
            "Slurm's controller did not answer", seen=f"{argv[0]}: nothing within {timeout_s:g} s"
        ) from error
    said, trouble = (data.decode(errors="replace") for data in (done.stdout, done.stderr))
    if done.returncode == 0 and not (argv[0] in _READS and "error:" in trouble):
        return said
    seen = f"{argv[0]}: {trouble.strip() or f'exit code {done.returncode}'}"
    if done.returncode == 0 or is_unreachable(trouble):
        raise UnreachableError("Slurm's controller did not answer", seen=seen)
    raise BackendError("Slurm refused", seen=seen)


def _make_tie() -> Callable[[], object]:
    """What a new process does to be killed when the one that started it is gone."""
    libc = ctypes.CDLL(None)  # loaded before the fork: after it, other threads' locks stay locked
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(argv: Sequence[str]) -> subprocess.Popen[str]:
    """Start a command of Slurm to talk with what it runs."""
    return subprocess.Popen(  # noqa: S603  a list of arguments: there is nothing to quote
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=make_env(_environment()),
    )


def _environment() -> dict[str, str]:
    """What a job may inherit: not the place of a program that itself runs in a job, nor our own words.

    Defaults for sbatch stay (`SBATCH_ACCOUNT`), but for those that would make something else of the job.
    """
    ours = (
        *("MILKWEED_", "SLURM_", "SLURMD_", "PMI_", "PMIX_"),
        *("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_CLUSTERS"),
    )
    kept = {"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "MILKWEED_HOME"}
    return {
        key: value for key, value in os.environ.items() if key in kept or not key.startswith(ours)
    }


def check_version() -> str:
    """The version of Slurm; an error without one, or with one that lacks what the script needs."""
    version = _read_version(shutil.which("sbatch") or "sbatch")
    shown, least = (".".join(f"{n:02d}" for n in v) for v in (version, MINIMUM_VERSION))
    if version < MINIMUM_VERSION:
        raise BackendError(f"this is Slurm {shown}, and milkweed needs {least} or newer")
    return shown


@functools.cache
def _read_version(sbatch: str) -> tuple[int, int]:
    try:
        return parse_version(run([sbatch, "--version"]))
    except ValueError as error:
        hint = "look what `sbatch --version` prints: is it Slurm's own sbatch?"
        raise BackendError(
            "the version of Slurm cannot be read", seen=str(error), hint=hint
        ) from error


@functools.cache
def cluster_name() -> str:
    """The name of the cluster that these commands talk to."""
    match = re.search(
        r"^ClusterName\s*=\s*(\S+)", run(["scontrol", "show", "config"]), re.MULTILINE
    )
    return match[1] if match else ""


def check_cluster(name: str) -> None:
    """A job of another cluster is not to be seen here, which says nothing about it."""
    if name and name != cluster_name():
        raise UnreachableError(
            f"the job is on the cluster {name}, and this is {cluster_name()}",
            hint=f"ask on a login node of {name}",
        )


def load_nodes(max_age_s: float = 0.0) -> list[NodeRow]:
    """The cluster's nodes and partitions; not older than asked for."""
    with _nodes_lock:
        read_s, rows = _nodes[-1] if _nodes else (float("-inf"), [])
        if time.monotonic() - read_s >= max_age_s:
            rows = _parsed("sinfo", lambda: parse_sinfo(run(make_sinfo())))
            _nodes[:] = [(time.monotonic(), rows)]
        return rows


_nodes_lock = threading.Lock()
_nodes: list[tuple[float, list[NodeRow]]] = []


def _parsed(command: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except ValueError as error:
        raise UnreachableError(f"what {command} printed cannot be read", seen=str(error)) from error


class Queue:
    """This user's jobs, read at most once for everybody who waits in this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: list[JobRow] = []
        self._read_s = self._changed_s = float("-inf")
        self._error: UnreachableError | None = None
        self.queries = 0

    def rows(self, max_age_s: float | None = None) -> list[JobRow]:
        """The jobs; not older than asked for, or than it is worth after waiting so long."""
        with self._lock:
            now_s = self._clock()
            pace_s = min(SLOWEST_S, max(0.02, (now_s - self._changed_s) * _PACE))
            if now_s - self._read_s >= (pace_s if max_age_s is None else max_age_s):
                self._read()
            if self._error is not None:
                raise self._error
            return self._rows

    def _read(self) -> None:
        self.queries += 1
        began_s = self._clock()
        try:
            # By number: a name may come from a variable, and for one it does not know Slurm has no jobs.
            rows = _parsed("squeue", lambda: parse_squeue(run(make_squeue(str(os.getuid())))))
        except UnreachableError as error:
            self._error = error
        else:
            if _gist(rows) != _gist(self._rows):
                self._changed_s = self._clock()
            self._rows, self._error = rows, None
        self._read_s = began_s

    def wake(self) -> None:
        """Something happened: look soon, and often."""
        with self._lock:
            self._read_s = float("-inf")
            self._changed_s = self._clock()


def _gist(rows: list[JobRow]) -> list[tuple[object, ...]]:
    """What is worth looking again for: the time that is left changes all the time."""
    return [(row.job_id, row.state, row.nodes) for row in rows]


queue = Queue()
