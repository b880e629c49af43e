"""torchrun programs, compared with torchrun and with the engine's own job layer, alternating in one run.

    python bench/spmd.py [--repeat N] [--only launch|failure|relaunch]

Both sides run the same scripts with the same Python. torchrun is that of tests/labs, or of MILKWEED_TORCH, a
virtual environment; an agent for each host is started by hand. The engine's job layer needs torchx, also of
tests/labs. What is missing is not measured. Every row is a ratio of medians. Exits with 1 when a claim is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from programs.spmd import MARK, find_marked
from startup import OURS, PEER, median

PROGRAM = Path(__file__).resolve().parent / "programs" / "spmd.py"
LAB = Path(os.environ.get("MILKWEED_LAB") or "~/.cache/milkweed-lab").expanduser()
TORCHRUN = "torchrun"
ROWS = ("launch", "failure", "relaunch")
NUMBERS = itertools.count()

NODES, NPROC = 2, 4
RANKS = NODES * NPROC
WHERE = f"{RANKS} ranks on {NODES} hosts"
RELAUNCH_RANKS, RELAUNCHES, RELAUNCH_RATIO = 4, 5, 2.0
MILKWEED = str(Path(sys.executable).with_name("milkweed"))
AGAIN_S = 1.0  # a run on hosts that are there takes less, from the command to its end
TIMEOUT_S = 240.0
PATIENCE_S = 20.0
"""Launchers are waited for this long after a failure; agents of torchrun miss one another after 15 s."""

JOB = f"name: bench\non: process\nmeshes: {{workers: {NODES}}}\n"
SAY = """
import os, sys
sys.stdout.write(f"LINE {os.environ['RANK']} {at_s!r}\\n")
"""
PLAIN = "import time; at_s = time.monotonic()" + SAY
TORCH = "import time, torch; at_s = time.monotonic()" + SAY
FAIL = f"""
import os, sys, time
rank = os.environ["RANK"]
open(f"up{{rank}}", "w").close()
if rank != "5":
    time.sleep(3600)
while not all(os.path.exists(f"up{{each}}") for each in range({RANKS})):
    time.sleep(0.005)
time.sleep(0.5)  # all are asleep
sys.stdout.write(f"LINE {{rank}} {{time.monotonic()!r}}\\n")
sys.stdout.flush()
os._exit(3)
"""

Result = dict[str, float]
Found = dict[str, list[Result]]


class Claim(NamedTuple):
    """What is said about milkweed, and whether it is so."""

    holds: bool
    words: str


def main() -> int:
    """Print the table, and which claims hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each side; default: 5")
    parser.add_argument("--only", choices=ROWS, help="some rows only")
    options = parser.parse_args()
    print(f"| what, beside whom | the other takes | {OURS} | the other |\n|---|---|---|---|")
    claims = [
        claim
        for row in ([options.only] if options.only else ROWS)
        for claim in compare_row(row, options.repeat)
    ]
    print()
    for claim in claims:
        print(f"{'holds' if claim.holds else 'missed'}: {claim.words}")
    return int(not all(claim.holds for claim in claims))


def compare_row(row: str, repeat: int) -> Iterator[Claim]:
    """Measure some rows, if what they are compared with is there."""
    if why := why_no_torchx() if row == "relaunch" else why_no_torchrun():
        print(f"| {row} | not measured: {why} | | |", flush=True)
        return
    compared = {"launch": compare_launch, "failure": compare_failure, "relaunch": compare_relaunch}
    yield from compared[row](repeat)


# What there is to compare with


def torch_bin() -> Path:
    """Where torchrun and its Python are; the variable may also name one of the two."""
    given = os.environ.get("MILKWEED_TORCH")
    path = Path(given).expanduser() if given else LAB / "torch-2.13.0"
    return path.parent if path.is_file() else path / "bin"


