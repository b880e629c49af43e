"""The start of a keeper that a scheduler launched on a machine of its own.

The scheduler carries only an invitation, which holds no secret: who the job is, which share of it this is,
and where its folder is. What must stay private (variables, certificates) is read from that folder; a machine
that does not see it asks to be let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import identity
from . import enrol, tls, wire
from .keeper import Keeper, become_subreaper, prepare
from .leaving import ended_file, save

CLAIM_S = 10.0
"""How long a keeper of the same share may take to leave: the job was put back into the queue, and started here."""
SWEEP_AFTER_S = 60.0
"""A folder that was made just now may be about to be locked."""
_SILENCE = ("unable to contact", "timed out", "connection", "communication")
"""Words of a scheduler's command that nobody answered."""
_PR_SET_PDEATHSIG = 1
PATIENCE_S = 2.0
"""How long to look for the job's folder: a shared file system may show it late."""


def main(invitation: Mapping[str, Any]) -> int:
    """Keep the host that this machine was chosen for, until the lease ends."""
    index = int(os.environ[invitation["index_env"]])
    # A job may be cancelled while its hosts start: then, too, nothing is left.
    signal.signal(signal.SIGTERM, _end_early)
    # A scheduler may send these to all that a job runs, for programs to save their work (`--signal` of Slurm).
    for number in wire.PROGRAM_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if invitation.get("tied"):
        end_with_parent()
    run = ensure_run_folder(invitation["apply_id"], f"{invitation['part']}.{index}")
    try:
        return keep(invitation, index, run)
    except BaseException:  # whatever ends the start of a keeper, its folder goes with it
        shutil.rmtree(run, ignore_errors=True)
        raise


def end_with_parent() -> None:
    """Be told to end when the process that started this one is gone: its scheduler is gone with it."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_early(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def keep(invitation: Mapping[str, Any], index: int, run: Path) -> int:
    """Find out what this machine is to be, and be it."""
    start = load_start(Path(invitation["folder"]), invitation["part"])
    if start is None or not find_certificate(start, node_of(invitation)):
        start = enrol.wait_for_start(invitation, run)
    save(run / wire.KEEPER_FILE, identity.process(os.getpid()))
    share = make_share(start, invitation, index, run)
    with contextlib.suppress(OSError):
        ended_file(share).unlink()  # of a run before the job was put back into the queue
    become_subreaper()
    prepare(share)
    keeper = Keeper(run, share)
    code = asyncio.run(keeper.keep())
    if keeper.lease_over:
        end_job(invitation.get("end", ()))
    return code


def end_job(command: Sequence[str], *, sleep: Callable[[float], object] = time.sleep) -> None:
    """When the lease is over, so is the job, though nobody may be left to notice.

    A scheduler that is silent is asked again, as long as it lets this process live: on another machine of the job,
    one that is cut off, something may run that only the scheduler can end.
    """
    words = [os.path.expandvars(word) for word in command]
    pause_s = 1.0
    while words and not _is_heard(words):
        sleep(pause_s)
        pause_s = min(pause_s * 1.5, 10.0)


def _is_heard(words: Sequence[str]) -> bool:
    """Run the scheduler's own command; whether it did what it can do, or was told no."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=30, check=False)  # noqa: S603  words, no shell
    except subprocess.TimeoutExpired:
        return False
    except (OSError, subprocess.SubprocessError):
        return True
    trouble = done.stderr.decode(errors="replace").lower()
    return done.returncode == 0 or not any(phrase in trouble for phrase in _SILENCE)


def runs_folder() -> Path:
    """Where this user's run folders are: short, because names of sockets may have 107 bytes only."""
    return Path("/tmp") / f"milkweed-{os.getuid()}"  # noqa: S108  checked to be ours and closed to others


