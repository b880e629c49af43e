"""The engine's side of forking a proc: the launcher it runs, read through /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import wire


@dataclass(eq=False, repr=False)
class Launcher:
    """A launcher that waits for its proc to end."""

    pid: int
    pidfd: int
    env: dict[str, str]
    cwd: str
    reply_fd: int
    reply_path: Path

    def finish(self, code: int) -> None:
        """Pass on how the proc ended; `s9` stands for signal 9."""
        word = f"s{-code}" if code < 0 else str(code)
        if self.reply_fd >= 0:
            os.write(self.reply_fd, f"{word}\n".encode())

    def close(self) -> None:
        """Forget a launcher that is gone; until then the fifo stays open, or the word could be lost."""
        os.close(self.reply_fd)
        self.reply_fd = -1
        os.close(self.pidfd)
        self.reply_path.unlink(missing_ok=True)


def renew(
    env: Mapping[str, str], before: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, str]:
    """What a proc has in its environment: what its host's server was started with is old, its client's is not."""
    kept = {key: value for key, value in env.items() if before.get(key) != value or key in now}
    fresh = {key: value for key, value in now.items() if env.get(key) == before.get(key)}
    return {**kept, **fresh}


def read_launcher(pid: int, run: Path) -> Launcher:
    """Read a launcher's environment and folder; OSError or ValueError when it is not one of ours."""
    pidfd = os.pidfd_open(pid)
    try:
        env = _read_environment(pid, run)
        reply_path = run / wire.PROC_FOLDER / str(pid)
        # Opened for both, so that opening does not wait and writing cannot fail with a launcher that is gone.
        reply_fd = os.open(reply_path, os.O_RDWR)
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except (OSError, ValueError):
        os.close(pidfd)
        raise
    return Launcher(pid, pidfd, env, cwd, reply_fd, reply_path)


def _read_environment(pid: int, run: Path) -> dict[str, str]:
    data = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (item.split(b"=", 1) for item in data.split(b"\0") if b"=" in item)
    env = {os.fsdecode(key): os.fsdecode(value) for key, value in pairs}
    if env.get(wire.RUN_ENV) != str(run):
        raise ValueError(f"process {pid} is not a launcher of {run}")
    return env
