"""How soon hosts answer, compared with the engine's own job layer, alternating in one run.

    python bench/startup.py [--hosts 1,4,16,64] [--rounds 3] [--quick]

Every row is a ratio of medians. Both sides run the same program: import, declare, `state()`, spawn a proc and
an actor on every host, call it, wait for all replies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sides import read_result

OURS, PEER = "milkweed", "monarch.job"
PROGRAMS = Path(__file__).parent / "programs" / "startup.py"
TIMEOUT_S = 240


def run(who: str, what: str, hosts: int, folder: Path) -> dict[str, float]:
    """Run one program in a folder of its own, and end whatever it leaves."""
    env = {**os.environ, "MILKWEED_HOME": str(folder / "home")}
    program = subprocess.Popen(
        [sys.executable, str(PROGRAMS), who, what, str(hosts)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = program.communicate(timeout=TIMEOUT_S)
    if (result := read_result(out)) is not None:
        return result
    raise SystemExit(f"{who} {what} {hosts} failed with {program.returncode}:\n{out}\n{err}")


def count_leftovers() -> int:
    """How many workers and procs of either side run."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            count += b"run_worker_loop_forever" in line or b"bootstrap_main" in line
            count += b"milkweed.worker" in line
    return count


def sweep() -> None:
    """End what the peer leaves behind, so that it does not slow the next run."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                if b"run_worker_loop_forever" in line or b"bootstrap_main" in line:
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                continue
    while count_leftovers():
        time.sleep(0.05)
    time.sleep(0.5)


def count(hosts: int) -> str:
    """`1 host`, `4 hosts`."""
    return f"{hosts} host" if hosts == 1 else f"{hosts} hosts"


def median(runs: list[dict[str, float]], key: str) -> float:
    """The middle of a figure."""
    return statistics.median(result[key] for result in runs)


def alternate(what: str, hosts: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Run both sides in turn, the first one changing from round to round."""
    found: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
    for number in range(rounds):
        for who in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
            folder = Path(tempfile.mkdtemp())
            if what == "connect":
                run(who, "connect", hosts, folder)
            found[who].append(run(who, what, hosts, folder))
            if what == "connect":
                run(who, "end", hosts, folder)
            sweep()
            shutil.rmtree(folder, ignore_errors=True)
    return found


def print_row(name: str, ours_s: float, peer_s: float) -> None:
    """One line of the table; the ratio is the result, the seconds only say where it comes from."""
    print(f"| {name} | {peer_s / ours_s:.1f} × | {ours_s:.2f} s | {peer_s:.2f} s |", flush=True)  # noqa: RUF001  a ratio's own sign


def compare_start(sizes: list[int], rounds: int) -> None:
    """First reply from all hosts, and ending them."""
    for hosts in sizes:
        found = alternate("start", hosts, rounds if hosts < 64 else max(1, rounds - 1))
        for key, name in (
            ("program", "program start → first reply"),
            ("asked", "state() → first reply"),
        ):
            ours_s, peer_s = median(found[OURS], key), median(found[PEER], key)
            print_row(f"{count(hosts)}: {name}", ours_s, peer_s)
    print_row(
        f"{sizes[-1]} hosts: kill()", median(found[OURS], "kill"), median(found[PEER], "kill")
    )


def compare_reconnect(hosts: int, rounds: int) -> None:
    """A second program connects to the hosts of a first one."""
    found = alternate("connect", hosts, rounds)
    for key, name in (("program", "program start"), ("asked", "state()")):
        ours_s, peer_s = median(found[OURS], key), median(found[PEER], key)
        print_row(f"{hosts} hosts: reconnect, {name} → first reply", ours_s, peer_s)


def compare_faults() -> None:
    """How long until a program knows that something is wrong."""
    for what, name in (
        ("lost", "host killed during a call → error"),
        ("bad", "worker cannot start → error"),
    ):
        found = alternate(what, 2, 1)
        print_row(
            f"2 hosts: {name}", median(found[OURS], "reported"), median(found[PEER], "reported")
        )


def compare_cli() -> None:
    """The command line against an empty Python."""
    script = Path(sys.executable).with_name("milkweed")
    times: dict[str, list[float]] = {"pass": [], "--help": [], "ls": []}
    for _ in range(9):
        for name, argv in (
            ("pass", [sys.executable, "-c", "pass"]),
            ("--help", [str(script), "--help"]),
            ("ls", [str(script), "ls"]),
        ):
            began_s = time.perf_counter()
            subprocess.run(argv, check=True, capture_output=True)
            times[name].append(time.perf_counter() - began_s)
    bare_s = min(times["pass"])
    for name in ("--help", "ls"):
        over_ms = (min(times[name]) - bare_s) * 1000
        what = f"`milkweed {name}` over `python -c pass`, limit 150 ms"
        print(f"| {what} | {over_ms / 150:.2f} of the limit | {over_ms:.0f} ms | |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="no faults: the peer takes two minutes for them"
    )
    options = parser.parse_args()
    sizes = [int(size) for size in options.hosts.split(",")]
    print(f"| what | {PEER} takes | {OURS} | {PEER} |\n|---|---|---|---|")
    compare_start(sizes, options.rounds)
    compare_reconnect(16 if 16 in sizes else sizes[-1], options.rounds)
    if not options.quick:
        compare_faults()
    compare_cli()
    print(f"\nprocesses of ours left: {count_leftovers()}")


if __name__ == "__main__":
    main()
