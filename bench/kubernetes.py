"""Hosts from Kubernetes, compared with the engine's own job layer, alternating in one run, or with a limit.

    python bench/kubernetes.py [--only start|queries|watch] [--hosts 4] [--repeat 3] [--wait 60] [--pods 1000]

Starts a Kubernetes (tests/labs) and runs both sides' programs in it, with the same image and the same operator.
Every row is a ratio of medians: to the peer, to what was promised, or to the JSON that the API server sent.
The peer needs the package `kubernetes`, in the program's Python or in ~/.cache/milkweed-lab/kubernetes-client.
Exits with 1 when a limit is missed, and with 0 when no such cluster can run here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kubernetes_lab import Cluster, ReadyClock, why_no_peer
from sides import Found, Result, finish, run_lab, start, tell_missed
from startup import OURS, PEER, count, median, print_row

HERE = Path(__file__).resolve()
PROGRAMS = HERE.parent / "programs" / "pods.py"
WITH = HERE.parents[1] / "tests" / "labs" / "kubernetes" / "with.sh"
INSIDE, MISSING = "MILKWEED_KUBERNETES_LAB", "MILKWEED_KUBERNETES_LAB_MISSING"
ROWS = ("start", "queries", "watch")

TIMEOUT_S = 180
PENDING = 100
AFTER_LIMIT_S = 1.0
"""How long after the last pod is ready the first reply of all may come."""
REQUESTS_LIMIT = 5
HELD_S = 30.0
STAGES = {
    "program": "program start",
    "asked": "state(), before which the peer has imported the engine,",
    "running": "last pod runs",
}
MOMENTS = ("asked at", "made", "placed", "running", "ready", "stated", "replied")


class Asked(NamedTuple):
    """One request to the API server."""

    at_s: float
    method: str
    target: str


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=ROWS, help="some rows only")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each side; default: 3")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for pending pods")
    parser.add_argument("--pods", type=int, default=1000, help="pods to watch; default: 1000")
    options = parser.parse_args()
    if os.environ.get(MISSING):
        print(f"not measured: {os.environ[MISSING]}", flush=True)
        return 0
    if os.environ.get(INSIDE):
        return measure(options)
    return run_lab([str(WITH), "2", "--", sys.executable, str(HERE), *sys.argv[1:]])


def measure(options: argparse.Namespace) -> int:
    """Measure every row; 1 when a limit is missed."""
    rows = [options.only] if options.only else ROWS
    sides = [OURS]
    print(f"| what | ratio | {OURS} | {PEER} |\n|---|---|---|---|", flush=True)
    if why := why_no_peer():
        print(f"| {PEER} | not measured: {why} | | |", flush=True)
    else:
        sides.append(PEER)
    missed: list[str] = []
    with Cluster() as cluster:
        bench = Bench(cluster, sides)
        if "start" in rows:
            missed += bench.compare_start(options.hosts, options.repeat)
        if "queries" in rows:
            missed += bench.compare_queries(PENDING, options.wait)
        if "watch" in rows:
            missed += bench.compare_watch(options.pods)
    return tell_missed(missed)


class Bench:
    """All measurements on one cluster."""

    def __init__(self, cluster: Cluster, sides: Sequence[str]) -> None:
        self._cluster = cluster
        self._sides = sides

    # Programs

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """A folder without any record; afterwards the namespace is empty again."""
        folder = Path(tempfile.mkdtemp())
        try:
            yield folder
        finally:
            self._cluster.clear()
            shutil.rmtree(folder, ignore_errors=True)

    def _start(
        self, who: str, what: str, number: int, folder: Path, **env: str
    ) -> subprocess.Popen[str]:
        """Start a program; what it says to a person is in a file."""
        login = self._cluster.peer_env() if who == PEER else {}
        own = {**self._cluster.env(), **login, "MILKWEED_HOME": str(folder / "home"), **env}
        return start(PROGRAMS, who, what, str(number), folder=folder, env=own, err=folder / "err")

    def _alternate(self, repeat: int, run: str, *args: int) -> Found:
        """Run all sides in turn, the first one changing from round to round."""
        found: Found = {who: [] for who in self._sides}
        for number in range(repeat):
            for who in self._sides if number % 2 == 0 else reversed(self._sides):
                found[who].append(getattr(self, run)(who, *args))
        return found

    # Starting

    def compare_start(self, hosts: int, repeat: int) -> Iterator[str]:
        """First reply from all hosts: after the program's start, after state(), after the last pod was ready."""
        for who in self._sides:
            self.run_start(who, hosts)  # byte code, and files in memory
        found = self._alternate(repeat, "run_start", hosts)
        shown = count(hosts)
        for key, name in STAGES.items():
            print_pair(f"{shown}: {name} → first reply", found, key)
        yield from self._compare_after(shown, found)
        held = self._alternate(1, "run_held", hosts)
        yield from self._compare_after(f"{shown} that waited {HELD_S:g} s for a node", held)

    @staticmethod
    def _compare_after(shown: str, found: Found) -> Iterator[str]:
        what = f"{shown}: last pod ready → first reply, limit {AFTER_LIMIT_S:g} s"
        after_s = median(found[OURS], "after")
        peer = f"{median(found[PEER], 'after'):.2f} s" if PEER in found else ""
        ratio = f"{max(0.0, after_s) / AFTER_LIMIT_S:.2f} of the limit"
        print(f"| {what} | {ratio} | {after_s:.2f} s | {peer} |", flush=True)
        if after_s > AFTER_LIMIT_S:
            yield f"{what}: {after_s:.2f} s"

    def run_held(self, who: str, hosts: int) -> Result:
        """The same while no node takes pods at first: whoever waits for long looks seldom."""
        with self._cluster.held_back(HELD_S):
            return self.run_start(who, hosts)

    def run_start(self, who: str, hosts: int) -> Result:
        """A program that gets hosts and uses them, and ends them."""
        with self._folder() as folder, ReadyClock(self._cluster, hosts) as ready:
            result = finish(self._start(who, "start", hosts, folder), folder / "err", TIMEOUT_S)
            result["after"] = result["replied"] - ready.moments["ready"]
            result["running"] = result["replied"] - ready.moments["running"]
            moments = {**result, **ready.moments}  # those of the pods win
            note(who, hosts, {key: moments[key] - result["began"] for key in MOMENTS}, "s after")
            return result

    # Waiting

    def compare_queries(self, pods: int, wait_s: float) -> Iterator[str]:
        """How often the API server is asked about pods that wait."""
        asked = {who: self.watch_pending(who, pods, wait_s) for who in self._sides}
        waited = {who: find_waiting(requests) for who, requests in asked.items()}
        what = f"{pods} pods pending for {wait_s:g} s: requests to the API server"
        ours = len(waited[OURS])
        peer = str(len(waited[PEER])) if PEER in waited else ""
        ratio = f"{ours / REQUESTS_LIMIT:.1f} of {REQUESTS_LIMIT}"
        print(f"| {what} | {ratio} | {ours} | {peer} |", flush=True)
        peer = str(len(asked[PEER])) if PEER in asked else ""
        print(f"| … with those that ask for the pods | | {len(asked[OURS])} | {peer} |", flush=True)
        if ours > REQUESTS_LIMIT:
            yield f"{what}: {ours}, limit {REQUESTS_LIMIT}"

    def watch_pending(self, who: str, pods: int, wait_s: float) -> list[Asked]:
        """Every request of a program until its pods have waited for so long."""
        with self._folder() as folder:
            program = self._start(who, "pend", pods, folder)
            try:
                self._cluster.wait_pending(pods, program)
                time.sleep(wait_s)
                if program.poll() is not None:
                    raise SystemExit(f"{who} did not wait:\n{(folder / 'err').read_text()}")
            finally:
                program.kill()
            out, _ = program.communicate()
        found = re.findall(r"^ASKED (\S+) (\S+) (\S+)$", out, re.MULTILINE)
        asked = [Asked(float(at_s), method, target) for at_s, method, target in found]
        for each in asked:
            note(who, pods, {"at": each.at_s - asked[0].at_s}, each.method, each.target)
        return asked

    # Watching

    def compare_watch(self, pods: int) -> Iterator[str]:
        """What it costs to see many pods, and a change of each."""
        self._cluster.make_fakes(pods)
        found = {who: self.run_watch(who, pods) for who in self._sides}
        kept = self.run_watch(OURS, pods, TRACE="1")
        print_watch(pods, found, kept)
        yield from ()

    def run_watch(self, who: str, pods: int, **env: str) -> Result:
        """A program that sees all pods, which then change once each."""
        folder = Path(tempfile.mkdtemp())
        try:
            labels = {"BENCH_LABELS": self._cluster.fake_labels}
            program = self._start(who, "watch", pods, folder, **labels, **env)
            assert program.stdout is not None
            if any(line.startswith("READY") for line in program.stdout):
                self._cluster.change_fakes(pods)
            result = finish(program, folder / "err", TIMEOUT_S)
            note(who, pods, result)
            return result
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def find_waiting(asked: Sequence[Asked]) -> list[Asked]:
    """The requests after the last one that changed something."""
    changed_s = max((each.at_s for each in asked if each.method != "GET"), default=0.0)
    return [each for each in asked if each.at_s > changed_s]


