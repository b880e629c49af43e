"""A real Flux instance for the tests of this folder, on this machine, and the faults they cause in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusters import Done, run, wait

START_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 30


def why_missing() -> str:
    """Why there is no Flux for the tests; nothing where there is one."""
    return "" if shutil.which("flux") else "needs the command flux on PATH"


class Instance:
    """Brokers of one instance, each of which stands for a node."""

    def __init__(self, size: int = 4, wrap: Sequence[str] = (), *, robust: bool = False) -> None:
        """`wrap` is a command that starts each broker; a `robust` one goes on when others than the first end."""
        self._folder = tempfile.TemporaryDirectory(prefix="flux-test-")
        told = Path(self._folder.name) / "uri"
        script = 'echo "$FLUX_URI" >"$1.new" && mv "$1.new" "$1" && exec sleep 86400'
        options = [f"--test-size={size}", *([f"--wrap={','.join(wrap)}"] if wrap else [])]
        if robust:
            options += ["--test-exit-mode=leader", "--test-exit-timeout=3s"]
        outside = {key: value for key, value in os.environ.items() if not key.startswith("FLUX_")}
        self._process = subprocess.Popen(
            ["flux", "start", *options, "sh", "-c", script, "sh", str(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=outside,
            start_new_session=True,
        )
        wait(lambda: told.exists() or not self.is_up, START_TIMEOUT_S, "the instance is not up")
        self.uri = told.read_text().strip()
        self.env = {**outside, "FLUX_URI": self.uri}
        self._broker = int(self.run("getattr", "broker.pid").stdout)

    @property
    def is_up(self) -> bool:
        """Whether its brokers run."""
        return self._process.poll() is None

    def run(self, *words: str, check: bool = True, text: str = "") -> Done:
        """Run `flux` in this instance."""
        command = ["env", f"FLUX_URI={self.uri}", "flux", *words]
        return run(command, check=check, timeout_s=COMMAND_TIMEOUT_S, text=text)

    def jobs(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """Every job that lives, or all."""
        found = json.loads(self.run("jobs", "--json", *(["-a"] if ended else [])).stdout)
        return found["jobs"]

    def heal(self) -> list[dict[str, Any]]:
        """Let it go on and end what is left in it; what that was."""
        self.thaw()
        left = self.jobs()
        if left:
            self.run("cancel", "--all")
            wait(lambda: not self.jobs(), COMMAND_TIMEOUT_S, "jobs do not end", self.jobs)
        return left

    def freeze(self) -> None:
        """Make its first broker silent: commands connect to it and hang."""
        os.kill(self._broker, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its first broker go on."""
        os.kill(self._broker, signal.SIGCONT)

    def fail_node(self, rank: int) -> None:
        """End a broker without a word."""
        found = self.run("exec", f"--rank={rank}", "flux", "getattr", "broker.pid").stdout
        os.kill(int(found), signal.SIGKILL)

    def kill(self) -> None:
        """End its first broker without a word; the others follow."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._broker, signal.SIGKILL)
        self._process.wait(START_TIMEOUT_S)

    def stop(self) -> None:
        """End it, if it is there still."""
        if not self.is_up:
            self._folder.cleanup()
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()