def ensure_run_folder(apply_id: str, share: str) -> Path:
    """Make this share's folder anew and hold its lock for life; what lies there without a lock is dead."""
    parent = runs_folder()
    parent.mkdir(mode=0o700, exist_ok=True)
    seen = parent.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise SystemExit(f"{parent} is not a folder that only this user can enter")
    run = parent / f"{wire.run_prefix(apply_id)}.{share}"
    deadline_s = time.monotonic() + CLAIM_S
    while run.exists() and _is_locked(run):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{run} is in use by another keeper of the same share")
        time.sleep(0.1)
    shutil.rmtree(run, ignore_errors=True)
    try:
        sweep(parent)
        run.mkdir(mode=0o700)
    except FileNotFoundError:
        return ensure_run_folder(apply_id, share)  # the last keeper before us has just tidied up
    for folder in (run / wire.SOCKET_FOLDER, run / wire.LOG_FOLDER):
        folder.mkdir(mode=0o700)
    fd = os.open(run / wire.LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return run


def sweep(parent: Path) -> None:
    """Remove what keepers that were killed left on this machine: nobody holds their locks."""
    for run in parent.glob("*.*"):
        with contextlib.suppress(OSError):
            if time.time() - run.stat().st_mtime > SWEEP_AFTER_S and not _is_locked(run):
                shutil.rmtree(run, ignore_errors=True)


def _is_locked(run: Path) -> bool:
    try:
        with open(run / wire.LOCK_FILE, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def load_start(folder: Path, part: str) -> dict[str, Any] | None:
    """Read what the job's folder says of this part of it; None when this machine does not see the folder."""
    path = folder / wire.part_file(part)
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError):  # a shared file system may also show the half of it
            if time.monotonic() > deadline_s:
                return None
            time.sleep(0.1)


def make_share(
    start: Mapping[str, Any], invitation: Mapping[str, Any], index: int, run: Path
) -> dict[str, Any]:
    """What the keeper of this machine is told: its one host, its certificate, its folders."""
    node = node_of(invitation)
    number = find_host(start, invitation["part"], index)
    if not (run / wire.TLS_FOLDER).exists():
        copy_credentials(start, node, run)
    credentials = wire.engine_environment(str(run / wire.TLS_FOLDER))
    logs = start["logs"] if os.access(start["logs"], os.W_OK) else str(run / wire.LOG_FOLDER)
    host = dict(start["hosts"][number])
    host["log"] = f"{logs}/{host['mesh']}.{host['rank']}.log"
    host["transport"] = "tls"
    host["name"] = start["addresses"].get(node, node)
    if start.get("reuses_names"):
        host["name"] = tls.vary_name(host["name"], int.from_bytes(os.urandom(4)))
    host["port"] = start["port"]
    host["turn"] = 0 if start.get("reuses_names") else turn_of(invitation) + start["turn"]
    host["env"] = {**start["envs"][host["mesh"]], **credentials}
    return {
        **start,
        "hosts": [host],
        # One that was started before has had its time in the queue.
        "queued": start.get("queued", False) and not invitation.get("again", False),
        "met": os.path.exists(Path(invitation["folder"]) / wire.met_file(invitation["part"])),
        "age_s": invitation.get("age_s", 0.0),
        "left": invitation.get("left", False),
        "memory": invitation.get("memory", ""),
        "umask": invitation.get("umask", ""),
        "cwd": start["cwd"] if os.path.isdir(start["cwd"]) else invitation.get("cwd", "/"),
        "logs": logs,
        "node": node,
        "folder": invitation["folder"],
        # Its files in the job's folder are the host's: in another run of the job its task may have another number.
        "share": f"{invitation['part']}.{number}",
        "record_folder": start["record_folder"] if index == 0 and start["first"] else "",
        "control": {"port": start["port"], "folder": str(run / wire.TLS_FOLDER)},
    }


def find_host(start: Mapping[str, Any], part: str, index: int) -> int:
    """Which of a part's hosts a task keeps: tasks are counted along those that were left at the start.

    One that was let in later was told: others may have been given back since.
    """
    if own := start.get("own"):
        return [f"{host['mesh']}/{host['rank']}" for host in start["hosts"]].index(own)
    left = [number for number in range(len(start["hosts"])) if number not in start["released"]]
    if index >= len(left):
        raise SystemExit(f"this job has no host for place {index} of part {part}")
    return left[index]


def node_of(invitation: Mapping[str, Any]) -> str:
    """What the scheduler calls this machine."""
    return os.environ.get(invitation["node_env"], "") or os.uname().nodename


def turn_of(invitation: Mapping[str, Any]) -> int:
    """A number that differs when a host of the same job comes to the same machine once more."""
    restarts = int(os.environ.get(invitation["restart_env"]) or 0)
    generation, _, component = invitation["part"].partition(".")
    return int(generation) * 5 + int(component) * 3 + restarts


def find_certificate(start: Mapping[str, Any], node: str) -> str:
    """The folder of the certificate that carries this machine's name; empty when none does."""
    for certificate in start["certificates"]:
        if node in certificate["nodes"]:
            return str(certificate["folder"])
    return ""


def copy_credentials(start: Mapping[str, Any], node: str, run: Path) -> None:
    """Take the certificate that carries this machine's name; what is copied needs no shared file system."""
    source = Path(find_certificate(start, node))
    folder = run / wire.TLS_FOLDER
    folder.mkdir(mode=0o700)
    for name in tls.FILES:
        enrol.save(folder / name, (source / name).read_bytes())
