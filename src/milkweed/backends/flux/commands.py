"""Running `flux`, and asking for an instance's jobs no more often than it is worth.

Every function takes the address of an instance, `uri`; without one it is the instance that this program runs in
(`FLUX_URI`), else the system's own.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import BackendError, SpecError, UnreachableError
from ..programs import Done, PacedQueue, read_answer, run_program, start_program
from .text import (
    MINIMUM_VERSION,
    JobRow,
    is_unreachable,
    make_jobs,
    parse_job_id,
    parse_jobs,
    parse_version,
)

TIMEOUT_S = 30.0
URI_ENV = "FLUX_URI"
_REMOTE_ENV = "FLUX_PROXY_REMOTE"
"""Which machine a `flux proxy` leads to."""
_SILENT = "the Flux instance did not answer"
_REFUSED_HINT = "correct what Flux names, and ask again"
_NO_INSTANCE = (
    "run this inside an instance (`flux alloc`, `flux start`), or say which one with the option uri"
)


def run(
    words: Sequence[str],
    *,
    uri: str = "",
    text: str = "",
    timeout_s: float = TIMEOUT_S,
    tied: bool = False,
) -> str:
    """Run `flux` with some words; UnreachableError when the instance did not answer.

    What is `tied` ends with this process, however that ends.
    """
    done = attempt(words, uri=uri, text=text, timeout_s=timeout_s, tied=tied)
    if done.code == 0:
        return done.said
    seen = f"flux {words[0]}: {done.trouble.strip() or f'exit code {done.code}'}"
    if is_unreachable(done.trouble):
        hint = "" if uri or os.environ.get(URI_ENV) else _NO_INSTANCE
        raise UnreachableError(_SILENT, seen=seen, hint=hint)
    raise BackendError("Flux refused", seen=seen, hint=_REFUSED_HINT)


def attempt(
    words: Sequence[str],
    *,
    uri: str = "",
    text: str = "",
    timeout_s: float = TIMEOUT_S,
    tied: bool = False,
) -> Done:
    """The same, however it ends."""
    command = ["flux", *words]
    try:
        return run_program(
            command, env=_environment(uri), text=text, timeout_s=timeout_s, tied=tied
        )
    except FileNotFoundError as error:
        raise _no_flux() from error
    except subprocess.TimeoutExpired as error:
        seen = f"flux {words[0]}: nothing within {error.timeout:.2g} s"
        raise UnreachableError(_SILENT, seen=seen) from error


def _no_flux() -> BackendError:
    return BackendError(
        "there is no flux here: Flux's command is not on PATH",
        hint="run this where Flux is installed, or put its bin folder on PATH",
    )


def start(words: Sequence[str], *, uri: str = "", tied: bool = False) -> subprocess.Popen[str]:
    """Start `flux` to talk with what it runs; what is `tied` ends with this process."""
    return start_program(["flux", *words], _environment(uri), tied=tied)


def _environment(uri: str) -> dict[str, str]:
    """The variables for `flux`: without those that choose how it prints, or whose job this is."""
    ours = ("FLUX_JOB_", "FLUX_TASK_", "FLUX_JOBS_FORMAT", "FLUX_QUEUE_", "FLUX_RESOURCE_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    kept["LC_ALL"] = "C.UTF-8"
    if uri and not _is_proxied(uri):
        kept[URI_ENV] = uri
    return kept


def _is_proxied(uri: str) -> bool:
    """Whether this program runs inside a `flux proxy` to that very instance: then its connection is used."""
    given = os.environ.get(URI_ENV, "")
    try:
        return bool(given and os.environ.get(_REMOTE_ENV)) and uri == _own_uri(given)
    except BackendError:
        return False


@functools.cache
def _own_uri(_given: str) -> str:
    """Where the instance of this program can be found from elsewhere.

    Inside `flux proxy` that is not where this program finds it: the proxy's socket goes with the proxy.
    """
    local = run(["getattr", "local-uri"]).strip()
    remote = os.environ.get(_REMOTE_ENV)
    return f"ssh://{remote}{local.removeprefix('local://')}" if remote else local


def resolve(uri: str = "") -> str:
    """The address of an instance that stays true: of one's own, of an address, of a job that is an instance.

    Whatever `flux uri` understands is read; SpecError for what it does not.
    """
    if not uri:
        return _own_uri(os.environ.get(URI_ENV, ""))
    return uri if uri.startswith(("local://", "ssh://")) else _look_up(uri)


def _shorten(uri: str) -> str:
    """The way to an instance of this very machine needs no ssh."""
    machine, _, path = uri.removeprefix("ssh://").partition("/")
    here = machine.rpartition("@")[2] == socket.gethostname() and os.path.exists(f"/{path}")
    return f"local:///{path}" if uri.startswith("ssh://") and here else uri


@functools.cache
def _look_up(uri: str) -> str:
    try:
        return _shorten(run(["uri", "--", uri]).strip())
    except UnreachableError:
        raise
    except BackendError as error:
        if error.seen:
            raise SpecError(
                f"flux.uri: {uri!r} leads to no instance",
                seen=error.seen,
                hint="give local://…, ssh://…, or the id of a job that is an instance",
            ) from error
        raise


def check_version() -> str:
    """The version of Flux; an error without one, or with one that lacks what jobs need."""
    version = _read_version(shutil.which("flux") or "flux")
    shown, least = (".".join(map(str, v)) for v in (version, MINIMUM_VERSION))
    if version < MINIMUM_VERSION:
        raise BackendError(
            f"this is Flux {shown}, and milkweed needs {least} or newer",
            hint="use another instance, or a newer Flux",
        )
    return shown


@functools.cache
def _read_version(_flux: str) -> tuple[int, int]:
    try:
        return parse_version(run(["version"]))
    except ValueError as error:
        hint = "look what `flux version` prints: is it the flux of flux-core?"
        raise BackendError(
            "the version of Flux cannot be read", seen=str(error), hint=hint
        ) from error


def submit(jobspec: Mapping[str, Any], *, uri: str = "", flags: Sequence[str] = ()) -> int:
    """Hand a jobspec to Flux; the job's number. UnreachableError: nobody knows whether it was taken."""
    chosen = [f"--flags={','.join(flags)}"] if flags else []
    said = run(["job", "submit", *chosen], uri=uri, text=json.dumps(jobspec), tied=True)
    return read_answer("flux job submit", lambda: parse_job_id(said))


