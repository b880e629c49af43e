"""Hosts from Slurm, compared with the engine's own job layer, alternating in one run.

    python bench/slurm.py [--hosts 3,32] [--repeat N] [--only start|reconnect|queries|cancelled|died]

Starts a Slurm 24.11 for each number of hosts (tests/labs; the peer needs this version) and runs both sides'
programs on its login node. Every row is a ratio of medians. Exits with 1 when a limit is missed, and with 0
when no such cluster can run here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sides import Found, Result, claimed_memory, run_lab, tell_missed
from slurm_lab import (
    INSIDE,
    LAB,
    TIMEOUT_S,
    ask,
    dead_node,
    finish,
    fresh_folder,
    prepare,
    run_folder,
    start,
)
from startup import OURS, PEER, count, median, print_row

HERE = Path(__file__).resolve()
MISSING = "MILKWEED_SLURM_LAB_MISSING"
EXIT_MISSING = 77

PHASE_S = 3.0
"""Programs start this much later or less: neither side knows when Slurm looks at its queue."""
BEYOND_LIMIT_S = 1.0
LARGE, LARGE_RATIO = 32, 1.5
SHARE_LIMIT = 0.05
CANCELLED_LIMIT_S, DIED_LIMIT_S = 5.0, 15.0
ROWS = ("start", "reconnect", "queries", "cancelled", "died")

QUERIES = ("squeue", "sinfo", "scontrol", "sacct")
WRAPPED = (*QUERIES, "sbatch")
ALONE_S, TOGETHER_S, LATE_S, HOUR_S = 60.0, 90.0, 45.0, 3600.0
JOBS = 100


class Asked(NamedTuple):
    """One command of Slurm that a program ran."""

    at_s: float
    command: str
    argument: str


# Outside: a cluster for each number of hosts


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default=f"3,{LARGE}", help="numbers of hosts: 3,32")
    parser.add_argument("--repeat", type=int, help="default: 5 for 3 hosts, 3 for 32")
    parser.add_argument("--only", choices=ROWS, help="some rows only")
    options = parser.parse_args()
    sizes = [int(size) for size in options.hosts.split(",")]
    if os.environ.get(MISSING):
        print(f"\nnot measured: {os.environ[MISSING]}", flush=True)
        return EXIT_MISSING
    if os.environ.get(INSIDE):
        return measure(sizes, options.repeat, [options.only] if options.only else ROWS)
    print(f"| what | {PEER} takes | {OURS} | {PEER} |\n|---|---|---|---|", flush=True)
    codes: list[int] = []
    for hosts in sizes:
        codes.append(measure_apart(hosts, options.repeat, options.only))
        if codes[-1] == EXIT_MISSING:
            return 0
    return next(filter(None, codes), 0)


def measure_apart(hosts: int, repeat: int | None, only: str | None) -> int:
    """Measure on the login node of a cluster of its own; its nodes may be slow, and are not lost for that."""
    env = {**os.environ, "VER": "24", "SLURMD_TIMEOUT": "60", "MESSAGE_TIMEOUT": "20"}
    argv = [
        str(LAB / "with.sh"),
        str(max(4, hosts)),
        "--",
        sys.executable,
        str(HERE),
        "--hosts",
        str(hosts),
    ]
    argv += ["--repeat", str(repeat)] if repeat else []
    argv += ["--only", only] if only else []
    return run_lab(argv, env)


# Inside: on the login node


def measure(sizes: Sequence[int], repeat: int | None, rows: Sequence[str]) -> int:
    """Measure every row; 1 when a limit is missed."""
    missed: list[str] = []
    prepare()
    for hosts in sizes:
        if {"start", "reconnect"}.intersection(rows):
            found = alternate(hosts, repeat or (5 if hosts < LARGE else 3), "reconnect" in rows)
            if "start" in rows:
                missed += compare_start(hosts, found)
            if "reconnect" in rows:
                missed += compare_reconnect(hosts, found)
        if hosts < LARGE and "queries" in rows:
            missed += compare_queries()
        if hosts < LARGE and "cancelled" in rows:
            missed += compare_cancelled(hosts)
        if hosts < LARGE and "died" in rows:
            missed += compare_died(hosts)
    return tell_missed(missed)


# Starting and reconnecting


def alternate(hosts: int, repeat: int, reconnect: bool) -> Found:
    """Run both sides in turn, the first one changing from round to round."""
    found: Found = {OURS: [], PEER: []}
    phase = random.Random(hosts)
    for number in range(repeat):
        for who in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
            time.sleep(phase.uniform(0, PHASE_S))
            with claimed_memory(), fresh_folder() as folder:
                found[who].append(run_pair(who, hosts, folder, reconnect))
    return found


def run_pair(who: str, hosts: int, folder: Path, reconnect: bool) -> Result:
    """A program that gets hosts, and then one that finds them there."""
    log = run_folder() / "log" / "slurmctld.log"
    offset = log.stat().st_size
    result = finish(start(who, "start", hosts, folder), folder / "start.err")
    result["delay"] = read_delay(log.read_bytes()[offset:].decode())
    result["beyond"] = result["asked"] - result["delay"]
    if reconnect:
        second = finish(start(who, "connect", hosts, folder), folder / "connect.err")
        result |= {f"again {key}": value for key, value in second.items()}
        if len(ask("squeue", "-h", "-o", "%A").splitlines()) != 1:
            raise SystemExit(f"{who} did not connect to the hosts that were there")
    return result


def read_delay(log: str) -> float:
    """How long the only job of a log waited until Slurm gave it nodes."""
    moments = [
        datetime.fromisoformat(match[1])
        for event in ("_slurm_rpc_submit_batch_job:", r"sched\S* (?:Allocate|_start_job: Started)")
        if (match := re.search(rf"^\[(\S+)\] {event} JobId=\d+", log, re.MULTILINE))
    ]
    if len(moments) != 2:
        raise SystemExit(f"no job in the log of slurmctld:\n{log}")
    return (moments[1] - moments[0]).total_seconds()


def compare(name: str, key: str, found: Found) -> float:
    """One row; the ratio."""
    ours_s, peer_s = median(found[OURS], key), median(found[PEER], key)
    print_row(name, ours_s, peer_s)
    return peer_s / ours_s


def compare_start(hosts: int, found: Found) -> Iterator[str]:
    """First reply from all hosts, with and without the time that Slurm took to give nodes."""
    shown = count(hosts)
    compare(f"{shown}: program start → first reply", "program", found)
    ratio = compare(f"{shown}: state() → first reply", "asked", found)
    delays_s = [median(found[who], "delay") for who in (OURS, PEER)]
    cells = " | ".join(f"{delay_s:.2f} s" for delay_s in delays_s)
    print(f"| {shown}: of it Slurm's own delay | chance | {cells} |", flush=True)
    compare(f"{shown}: state() → first reply, beyond Slurm's delay", "beyond", found)
    least, beyond_s = LARGE_RATIO if hosts >= LARGE else 1, median(found[OURS], "beyond")
    if ratio < least or ratio <= 1:
        yield f"{shown}: {PEER} takes {ratio:.2f}, not {least} times as long"
    if hosts < LARGE and beyond_s > BEYOND_LIMIT_S:
        yield f"{shown}: {beyond_s:.2f} s beyond Slurm's delay, limit {BEYOND_LIMIT_S:g} s"


def compare_reconnect(hosts: int, found: Found) -> Iterator[str]:
    """A second program connects to the hosts of a first one."""
    for key, name in (("program", "program start"), ("asked", "state()")):
        what = f"{count(hosts)}: reconnect, {name} → first reply"
        if compare(what, f"again {key}", found) <= 1:
            yield f"{what}: slower than {PEER}"


# Questions to the controller


def compare_queries() -> Iterator[str]:
    """How often Slurm is asked about jobs that wait: one for a minute, and a hundred for an hour."""
    ours, peer = (watch_pending(who, 1, ALONE_S) for who in (OURS, PEER))
    what = f"1 job pending for {ALONE_S:g} s: questions to Slurm"
    print_count(what, len(late(ours, ALONE_S)), len(late(peer, ALONE_S)))
    ours = watch_pending(OURS, JOBS, TOGETHER_S)
    hour = extrapolate(ours, TOGETHER_S), extrapolate(peer, ALONE_S) * JOBS
    share = hour[0] / hour[1]
    what = f"{JOBS} jobs pending for an hour, extrapolated: {share:.2%} of the questions"
    print_count(what, *hour)
    if share > SHARE_LIMIT:
        yield f"{JOBS} jobs: {share:.1%} of the questions, limit {SHARE_LIMIT:.0%}"


def extrapolate(asked: Sequence[Asked], waited_s: float) -> float:
    """The questions of an hour: all that there were, and then as many a second as there were at last."""
    rate = len(late(asked, LATE_S)) / LATE_S
    return sum(is_query(each) for each in asked) + rate * (HOUR_S - waited_s)


def print_count(name: str, ours: float, peer: float) -> None:
    """One line of the table; the ratio is the result."""
    print(f"| {name} | {peer / max(ours, 1):.1f} × | {ours:.0f} | {peer:.0f} |", flush=True)  # noqa: RUF001  a ratio's own sign


def is_query(asked: Asked) -> bool:
    return asked.command in QUERIES


def is_submission(asked: Asked) -> bool:
    return asked.command == "sbatch" and asked.argument != "--version"


def late(asked: Sequence[Asked], seconds: float) -> list[Asked]:
    """The questions of the last seconds of a wait."""
    ended_s = asked[-1].at_s
    return [each for each in asked if is_query(each) and each.at_s > ended_s - seconds]


def watch_pending(who: str, jobs: int, seconds: float) -> list[Asked]:
    """Every command of Slurm that a program runs until its last job has waited for so long."""
    with fresh_folder() as folder:
        log = folder / "asked"
        log.touch()
        path = f"{wrap_commands(folder / 'bin', log)}:{os.environ['PATH']}"
        program = start(who, "pend", jobs, folder, PATH=path)
        try:
            wait_for(lambda: len(submissions(log)) == jobs, program)
            ends_s = submissions(log)[-1].at_s + seconds
            time.sleep(ends_s - time.time())
            waiting = ask("squeue", "-h", "-t", "PENDING", "-o", "%A").split()
            if len(waiting) != jobs or program.poll() is not None:
                raise SystemExit(f"{who}: {len(waiting)} of {jobs} jobs wait")
        finally:
            program.kill()
            program.wait()
        asked = [each for each in read_asked(log) if each.at_s <= ends_s]
        return [*asked, Asked(ends_s, "end", "")]


def wait_for(true: Callable[[], bool], program: subprocess.Popen[str]) -> None:
    """Wait for something that a program does."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not true():
        if program.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"{program.args} does not go on")
        time.sleep(0.5)


