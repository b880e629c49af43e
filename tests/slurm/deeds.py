"""Who did what to which job of the test of random faults, so that every end has somebody who caused it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLACK_S = 40.0
"""How long after a deed its consequences may show: Slurm notices nodes late."""


@dataclass
class Declared:
    """One job of the test: a folder with a state file, and how many hosts it wants now."""

    name: str
    folder: Path
    path: str | None
    size: int
    log_dir: str | None = None

    @property
    def file(self) -> Path:
        """Its state file."""
        return self.folder / (self.path or "")

    @property
    def apply_id(self) -> str:
        """The allocation that its state file records, if there is one."""
        return self._load().get("apply_id", "")

    @property
    def differs(self) -> bool:
        """Whether a program that wants the job now finds another size recorded, and so changes it."""
        meshes = self._load().get("spec", {}).get("meshes", [])
        return any(mesh["hosts"] != self.size for mesh in meshes)

    def _load(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.file.read_bytes())
        return {}


@dataclass
class Program:
    """A client program that was started; what it prints goes to a file."""

    kind: str
    job: str
    process: subprocess.Popen[bytes]
    log: Path
    limit_s: float
    signalled: list[signal.Signals] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def tail(self, lines: int = 60) -> str:
        """The end of what it has printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Tracked:
    """A Slurm job from its first sight to its end."""

    id: int
    job: str
    alive_s: float
    nodes: set[str] = field(default_factory=set)
    ended: str = ""


@dataclass
class Deed:
    """Something that may end Slurm jobs: of a name, with a number, or on a node."""

    kind: str
    ends_as: frozenset[str] = frozenset()
    job: str = ""
    id: int = 0
    node: str = ""
    programs: Sequence[Program] = ()
    until_s: float | None = None
    """When it was over; None: with its programs, or not yet."""

    def explains(self, tracked: Tracked) -> bool:
        """Whether it can be the cause of what happened to a job."""
        hit = tracked.id == self.id or tracked.job == self.job or self.node in tracked.nodes
        if self.until_s is None and self.programs and not any(p.alive for p in self.programs):
            self.until_s = time.monotonic()
        return hit and (self.until_s is None or self.until_s + SLACK_S >= tracked.alive_s)


BY_CANCEL = frozenset({"CANCELLED"})
BY_RESIZE = BY_CANCEL | {"COMPLETED"}
"""Hosts that are given back end in order; who does so may be ended before Slurm is told."""
BY_CRASH = frozenset({"FAILED", "COMPLETED", "NODE_FAIL", "BOOT_FAIL"})
HARM = frozenset({"node", "keeper", "admin", "requeue", "slurm"})
"""What may cost an allocation hosts, so that a client may replace it."""