def load_jobs(job_ids: Sequence[int] = (), *, uri: str = "") -> list[JobRow]:
    """This user's jobs that live or ended lately; or those of the given numbers that Flux still knows."""
    words = make_jobs(tuple(job_ids))
    try:
        said = run(words, uri=uri)
    except UnreachableError:
        raise
    except BackendError as error:
        if not job_ids or "unknown" not in error.seen:
            raise
        if len(job_ids) == 1:
            return []
        # One that is not known any more hides the others.
        return [row for job_id in job_ids for row in load_jobs([job_id], uri=uri)]
    return read_answer("flux jobs", lambda: parse_jobs(said))


def cancel(job_ids: Sequence[int], *, uri: str = "", message: str = "") -> None:
    """Have jobs cancelled; those that have ended, or are not known any more, are fine."""
    note = [f"--message={message}"] if message else []
    for job_id in job_ids:
        try:
            run(["cancel", *note, str(job_id)], uri=uri)
        except UnreachableError:
            raise
        except BackendError as error:
            if not any(word in error.seen for word in ("inactive", "unknown job")):
                raise


class Queue(PacedQueue[JobRow]):
    """This user's jobs in one instance."""

    def __init__(self, uri: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda: load_jobs(uri=uri), _gist, clock)


def _gist(rows: list[JobRow]) -> list[tuple[object, ...]]:
    return [(row.job_id, row.state, row.nodes) for row in rows]


@functools.cache
def queue(uri: str = "") -> Queue:
    """The jobs of an instance, shared by all who wait in this process."""
    return Queue(uri)


def forget() -> None:
    """Forget what was read of instances: this program may have come to another one."""
    for known in (_own_uri, _look_up, _read_version, queue):
        known.cache_clear()
