"""The Slurm cluster that the tests of this folder run on, and the faults they cause on it.

The tests run on its login node, in namespaces of their own. The scripts of `tests/labs/slurm` run
outside of these, where with.sh runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from clusters import Done, Nodes, run, wait

SCRIPTS = Path(__file__).parents[1] / "labs" / "slurm"
COMMAND_TIMEOUT_S = 60
SETTLE_TIMEOUT_S = 60
SEPARATOR = "\x1f"


class JobLine(NamedTuple):
    """One live job of the cluster: pending, running, or still completing."""

    id: int
    state: str
    name: str
    comment: str
    nodes: tuple[str, ...]


def why_missing() -> str:
    """Why there is no cluster for the tests; nothing where there is one."""
    if os.environ.get("MILKWEED_SLURM_LAB"):
        return ""
    missing = os.environ.get("MILKWEED_SLURM_LAB_MISSING")
    return missing or "needs tests/labs/slurm/with.sh -- python -m pytest tests/slurm"


class Lab(Nodes):
    """A real Slurm; node `i` counts from 1. What was broken is remembered, for `heal`."""

    def __init__(self) -> None:
        super().__init__(_script)
        self.run_folder = Path(os.environ["SLURM_CONF"]).parent
        self.log_folder = self.run_folder / "log"
        self.version = ".".join(self.run("sinfo", "-V").stdout.split()[1].split(".")[:2])
        listed = self.run("sinfo", "-h", "-N", "-p", "debug", "-o", "%N").stdout.split()
        self.nodes = sorted(listed, key=lambda name: int(name[1:]))
        self._frozen = self._stopped = False

    # Commands

    def run(self, *argv: str, check: bool = True) -> Done:
        """Run a command on the login node."""
        return _run(argv, check)

    def start_on_node(self, i: int, *argv: str) -> subprocess.Popen[bytes]:
        """Start a command on a node and leave it running."""
        command = _outside("node.sh", "exec", str(i), *argv)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    # Faults of the controller

    def stop_controller(self) -> None:
        """End slurmctld; running jobs go on."""
        self._stopped, self._frozen = True, False  # also when this fails: healing starts it again
        _script("ctl.sh", "stop")

    def start_controller(self) -> None:
        """Start slurmctld with the jobs it knew. It answers at once, and starts jobs 4 s later."""
        _script("ctl.sh", "start")
        self._stopped, self._unsettled = False, True

    def restart_controller(self) -> None:
        """Stop and start slurmctld."""
        self.stop_controller()
        self.start_controller()

    def freeze_controller(self) -> None:
        """Make slurmctld silent: commands connect to it and hang."""
        _script("ctl.sh", "freeze")
        self._frozen = True

    def thaw_controller(self) -> None:
        """Let slurmctld go on."""
        _script("ctl.sh", "thaw")
        self._frozen = False

    # Faults that Slurm knows at once

    def lose_node(self, i: int) -> None:
        """A node dies, and an administrator says so: for tests of what follows, not of how soon it is noticed."""
        self.kill_node(i)
        # It is drained too: the answer to a ping from before its death may still come, and return it to service.
        for state in ("down", "drain"):
            self.run("scontrol", "update", f"nodename=n{i}", f"state={state}", "reason=lost")

    # What there is

    def jobs(self) -> list[JobLine]:
        """Every live job of the cluster."""
        line = SEPARATOR.join(("%A", "%T", "%j", "%k", "%N"))
        return [
            _read_job(text) for text in self.run("squeue", "-h", "-o", line).stdout.splitlines()
        ]

    def node_states(self) -> dict[str, str]:
        """The nodes with their states as sinfo shows them: `idle`, `down*`, ..."""
        lines = self.run("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %t").stdout.splitlines()
        return dict(line.split() for line in lines)

    def wait_program(self, name: str) -> None:
        """Wait until a program of that name runs on the login node, for instance `squeue`."""
        names = "ps", "-eo", "comm="
        wait(lambda: name in self.run(*names).stdout.split(), 60, f"no {name} runs")

    def wait_jobs_gone(self, timeout_s: float = 60) -> None:
        """Wait until there is no live job."""
        wait(lambda: not self.jobs(), timeout_s, "jobs are still there", self.jobs)

    def wait_idle(self, timeout_s: float = 60) -> None:
        """Wait until every node is idle."""
        wait(self._is_idle, timeout_s, "nodes are not idle", self.node_states)

    def wait_node_state(self, i: int, state: str, timeout_s: float = 60) -> None:
        """Wait until sinfo shows a node in a state."""
        name = f"n{i}"
        wait(lambda: self.node_states()[name] == state, timeout_s, f"not {state}", self.node_states)

    def _is_idle(self) -> bool:
        return set(self.node_states().values()) == {"idle"}

    # Healing

    def heal(self) -> list[JobLine]:
        """Undo every fault, end every job; returns the jobs that nobody had ended."""
        if self._frozen:
            self.thaw_controller()
        if self._stopped:
            self.start_controller()
        self._heal_nodes()
        if self.run("sinfo", "-h", "-p", "debug", "-o", "%a").stdout.strip() != "up":
            self.run("scontrol", "update", "partitionname=debug", "state=up")
        return self._settle()

    def _settle(self) -> list[JobLine]:
        """Make the cluster empty and its nodes idle; returns the jobs it had to end."""
        ended: dict[int, JobLine] = {}
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while (jobs := self.jobs()) or (self._unsettled and not self._is_idle()):
            assert time.monotonic() < deadline_s, f"not healed: {self.node_states()} {jobs}"
            self._unsettled = True
            # A job that lost a node completes, and is pending after that.
            for job in jobs:
                if job.state != "COMPLETING":
                    ended.setdefault(job.id, job)
                    self.run("scancel", str(job.id), check=False)
            self._resume_nodes()
            time.sleep(0.1)
        self._unsettled = False
        return list(ended.values())

    def _resume_nodes(self) -> None:
        for name, state in self.node_states().items():
            if state.rstrip("*") in {"down", "drain", "fail"}:
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)


def _read_job(text: str) -> JobLine:
    number, state, name, comment, nodes = text.split(SEPARATOR)
    return JobLine(int(number), state, name, "" if comment == "(null)" else comment, expand(nodes))


def expand(nodes: str) -> tuple[str, ...]:
    """The node names in `n[1-2,4]`."""
    found: list[str] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", nodes):
        found += [f"n{i}" for i in range(int(first), int(last or first) + 1)]
    return tuple(found)


def _run(argv: tuple[str, ...], check: bool) -> Done:
    return run(argv, check=check, timeout_s=COMMAND_TIMEOUT_S)


def _script(name: str, *args: str, check: bool = True) -> Done:
    return _run(_outside(name, *args), check)


def _outside(name: str, *args: str) -> tuple[str, ...]:
    """The command that runs a script of the lab outside of the login node's namespaces."""
    pid = os.environ["MILKWEED_SLURM_LAB_OUTSIDE"]
    return ("nsenter", "-t", pid, "-m", "-u", "-n", "-r", "-w", "--", str(SCRIPTS / name), *args)
