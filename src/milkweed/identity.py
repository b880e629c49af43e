"""Proving that a process, or a machine, is the one we mean: a number alone is not enough."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@functools.cache
def boot_id() -> str:
    """Differs after every start of the machine."""
    return _read("/proc/sys/kernel/random/boot_id")


def machine() -> dict[str, str]:
    """Who this machine is, for records that may be read on another one."""
    return {"hostname": os.uname().nodename, "machine_id": _read("/etc/machine-id")}


def process(pid: int) -> dict[str, Any] | None:
    """A process that runs now: its id, when it started, and since which start of the machine."""
    started = _started(pid)
    if started is None:
        return None
    return {"pid": pid, "started": started, "boot_id": boot_id()}


def is_running(identity: Mapping[str, Any]) -> bool:
    """Whether that very process still runs; another one with its number does not count."""
    return identity["boot_id"] == boot_id() and _started(identity["pid"]) == identity["started"]


def send_signal(identity: Mapping[str, Any], number: signal.Signals) -> None:
    """Signal that very process, and no other that took its number meanwhile; gone is fine."""
    try:
        pidfd = os.pidfd_open(identity["pid"])
    except ProcessLookupError:
        return
    try:
        if is_running(identity):
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def _started(pid: int) -> int | None:
    """Start time in clock ticks since boot; None when the process is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
