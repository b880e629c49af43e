"""One command line under both launchers: torchrun, and milkweed on the hosts of a job of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from programs import wait_until
from spmd.oracle import MILKWEED, TORCHRUN, Warm, find_venv

HERE = Path(__file__).parent
JOB = "name: spmd\non: process\nmeshes: {trainers: 2}\n"
HEAD = "import os, signal, sys, time\nimport probe\nprobe.note(globals())\n"
MARK = "SPMD_SUITE"
"""In the environment of everything that this suite starts."""
TIMEOUT_S = 90
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
DEFAULT_PORT = 29500
"""Where torchruns meet that were told no port."""
PORT_LOCK = Path(tempfile.gettempdir(), f"milkweed-spmd-{os.getuid()}.{DEFAULT_PORT}")
TOOL = '#!/bin/sh\necho tool $RANK of $WORLD_SIZE in $LOCAL_RANK: "$@"\n'


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command line, with what it needs."""

    name: str
    line: str
    """`{port}` is a free port, `{node}` the node's number, `{folder}` the working folder."""
    script: str = "probe.say(f'rank {probe.RANK}')"
    """The end of `train.py`; before it, every rank writes down what it is."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the launcher."""
    code: int = 0
    """How torchrun ends; -1: in any way."""
    nodes: int = 1
    """So many torchruns."""
    signal: str = ""
    """Sent to the launcher when as many ranks as `ranks` says have met."""
    ranks: int = 0
    """How many ranks meet, so that time is counted from there on; 0: none do."""
    torch: bool = False
    """Whether ranks need torch."""
    prefix: str = r"\[(?!rank)[a-z]+\d+\]:"
    """What stands before a line of a rank that is not torchrun's own output."""
    told: str = ""
    """What the launcher itself should say."""
    within_s: float = 0
    """How soon both must have ended after ranks have met, or after the start, if that is looked at."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of a run."""

    folder: Path
    code: int
    out: str
    err: str
    log: str
    """What the launcher itself said."""
    seconds: float


def write_files(case: Case, folder: Path) -> None:
    """Lay out the folder that a run starts in."""
    folder.mkdir(parents=True)
    (folder / "stdin").touch()
    (folder / "train.py").write_text(HEAD + textwrap.dedent(case.script))
    for name, text in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(0o755)


def base_environment(root: Path) -> dict[str, str]:
    """What both launchers, and the hosts, have: little, and nothing that a launcher reads."""
    lib = root / "lib"
    lib.mkdir()
    shutil.copy(HERE / "probe.py", lib)
    (root / "tmp").mkdir()
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(lib),
        "PYTHON_EXEC": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(root / "tmp"),
        "MILKWEED_HOME": str(root / "home"),
        MARK: str(root),
    }


def free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to nobody who asks for any."""
    first = int(LOCAL_PORTS.read_text().split()[0])
    while True:
        port = random.randrange(10_000, max(first, 20_000))
        if port != DEFAULT_PORT and _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def hold_default_port() -> Iterator[None]:
    """Let no other run of this suite on this machine use torchrun's own port, and wait until it is free."""
    with PORT_LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until(lambda: _is_free(DEFAULT_PORT), TIMEOUT_S)
        yield