def note(who: str, number: int, result: Result, *words: str) -> None:
    """Every single figure, for whoever asks for it."""
    if os.environ.get("BENCH_VERBOSE"):
        shown = {key: round(value, 3) for key, value in result.items()}
        print(f"  {who} {number} {shown} {' '.join(words)}", file=sys.stderr, flush=True)


def print_pair(name: str, found: Found, key: str) -> None:
    """One row."""
    ours_s = median(found[OURS], key)
    if PEER in found:
        print_row(name, ours_s, median(found[PEER], key))
    else:
        print(f"| {name} | no peer | {ours_s:.2f} s | |", flush=True)


def print_watch(pods: int, found: dict[str, Result], traced: Result) -> None:
    """Bytes, and seconds of CPU, beside the JSON that was sent."""
    what, ours = f"{pods} pods watched", found[OURS]
    sent = traced["list bytes"] / pods
    for key, name in (("kept", "kept"), ("peak", "needed for a moment")):
        used = traced[key] / pods
        cells = f"{used / sent:.2f} of its JSON | {used:.0f} B of {sent:.0f} B"
        print(f"| {what}: memory {name} for each | {cells} | |", flush=True)
    for key, name in (("list", "first list"), ("update", f"{pods} changes")):
        size = f"{ours[f'{key} bytes'] / 1e6:.1f} MB of JSON"
        runs = {who: [result] for who, result in found.items()}
        print_pair(f"{what}: CPU of the {name}, {size}", runs, f"{key} cpu")
    total_s, bare_s = ours["list cpu"] + ours["update cpu"], ours["bare"]
    row = f"{what}: CPU of both, beside `json.loads` of the same bytes"
    cells = f"{total_s / bare_s:.1f} of that | {total_s:.2f} s of {bare_s:.2f} s"
    print(f"| {row} | {cells} | |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