def why_no_torchrun() -> str:
    """Why there is no torchrun; empty when there is."""
    if os.access(torch_bin() / TORCHRUN, os.X_OK):
        return ""
    return f"no {TORCHRUN} in {torch_bin()}: `tests/labs/prepare.sh torch`, or set MILKWEED_TORCH"


def why_no_torchx() -> str:
    """Why the engine's job layer cannot run; empty when it can."""
    argv = [sys.executable, "-c", "import monarch.job.spmd"]
    env = environment("", PYTHONPATH=torchx_path())
    tried = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


def torchx_path() -> str:
    """What the engine's job layer finds torchx in."""
    return os.pathsep.join(filter(None, (str(LAB / "torchx-nightly"), os.getenv("PYTHONPATH"))))


# Starting and ending


def environment(mark: str, **env: str) -> dict[str, str]:
    """What programs see: nothing that torchrun or milkweed would read, byte code, and their mark."""
    ignored = ("PET_", "TORCH", "MASTER_", "OMP_", "MILKWEED_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: text for key, text in os.environ.items() if not key.startswith(ignored)}
    return {**kept, MARK: mark, **env}


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder with all scripts, whose name is the mark of what is started in it; nothing stays."""
    folder = Path(tempfile.mkdtemp(prefix="mwb"))
    for name, text in (("plain", PLAIN), ("torch", TORCH), ("fail", FAIL)):
        # Such names, so that `import torch` finds nothing of this folder.
        (folder / f"{name}_ranks.py").write_text(text)
    (folder / "milkweed.yaml").write_text(JOB)
    try:
        yield folder
    finally:
        sweep(folder.name)
        shutil.rmtree(folder, ignore_errors=True)


def sweep(mark: str) -> None:
    """End what a run has left behind, so that it does not slow the next one."""
    deadline_s = time.monotonic() + 30
    while left := find_marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise SystemExit(f"processes do not end: {left}")
        time.sleep(0.05)
    time.sleep(0.3)


class Started:
    """Launchers that were started at the same time."""

    def __init__(self, argv: Sequence[str], count: int, folder: Path, env: dict[str, str]) -> None:
        number = next(NUMBERS)
        self._paths = [folder / f"said{number}.{each}" for each in range(count)]
        self.began_s = time.monotonic()
        self._launchers = [self._start(argv, folder, env, path) for path in self._paths]

    @staticmethod
    def _start(
        argv: Sequence[str], folder: Path, env: dict[str, str], said: Path
    ) -> subprocess.Popen[bytes]:
        with said.open("w") as file:
            return subprocess.Popen(
                argv,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = TIMEOUT_S) -> list[float]:
        """When launchers ended, the first one first; those that did not are not there."""
        ended: dict[int, float] = {}
        until_s = time.monotonic() + timeout_s
        while len(ended) < len(self._launchers) and time.monotonic() < until_s:
            for number, launcher in enumerate(self._launchers):
                if number not in ended and launcher.poll() is not None:
                    ended[number] = time.monotonic()
            time.sleep(0.005)
        return sorted(ended.values())

    @property
    def said(self) -> str:
        """All that was printed so far."""
        return "".join(path.read_text(errors="replace") for path in self._paths)

    def await_lines(self, count: int) -> list[float]:
        """The moments that so many ranks have printed."""
        until_s = time.monotonic() + TIMEOUT_S
        while len(found := re.findall(r"LINE \d+ (\S+)\n", self.said)) < count:
            codes = [launcher.poll() for launcher in self._launchers]
            if None not in codes or time.monotonic() > until_s:
                raise SystemExit(f"{len(found)} of {count} spoke, exits {codes}:\n{self.said}")
            time.sleep(0.005)
        return [float(moment) for moment in found]


def start_ours(folder: Path, script: str) -> Started:
    """One command for all hosts."""
    argv = [MILKWEED, "torchrun", *shape(), f"{script}_ranks.py"]
    return Started(argv, 1, folder, our_environment(folder))


def start_torchrun(folder: Path, script: str) -> Started:
    """One command for each host."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    argv = [str(torch_bin() / TORCHRUN), *shape(), *meeting, f"{script}_ranks.py"]
    return Started(argv, NODES, folder, environment(folder.name))


def shape() -> list[str]:
    return ["--nnodes", str(NODES), "--nproc-per-node", str(NPROC)]


def our_environment(folder: Path) -> dict[str, str]:
    """Records of its own, and the ranks' Python is torchrun's."""
    python = str(torch_bin() / "python")
    return environment(folder.name, MILKWEED_HOME=str(folder / "home"), PYTHON_EXEC=python)


def kill_ours(folder: Path) -> None:
    """End the hosts, as a person would."""
    env = our_environment(folder)
    subprocess.run([MILKWEED, "kill"], cwd=folder, env=env, check=True, capture_output=True)


def alternate(
    repeat: int, name: str, ours: Callable[[], Result], other: Callable[[], Result]
) -> Found:
    """Run both sides in turn, the first one changing from round to round."""
    found: Found = {OURS: [], name: []}
    sides = [(OURS, ours), (name, other)]
    for number in range(repeat):
        for who, run in sides if number % 2 == 0 else reversed(sides):
            found[who].append(run())
    return found


def compare(name: str, ours_s: float, other_s: float, least: float) -> Claim:
    """One row; the ratio is the result, and is claimed to be large enough."""
    ratio, sign = other_s / ours_s, ">" * (other_s == PATIENCE_S)
    print(f"| {name} | {sign}{ratio:.1f} × | {ours_s:.2f} s | {sign}{other_s:.2f} s |", flush=True)  # noqa: RUF001  a ratio's own sign
    return Claim(ratio >= least, f"{name}: {ratio:.2f}, at least {least:g}")


def both(found: Found, key: str) -> tuple[float, float]:
    """The middle of a figure for milkweed, and for the other."""
    ours, other = (median(runs, key) for runs in found.values())
    return ours, other


# From a command to all ranks


def compare_launch(repeat: int) -> Iterator[Claim]:
    """How soon all ranks run, with and without hosts that are there already."""
    launch_ours("plain")
    launch_torchrun("plain")  # byte code, and files in memory
    for script, what in (("plain", "first statement"), ("torch", "torch imported")):
        found = alternate(
            repeat if script == "plain" else max(1, repeat - 2),
            TORCHRUN,
            lambda script=script: launch_ours(script),
            lambda script=script: launch_torchrun(script),
        )
        for key, hosts in (("cold", "none there yet"), ("live", "there already")):
            row = f"{WHERE}, {hosts}: command → {what} of the last rank; {TORCHRUN}"
            yield compare(row, *both(found, key), 1.0)
        if script == "plain":
            ours_s, other_s = both(found, "again")
            row = f"{WHERE}, there already: command → its end; {TORCHRUN}"
            yield compare(row, ours_s, other_s, 1.0)
            yield Claim(ours_s < AGAIN_S, f"a second run: {ours_s:.2f} s, less than {AGAIN_S:g}")


def launch_ours(script: str) -> Result:
    """Two commands: the first one starts hosts, the second one finds them there."""
    with fresh_folder() as folder:
        (cold_s, _), (live_s, again_s) = (time_launch(start_ours(folder, script)) for _ in range(2))
        kill_ours(folder)
    return {"cold": cold_s, "live": live_s, "again": again_s}


def launch_torchrun(script: str) -> Result:
    """An agent for each host; there is nothing that could be there already."""
    with fresh_folder() as folder:
        launch_s, whole_s = time_launch(start_torchrun(folder, script))
    return {"cold": launch_s, "live": launch_s, "again": whole_s}


def time_launch(started: Started) -> tuple[float, float]:
    """From the command to the last rank's line, and to the end of all launchers."""
    ended_s = max(started.wait(), default=started.began_s + TIMEOUT_S)
    return max(started.await_lines(RANKS)) - started.began_s, ended_s - started.began_s


# From a failure to the end


def compare_failure(repeat: int) -> Iterator[Claim]:
    """How soon launchers end when a rank fails; torchrun's other agent may not hear of it."""
    sides = (lambda: time_failure(start_ours), lambda: time_failure(start_torchrun))
    found = alternate(repeat, TORCHRUN, *sides)
    row = f"{WHERE}: a rank exits with 3 →"
    yield compare(f"{row} its launcher has ended; {TORCHRUN}", *both(found, "first"), 1.0)
    yield compare(f"{row} all launchers have ended; {TORCHRUN}", *both(found, "all"), 1.0)
    stuck = [sum(run["all"] == PATIENCE_S for run in runs) for runs in found.values()]
    row = f"… of {repeat} runs, given up after {PATIENCE_S:g} s, which the row above counts; {TORCHRUN}"
    print(f"| {row} | | {stuck[0]} | {stuck[1]} |", flush=True)


def time_failure(start: Callable[[Path, str], Started]) -> Result:
    """From the end of a rank to that of the first launcher, and to that of all."""
    with fresh_folder() as folder:
        started = start(folder, "fail")
        [failed_s] = started.await_lines(1)
        ended_s = started.wait(PATIENCE_S)
        count = 1 if start is start_ours else NODES
        if start is start_ours:
            kill_ours(folder)
    return {
        "first": ended_s[0] - failed_s if ended_s else PATIENCE_S,
        "all": ended_s[-1] - failed_s if len(ended_s) == count else PATIENCE_S,
    }


# On hosts that are there


def compare_relaunch(repeat: int) -> Iterator[Claim]:
    """How long a run takes on hosts that are there, and what it leaves behind."""
    relaunch(OURS)
    relaunch(PEER)  # byte code, and files in memory
    found = alternate(repeat, PEER, lambda: relaunch(OURS), lambda: relaunch(PEER))
    what = f"{RELAUNCH_RANKS} ranks"
    row = f"{what}: program start → first run_spmd() has ended; {PEER}"
    yield compare(row, *both(found, "first"), 1.0)
    yield compare(f"{what}: run_spmd() again; {PEER}", *both(found, "again"), RELAUNCH_RATIO)
    ours, other = (max(run["more"] for run in runs) for runs in found.values())
    row = f"{what}: processes more after {RELAUNCHES} more runs; {PEER}"
    print(f"| {row} | | {ours:.0f} | {other:.0f} |", flush=True)
    yield Claim(ours == 0, f"{row}: {ours:.0f}, not one")


def relaunch(who: str) -> Result:
    """Run a program that serves a command and runs it several times.

    The peer also starts a `torchrun` of its own, in vain. It gets one that ends at once, and costs nothing.
    """
    with fresh_folder() as folder:
        (folder / TORCHRUN).write_text("#!/bin/sh\n")
        (folder / TORCHRUN).chmod(0o755)
        argv = [sys.executable, str(PROGRAM), who, str(RELAUNCH_RANKS), "plain_ranks.py"]
        env = environment(folder.name, MILKWEED_HOME=str(folder / "home"))
        if who == PEER:
            env["PATH"] = f"{folder}{os.pathsep}{env['PATH']}"
            env |= {"PYTHONPATH": torchx_path(), "TMPDIR": str(folder)}
        started = Started([*argv, str(RELAUNCHES)], 1, folder, env)
        started.wait()
        found = re.search(r"^RESULT (.*)$", started.said, re.MULTILINE)
        if not found:
            raise SystemExit(f"{who} failed:\n{started.said}")
    result = json.loads(found[1])
    return {**result, "again": statistics.median(result["again"])}


if __name__ == "__main__":
    sys.exit(main())