@dataclass
class Sides:
    """Both launchers, ready to run."""

    root: Path
    env: dict[str, str]
    warm: Mapping[str, Warm]
    _ports: dict[str, int] = field(default_factory=dict[str, int])

    def argv(self, case: Case, folder: Path, node: int = 0) -> list[str]:
        """The words of a command line."""
        port = self._ports.setdefault(case.name, free_port())
        line = case.line.replace("{port}", str(port)).replace("{node}", str(node))
        return [word.replace("{folder}", str(folder)) for word in shlex.split(line)]

    def environment(self, case: Case) -> dict[str, str]:
        """What a launcher has."""
        python = {"PYTHON_EXEC": str(find_venv() / "bin/python")} if case.torch else {}
        return {**self.env, **python, **case.env}

    def run(self, side: str, case: Case) -> Ran:
        """Run it under `torchrun` or `milkweed`; of a torchrun, one for each node."""
        default = side == "torchrun" and case.nodes > 1 and "{port}" not in case.line
        with hold_default_port() if default else contextlib.nullcontext():
            return self._run(side, case)

    def _run(self, side: str, case: Case) -> Ran:
        folder = self._write(side, case)
        torchrun = side == "torchrun"
        env = self.environment(case)
        outputs = [self._outputs(side, case, node) for node in range(case.nodes if torchrun else 1)]
        started_s = time.monotonic()
        pids = [
            self.warm[side].start(self.argv(case, folder, node), folder, env, output)
            for node, output in enumerate(outputs)
        ]
        if case.ranks:
            wait_until(lambda: len([*folder.glob("up-*")]) == case.ranks, TIMEOUT_S)
            started_s = time.monotonic()
        if case.signal:
            os.kill(pids[0], signal.Signals[case.signal])
        for output in outputs:
            wait_until((output / "code").exists, TIMEOUT_S)
        return _ran(folder, outputs, started_s)

    def run_program(self, side: str, case: Case) -> Ran:
        """Run it as people do, by a program of its own."""
        milkweed = [sys.executable, "-m", "milkweed", "torchrun"]
        command = [find_venv() / "bin/torchrun"] if side == "torchrun" else milkweed
        folder = self._write(f"{side} program", case)
        output = self._outputs(f"{side} program", case)
        started_s = time.monotonic()
        with (output / "out").open("wb") as out, (output / "log").open("wb") as log:
            done = subprocess.run(
                [*command, *self.argv(case, folder)],
                check=False,
                cwd=folder,
                env=self.environment(case),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                timeout=TIMEOUT_S,
            )
        (output / "code").write_text(str(done.returncode))
        return _ran(folder, [output], started_s)

    def _write(self, side: str, case: Case) -> Path:
        folder = self.root / side / case.name
        write_files(case, folder)
        return folder

    def _outputs(self, side: str, case: Case, node: int = 0) -> Path:
        path = self.root / "outputs" / side / case.name / str(node)
        path.mkdir(parents=True)
        return path


def _ran(folder: Path, outputs: Sequence[Path], started_s: float) -> Ran:
    def read(name: str) -> str:
        paths = [output / name for output in outputs]
        return "".join(
            path.read_bytes().decode(errors="replace") for path in paths if path.exists()
        )

    codes = {(output / "code").read_text() for output in outputs}
    return Ran(
        folder=folder,
        code=max(map(int, codes)),
        out=read("out"),
        err=read("err"),
        log=read("log"),
        seconds=time.monotonic() - started_s,
    )


@contextlib.contextmanager
def open_sides(root: Path) -> Iterator[Sides]:
    """Both launchers, and a job of two hosts; nothing of them is left at the end."""
    env = base_environment(root)
    (root / "milkweed.yaml").write_text(JOB)
    milkweed = [sys.executable, "-m", "milkweed"]
    try:
        with (
            Warm(str(find_venv() / "bin/python"), TORCHRUN, env) as torchrun,
            Warm(sys.executable, MILKWEED, env) as ours,
        ):
            _do([*milkweed, "apply"], root, env)
            torchrun.wait_ready()
            ours.wait_ready()
            yield Sides(root, env, {"torchrun": torchrun, "milkweed": ours})
            _do([*milkweed, "kill"], root, env)
    finally:
        left = end_marked(root)
    assert not left, f"still there: {left}"


def _do(command: Sequence[str], root: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def end_marked(root: Path) -> list[str]:
    """End whatever this suite has started and left, and name it."""
    mark = f"{MARK}={root}".encode()
    found: list[str] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if mark in env:
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                os.kill(int(name), signal.SIGKILL)
                found.append(words.decode(errors="replace"))
        except OSError:
            continue
    return found