def submissions(log: Path) -> list[Asked]:
    return [each for each in read_asked(log) if is_submission(each)]


def read_asked(log: Path) -> list[Asked]:
    """What the wrapped commands wrote."""
    lines = (line.split(" ") for line in log.read_text().splitlines())
    return sorted(Asked(float(at_s), command, argument) for at_s, command, argument in lines)


def wrap_commands(folder: Path, log: Path) -> Path:
    """Commands that write down that they were run, and then are the real ones."""
    folder.mkdir()
    for name in WRAPPED:
        real = shutil.which(name)
        note = f'echo "$EPOCHREALTIME {name} ${{1:-}}" >>{log}'
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/bash\n{note}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
    return folder


# Faults


def compare_cancelled(hosts: int) -> Iterator[str]:
    """How long until a program knows that an administrator has cancelled its job."""
    what = f"{count(hosts)}: job cancelled during a call → error"
    return compare_fault(what, hosts, cancelled, CANCELLED_LIMIT_S)


def compare_died(hosts: int) -> Iterator[str]:
    """How long until a program knows that a node of its job has no power any more."""
    what = f"{count(hosts)}: a node dies during a call → error"
    return compare_fault(what, hosts, died, DIED_LIMIT_S)


Fault = Callable[[], contextlib.AbstractContextManager[float]]
"""Something that befalls the only job of a cluster; it gives the moment."""


