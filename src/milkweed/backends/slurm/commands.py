"""Running Slurm's own commands, and asking for the queue no more often than it is worth."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ...errors import BackendError, UnreachableError
from ..programs import Done, PacedQueue, read_answer, run_program, start_program
from .nodes import NodeRow, add_disks, make_sinfo, make_sinfo_disks, parse_sinfo
from .text import (
    MINIMUM_VERSION,
    JobRow,
    is_unreachable,
    make_env,
    make_squeue,
    parse_squeue,
    parse_version,
)

_READS = ("squeue", "sinfo")
"""Commands that may mention an error and call it a success."""
_HIDDEN = "access/permission denied"
"""What a site says whose nodes are for its administrators to see (`PrivateData=nodes`)."""
_NO_SUCH_JOB = "invalid job id"
"""The only thing that a read is certainly refused for; whatever else it fails for says nothing about the job."""
_FOR_GOOD = frozenset({errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.E2BIG})
"""Why a command cannot be run, now or later; a machine that is short of something has more in a moment."""
_OURS = "milkweed"
"""How the comments of all jobs begin that milkweed has asked for."""
_SILENT = "Slurm's controller did not answer"
_REFUSED_HINT = (
    "correct what Slurm names, and ask again; where that is an account or a QOS, "
    "`sacctmgr show associations user=$USER` has yours"
)
TIMEOUT_S = 30.0


def run(
    argv: Sequence[str],
    *,
    text: str = "",
    timeout_s: float = TIMEOUT_S,
    cwd: str | None = None,
    tied: bool = False,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run a command of Slurm; UnreachableError when it is not known what its controller has, or was asked.

    One that is `tied` ends with this process, however that ends. It sees this process's variables, or `environ`.
    """
    try:
        done = run_program(
            argv,
            text=text,
            timeout_s=timeout_s,
            cwd=cwd,
            env=make_env(_environment(os.environ if environ is None else environ)),
            tied=tied,
            apart=True,
        )
    except subprocess.TimeoutExpired as error:
        seen = f"{argv[0]}: nothing within {error.timeout:.2g} s"
        raise UnreachableError(_SILENT, seen=seen) from error
    except OSError as error:
        raise _explain_no_start(argv[0], error) from error
    if done.code == 0 and not _is_silence(argv[0], done):
        return done.said
    nothing = _describe(done.code) if done.code else "it printed nothing"
    seen = f"{argv[0]}: {done.trouble.strip() or nothing}"
    if _is_answer(argv, done):
        raise BackendError("Slurm refused", seen=seen, hint=_REFUSED_HINT)
    raise UnreachableError(_SILENT, seen=seen)


def _explain_no_start(command: str, error: OSError) -> BackendError:
    if isinstance(error, FileNotFoundError):
        return BackendError(
            f"there is no {command} here: Slurm's commands are not on PATH",
            hint="run this on a login node of the cluster, or load its Slurm module first",
        )
    kind = BackendError if error.errno in _FOR_GOOD else UnreachableError
    return kind(
        f"{command} could not be run on this machine",
        seen=f"{command}: {error.strerror}",
        hint=f"try `{command} --version` here: it must work before milkweed can",
    )


def _is_silence(command: str, done: Done) -> bool:
    """Whether a read that is called a success knows nothing: not even a heading, or not what every controller has.

    Other errors are complaints, of the site's own settings for example.
    """
    return command in _READS and (not done.said.strip() or is_unreachable(done.trouble))


def _is_answer(argv: Sequence[str], done: Done) -> bool:
    """Whether a failure is Slurm's word; nobody knows what one was told that was killed, or whose read failed."""
    if done.code <= 0 or is_unreachable(done.trouble):
        return False
    reads = argv[0] in _READS or argv[:2] == ["scontrol", "show"]
    return not reads or _NO_SUCH_JOB in done.trouble.lower()


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"it was ended by signal {-code}"


def start(argv: Sequence[str]) -> subprocess.Popen[str]:
    """Start a command of Slurm to talk with what it runs."""
    return start_program(argv, make_env(_environment(os.environ)))


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job may inherit: not the place of a program that itself runs in a job, nor our own words.

    Defaults for sbatch stay (`SBATCH_ACCOUNT`), but for those that would make something else of the job.
    """
    ours = (
        *("MILKWEED_", "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_"),
        *("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_CLUSTERS"),
    )
    kept = {"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "MILKWEED_HOME"}
    return {key: value for key, value in environ.items() if key in kept or not key.startswith(ours)}


def check_version() -> str:
    """The version of Slurm; an error without one, or with one that lacks what the script needs."""
    version = _read_version(shutil.which("sbatch") or "sbatch")
    shown, least = (".".join(f"{n:02d}" for n in v) for v in (version, MINIMUM_VERSION))
    if version < MINIMUM_VERSION:
        raise BackendError(
            f"this is Slurm {shown}, and milkweed needs {least} or newer",
            hint="use another cluster, or ask for a newer Slurm on this one",
        )
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
    return read_setting("ClusterName")


def read_setting(name: str) -> str:
    """A setting of the cluster's, as Slurm shows it."""
    config = run(["scontrol", "show", "config"])
    match = re.search(rf"^{name}\s*=\s*(\S+)", config, re.MULTILINE)
    return match[1] if match else ""


def check_shrinking() -> None:
    """Refuse to take nodes from running jobs where the site does; UnreachableError when nobody answers now."""
    if "disable_job_shrink" in (parameters := read_setting("SchedulerParameters")):
        raise BackendError(
            "this cluster takes no nodes from jobs that run, so none was released",
            seen=f"SchedulerParameters={parameters}",
            hint="end the job with kill(), and ask for a smaller one",
        )


def check_cluster(name: str) -> None:
    """A job of another cluster is not to be seen here, which says nothing about it."""
    if name and name != cluster_name():
        raise UnreachableError(
            f"the job is on the cluster {name}, and this is {cluster_name()}",
            hint=f"ask on a login node of {name}",
        )


def load_nodes(max_age_s: float = 0.0) -> list[NodeRow]:
    """The cluster's nodes and partitions, as far as the site shows them; not older than asked for."""
    with _nodes_lock:
        read_s, rows = _nodes[-1] if _nodes else (float("-inf"), [])
        if time.monotonic() - read_s >= max_age_s:
            rows = read_answer("sinfo", lambda: parse_sinfo(show(make_sinfo())))
            _nodes[:] = [(time.monotonic(), rows)]
        return rows


def load_disks(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """The same nodes with their disks."""
    return read_answer("sinfo", lambda: add_disks(rows, show(make_sinfo_disks())))


def show(argv: Sequence[str]) -> str:
    """What Slurm tells of nodes and partitions; nothing where it shows them to nobody."""
    try:
        return run(argv)
    except BackendError as error:
        if _HIDDEN in error.seen.lower():
            return ""
        raise


_nodes_lock = threading.Lock()
_nodes: list[tuple[float, list[NodeRow]]] = []


class Queue(PacedQueue[JobRow]):
    """This user's jobs, as squeue tells them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_read_queue, _gist, clock)


def _read_queue() -> list[JobRow]:
    # By number: a name may come from a variable, and for one it does not know Slurm has no jobs.
    return read_answer("squeue", lambda: parse_squeue(run(make_squeue(str(os.getuid())))))


def _gist(rows: list[JobRow]) -> list[tuple[object, ...]]:
    """What is worth looking again for: not the time that is left, nor what else this user has in the queue."""
    return [(row.job_id, row.state, row.nodes) for row in rows if row.comment.startswith(_OURS)]


queue = Queue()
