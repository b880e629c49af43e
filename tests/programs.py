"""Client programs as users run them: scripts in a folder of their own, started as processes."""

from __future__ import annotations

import copy
import os
import re
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 90
LABS = Path(os.environ.get("MILKWEED_LAB", Path.home() / ".cache" / "milkweed-lab"))
"""Where `make labs` has put what tests need."""
PREAMBLE = """
import os, sys, time
from milkweed.job import *
from milkweed.actor import Actor, endpoint

class Probe(Actor):
    @endpoint
    def pid(self): return os.getpid()
    @endpoint
    def say(self, text): print(text)
    @endpoint
    def variable(self, name): return os.environ.get(name)
    @endpoint
    def slow(self, seconds): time.sleep(seconds); return os.getpid()

def values(mesh): return [value for _point, value in mesh]
"""


class Client:
    """Writes and runs client programs in one folder, with records of its own."""

    timeout_s: float = TIMEOUT_S
    """How long a program may run."""
    preamble: str = PREAMBLE
    """What stands before each program."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "MILKWEED_HOME": str(home)}
        self.home = home
        self._count = 0
        self._started: list[subprocess.Popen[str]] = []

    def write(self, code: str, name: str = "") -> Path:
        """Write a program; the common actor stands before it."""
        self._count += 1
        path = self.folder / (name or f"client{self._count}.py")
        path.write_text(self.preamble + textwrap.dedent(code))
        return path

    def start(self, code: str, **env: str) -> subprocess.Popen[str]:
        """Start a program and leave it running."""
        program = subprocess.Popen(
            self.command(self.write(code)),
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(program)
        return program

    def command(self, path: Path) -> list[str]:
        """What runs a program."""
        return [sys.executable, str(path)]

    def beside(self, name: str) -> Client:
        """The same in a folder of its own, so that both can have a job; it ends with this one."""
        made = copy.copy(self)
        made.folder = self.folder / name
        made.folder.mkdir()
        return made

    def end(self) -> None:
        """End the programs that a test left running when it failed: the next one is not to suffer from them."""
        for program in self._started:
            if program.poll() is None:
                program.kill()
                program.communicate()

    def run(self, code: str, *, code_expected: int = 0, **env: str) -> str:
        """Run a program to its end and return what it printed."""
        program = self.start(code, **env)
        out, err = finish(program, self.timeout_s)
        assert program.returncode == code_expected, f"exit {program.returncode}\n{out}\n{err}"
        return out + err

    def kill(self) -> None:
        """End the recorded job as the next program would; from here, for that is quicker."""
        from milkweed.job import job_load

        assert os.environ["MILKWEED_HOME"] == self.env["MILKWEED_HOME"]
        job_load(self.folder / ".milkweed" / "job.json").kill()


def finish(program: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> tuple[str, str]:
    """What a program printed until its end; one that does not end is killed, and shown."""
    try:
        return program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        program.kill()
        out, err = program.communicate()
        raise AssertionError(f"it did not end within {timeout_s:g} s:\n{out}\n{err}") from None


def end_everything(made: Client) -> None:
    from milkweed import registry
    from milkweed.backends import load_backend

    for entry in list(registry.load_entries()):
        backend = load_backend(entry.backend if entry.backend != "hooks" else "process")
        handle = backend.find(entry.apply_id)
        if handle is not None:
            backend.cancel(handle)
        registry.remove_entry(entry.apply_id)
    # Whoever forgot the last one removes folder after folder.
    wait_until(lambda: not made.home.exists())


def session_members(leader: int) -> list[int]:
    """All processes of a keeper's session."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != b"Z":
                found.append(int(name))
    return found


def wait_until(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something that must become true."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not become true"
        time.sleep(0.02)


def read_number(program: subprocess.Popen[str], word: str) -> int:
    """Read a program's output up to the line `word NUMBER`."""
    while not (match := re.match(rf"{word} (\d+)", read_line(program))):
        pass
    return int(match[1])


def read_until(program: subprocess.Popen[str], word: str, *, err: bool = False) -> str:
    """Read a program's output, or what it tells people, up to a line with that word; what was read."""
    lines: list[str] = []
    while word not in "".join(lines[-1:]):
        lines.append(read_line(program, err=err))
    return "".join(lines)


def read_line(program: subprocess.Popen[str], *, err: bool = False) -> str:
    """Read one line. Byte by byte: what would be read with it is missing from what `finish` returns."""
    stream = program.stderr if err else program.stdout
    assert stream is not None
    line, until_s = b"", time.monotonic() + TIMEOUT_S
    while not line.endswith(b"\n"):
        ready = select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]
        byte = os.read(stream.fileno(), 1) if ready else b""
        if not byte:
            program.kill()
            raise AssertionError(f"no more lines: {line!r} {program.communicate()}")
        line += byte
    return line.decode()
