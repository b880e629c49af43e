"""The program that is timed: a torchrun command served once and run again and again, by either side.

Run as `python spmd.py WHO RANKS SCRIPT TIMES` in a folder that has the script; prints one JSON object. Imports are
inside, because they are part of what is timed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEGAN_S = time.monotonic()
MARK = "MILKWEED_BENCH"
"""A variable of all that is started here: so it is found, and nothing of anybody else's is."""
SETTLE_S = 1.0
"""What ends by itself is given this long."""


def load(who: str) -> Any:
    """serve() as either side's user would import it."""
    if who == "milkweed":
        from milkweed.job.spmd import serve
    else:
        from monarch.job.spmd import serve
    return serve


def find_marked(mark: str) -> list[int]:
    """The processes that run and carry a mark."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def count_settled() -> int:
    """How many processes there are when nothing runs."""
    time.sleep(SETTLE_S)
    found = find_marked(os.environ[MARK])
    if len(found) < 2:
        raise SystemExit("hosts carry no mark, and cannot be counted")
    return len(found)


def time_run(job: Any) -> float:
    """How long a run takes."""
    began_s = time.monotonic()
    job.run_spmd()
    return time.monotonic() - began_s


def main() -> None:
    """The first run, all others, and the end."""
    who, ranks, script, times = sys.argv[1:]
    command = ["torchrun", f"--nproc-per-node={ranks}", "--standalone", script]
    job = load(who)(command, scheduler="local_cwd")
    job.run_spmd()
    first_s = time.monotonic() - BEGAN_S
    before = count_settled()
    again = [time_run(job) for _ in range(int(times))]
    result = {"first": first_s, "again": again, "more": count_settled() - before}
    job.kill()
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
