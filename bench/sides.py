"""The programs of both sides in a lab: started in a folder of their own, and read to their result."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
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


def claim_memory(most_bytes: int = 6 << 30) -> None:
    """Touch the memory that a program is about to use.

    A virtual machine may have lent it back to the machine below; to get it again, page by page, would by chance be
    a third of what is measured.
    """
    half = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 2
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, max(mmap.PAGESIZE, min(most_bytes, half)), flags=kind).close()


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
