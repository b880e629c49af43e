"""The programs of both sides in a lab: started in a folder of their own, and read to their result."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Result = dict[str, float]
Found = dict[str, list[Result]]
"""The results of each side."""


def run_lab(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a command that makes a cluster of its own; its exit code."""
    lab = subprocess.Popen(argv, env=env)
    try:
        return lab.wait()
    except KeyboardInterrupt:
        lab.wait()  # it takes its cluster down
        raise


PAGES_HELD = 128
"""Of so many pages one is held: enough to leave no block of 2 MB free as a whole."""


@contextlib.contextmanager
def claimed_memory(most_bytes: int = 6 << 30) -> Iterator[None]:
    """Have memory at hand that a program is about to use, as long as it runs.

    A virtual machine lends what is free for two seconds to the machine below, in blocks; to get it again, page by
    page, would by chance be a third of what is measured. What is touched here is given back but for a few pages,
    so that it lies ready and there is no block of it to lend.
    """
    half = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 2
    step = PAGES_HELD * mmap.PAGESIZE
    size = max(step, min(most_bytes, half) // step * step)
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    with mmap.mmap(-1, size, flags=kind) as memory:
        for place in range(0, size, step):
            memory.madvise(mmap.MADV_DONTNEED, place + mmap.PAGESIZE, step - mmap.PAGESIZE)
        yield


def start(
    program: Path, *words: str, folder: Path, env: Mapping[str, str], err: Path
) -> subprocess.Popen[str]:
    """Start a program; what it says to a person is in a file."""
    with err.open("w") as file:
        return subprocess.Popen(
            [sys.executable, str(program), *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )


def finish(program: subprocess.Popen[str], err: Path, timeout_s: float) -> Result:
    """The result of a program; one that takes too long is ended."""
    try:
        out, _ = program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        program.kill()
        out, _ = program.communicate()
    if (result := read_result(out)) is not None:
        return result
    said = err.read_text(errors="replace")[-4000:]
    raise SystemExit(f"{program.args} failed with {program.returncode}:\n{out}\n{said}")


def read_result(out: str) -> Result | None:
    """What a program printed as its result."""
    for line in out.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    return None


def tell_missed(missed: Sequence[str]) -> int:
    """Print the limits that were missed; 1 when there are some."""
    for what in missed:
        print(f"missed: {what}", flush=True)
    return int(bool(missed))
