"""What real clusters of the labs have in common: their nodes, the faults of these, and who waits for what."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
TICK_S = 0.05


class Nodes:
    """The nodes of a cluster, counted from 1. What was broken is remembered, for who heals it."""

    ENDING_S = 10

    def __init__(self, script: Callable[..., Done]) -> None:
        """`script` runs a script of the lab: its name, its arguments, and whether it must succeed as `check`."""
        self._script = script
        self._down: set[int] = set()
        self._cut: set[int] = set()
        self._unsettled = False

    def on_node(self, i: int, *argv: str, check: bool = True) -> Done:
        """Run a command on a node, which must be up."""
        return self._script("node.sh", "exec", str(i), *argv, check=check)

    def kill_node(self, i: int) -> None:
        """End every process on a node: its peers see their connections close."""
        self._fault("kill", i)
        self._down.add(i)

    def poweroff_node(self, i: int) -> None:
        """Cut the cable of a node, then end its processes: its peers see silence."""
        self._fault("poweroff", i)
        self._down.add(i)
        self._cut.add(i)

    def cut_node(self, i: int) -> None:
        """Cut the cable of a node; its processes go on."""
        self._fault("cut", i)
        self._cut.add(i)

    def mend_node(self, i: int) -> None:
        """Heal the cable of a node."""
        self._fault("mend", i)
        self._cut.discard(i)

    def start_node(self, i: int) -> None:
        """Boot a node that was killed or powered off; its cable is healed too."""
        wait(lambda: not self._is_running(i), self.ENDING_S, f"n{i} has not ended")
        self._fault("start", i)
        self._down.discard(i)
        self._cut.discard(i)

    def _fault(self, command: str, i: int) -> None:
        self._unsettled = True
        self._script("node.sh", command, str(i))

    def _is_running(self, i: int) -> bool:
        return self._script("node.sh", "pid", str(i), check=False).returncode == 0

    def _heal_nodes(self) -> None:
        """Undo every fault of a node."""
        for i in sorted(self._cut - self._down):
            self.mend_node(i)
        for i in sorted(self._down):
            self.start_node(i)


def run(argv: Sequence[str], *, check: bool, timeout_s: float, text: str = "", **more: Any) -> Done:
    """Run a command, with a text as its input; one that must succeed shows what it said when it fails."""
    done = subprocess.run(
        argv, check=False, input=text, capture_output=True, text=True, timeout=timeout_s, **more
    )
    assert not check or done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stderr}"
    return done


def wait(
    true: Callable[[], bool],
    timeout_s: float,
    what: str,
    seen: Callable[[], Any] | None = None,
) -> None:
    """Wait for something that must become true."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, (
            f"after {timeout_s} s: {what}: {seen() if seen else ''}"
        )
        time.sleep(TICK_S)


def mark_all(items: Sequence[pytest.Item], folder: Path, mark: str, missing: str) -> None:
    """Mark every test of a folder; where its cluster is missing they are skipped, with the reason."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(mark)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


def ask_as_stranger(machine: str, port: int) -> bytes:
    """What somebody without a certificate is answered."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((machine, port), 5) as plain,
            context.wrap_socket(plain) as tls,
        ):
            tls.sendall(b'{"op":"status"}\n{"op":"stop"}\n')
            return tls.recv(1)
    except OSError:
        return b""