def compare_fault(what: str, hosts: int, fault: Fault, limit_s: float) -> Iterator[str]:
    """How long a call takes to fail."""
    found: Found = {who: [run_fault(who, hosts, fault)] for who in (OURS, PEER)}
    compare(what, "reported", found)
    if (reported_s := median(found[OURS], "reported")) > limit_s:
        yield f"{what}: {reported_s:.2f} s, limit {limit_s:g} s"


def run_fault(who: str, hosts: int, fault: Fault) -> Result:
    """Let it befall a program that waits for a reply; one that knows nothing gives up after 90 s."""
    with fresh_folder() as folder:
        program = start(who, "call", hosts, folder)
        assert program.stdout is not None
        if not any(line.startswith("CALLING") for line in program.stdout):
            finish(program, folder / "call.err")
        time.sleep(1)
        with fault() as began_s:
            result = finish(program, folder / "call.err")
        return {"reported": result["failed_at"] - began_s}


@contextlib.contextmanager
def cancelled() -> Iterator[float]:
    """An administrator cancels the job."""
    began_s = time.monotonic()
    ask("scancel", *ask("squeue", "-h", "-o", "%A").split())
    yield began_s


def died() -> contextlib.AbstractContextManager[float]:
    """The job's second node dies: the first is where Slurm runs its script."""
    _first, second, *_ = ask(
        "scontrol", "show", "hostnames", ask("squeue", "-h", "-o", "%N")
    ).split()
    return dead_node(second)


if __name__ == "__main__":
    sys.exit(main())
