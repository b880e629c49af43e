"""What a rank writes down about itself; the launched scripts import it, whoever launched them."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

RANK = int(os.environ.get("RANK", "-1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "-1"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "-1"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "-1"))
PATIENCE_S = 40


def note(variables: Mapping[str, Any]) -> None:
    """Write down everything a launcher decides; `variables` are the script's globals."""
    os.makedirs("ranks", exist_ok=True)
    found = {
        "env": dict(os.environ),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "executable": sys.executable,
        "path[0]": sys.path[0],
        "name": variables["__name__"],
        "file": variables["__file__"],
        "spec": getattr(variables["__spec__"], "name", None),
        "is main": sys.modules["__main__"].__dict__ is variables,
        "cwd": os.getcwd(),
        "flags": str(sys.flags),
        **_streams(),
        **_process(),
    }
    path = f"ranks/{RANK}.{ATTEMPT}"
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(f"{path}.new", f"{path}.json")


def _streams() -> dict[str, Any]:
    return {
        "unbuffered": [sys.stdout.write_through, sys.stderr.write_through],
        "encoding": [sys.stdout.encoding, sys.stdout.errors],
        "stdin": os.readlink("/proc/self/fd/0"),
        "stdout": stat.filemode(os.fstat(1).st_mode)[0],
        "open files": [int(fd) for fd in os.listdir("/proc/self/fd") if _is_open(int(fd))],
    }


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _process() -> dict[str, Any]:
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "leads its session": os.getsid(0) == os.getpid() == os.getpgrp(),
        "ignored signals": sorted(
            number.name for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN
        ),
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "umask": umask,
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [
            resource.getrlimit(what) for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
        ],
    }


def say(text: str, fd: int = 1) -> None:
    """Write a line at once, so that lines of several ranks do not mix."""
    os.write(fd, f"{text}\n".encode())


def meet(where: object = ATTEMPT) -> None:
    """Wait until all ranks of this attempt are here."""
    with open(f"up-{RANK}.{where}", "w", encoding="utf-8"):
        pass
    wait_for(*(f"up-{rank}.{where}" for rank in range(WORLD_SIZE)))


def wait_for(*paths: str) -> None:
    """Wait until files are there."""
    for _ in range(PATIENCE_S * 50):
        if all(map(os.path.exists, paths)):
            return
        time.sleep(0.02)
    sys.exit("nobody came")


def wait() -> None:
    """Wait to be ended."""
    time.sleep(PATIENCE_S)
    sys.exit("nobody ended it")


def leave() -> None:
    """Leave a process behind."""
    child = subprocess.Popen(["sleep", "30"], start_new_session=True)
    with open(f"left-{child.pid}", "w", encoding="utf-8"):
        pass


def record(message: str) -> None:
    """Tell of an exception as torch's `record` does."""
    more = {"py_callstack": "trace", "timestamp": str(int(time.time()))}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
        json.dump({"message": {"message": message, "extraInfo": more}}, file)
