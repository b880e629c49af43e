"""Running `milkweed torchrun` in a folder with a job of two hosts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from programs import Client, finish

JOB = "name: spmd\non: process\nmeshes: {trainers: 2}\n"


class Runner:
    """Runs `milkweed torchrun …` in a folder with a job of two hosts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.folder = client.folder
        (self.folder / "milkweed.yaml").write_text(JOB)

    def script(self, code: str, name: str = "train.py") -> Path:
        """Write a program for ranks."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
        path.write_text(head + textwrap.dedent(code))
        return path

    def start(self, line: str, **env: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "milkweed", "torchrun", *shlex.split(line)],
            cwd=self.folder,
            env={**self.client.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str, code: int = 0, **env: str) -> tuple[str, str]:
        """Run a command to its end; what it printed on stdout and stderr."""
        program = self.start(line, **env)
        out, err = finish(program)
        assert program.returncode == code, f"exit {program.returncode}\n{out}\n{err}"
        assert "Traceback" not in err or "Error" in err
        return out, err


def ranks_of(client: Client) -> list[int]:
    """Processes that a gang of this client's jobs has started, whoever their parent is."""
    mark = f"MILKWEED_HOME={client.home}".encode()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in env and any(word.startswith(b"MILKWEED_GANG=") for word in env):
            found.append(int(name))
    return found


def server_of(client: Client, host: str) -> int:
    """The process that serves a host."""
    home = f"MILKWEED_HOME={client.home}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/comm").read_text().strip()
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words == host and home in env:
            return int(name)
    raise AssertionError(f"no process serves {host}")
