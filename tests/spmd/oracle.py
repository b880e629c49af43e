"""Launchers that stay warm: one process each, which forks for every run. Importing torch takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

import pytest

LAB = "~/.cache/milkweed-lab"
VERSION = "2.13.0"

TORCHRUN = "import torch; from torch.distributed.run import main"
MILKWEED = """
import milkweed.backends.process, milkweed.cli.choose, milkweed.cli.commands.run, milkweed.job.load
import milkweed.job.process, milkweed.jobfile, milkweed.spmd.run
from milkweed.cli import main as command
from milkweed.cli.app import app
main = lambda argv: command(['torchrun', *argv])
"""
# What the launcher itself says goes to sys.stderr, which here is another file than the one that ranks may inherit.
PROGRAM = r"""
import json, os, select, signal, sys, traceback
answers = os.fdopen(os.dup(1), 'w', buffering=1)
sys.stderr = os.fdopen(os.dup(2), 'w', buffering=1)
os.set_inheritable(sys.stderr.fileno(), False)
sys.path[0] = os.path.dirname(sys.executable)  # where a program that is started by its name is
before = dict(os.environ)
exec(sys.argv[1])
added = {key: value for key, value in os.environ.items() if before.get(key) != value}
print('ready', file=answers)

def become(asked):
    os.chdir(asked['cwd'])
    files = {'stdin': 0, asked['out']: 1, asked['err']: 2, asked['log']: sys.stderr.fileno()}
    for path, fd in files.items():
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, fd, inheritable=fd < 3)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked['env'] | added)
    signal.signal(signal.SIGINT, signal.default_int_handler)

def launch(asked):
    code = 1
    try:
        become(asked)
        main(asked['argv'])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def reap(codes):
    while codes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        path = codes.pop(pid)
        with open(path + '.new', 'w') as file:
            file.write(str(os.waitstatus_to_exitcode(status)))
        os.replace(path + '.new', path)

codes = {}
while True:
    if select.select([0], [], [], 0.01)[0]:
        line = sys.stdin.buffer.raw.readline()
        if not line:
            break
        asked = json.loads(line)
        pid = os.fork() or launch(asked)
        codes[pid] = asked['code']
        print(pid, file=answers)
    reap(codes)
for pid in codes:
    os.kill(pid, signal.SIGKILL)
"""


def find_venv() -> Path:
    """The virtual environment that should have torch: the person's, else the lab's."""
    given = os.environ.get("MILKWEED_TORCH")
    lab = os.environ.get("MILKWEED_LAB") or LAB
    path = Path(given or f"{lab}/torch-{VERSION}").expanduser()
    return path.parents[1] if path.name.startswith("python") else path


def why_missing() -> str:
    """Why there is no torchrun to compare with; empty when there is."""
    venv = find_venv()
    packages = venv.glob(f"lib/python*/site-packages/torch-{VERSION}*.dist-info")
    if any(packages) and os.access(venv / "bin/torchrun", os.X_OK):
        return ""
    return f"no torch {VERSION} in {venv}: `tests/labs/prepare.sh torch`, or set MILKWEED_TORCH"


def lack(reason: str) -> NoReturn:
    """Skip a test that has no torchrun; where it was asked for, green would be a lie."""
    if os.environ.get("CI") == "true" and os.environ.get("TORCH", "1") != "0":
        pytest.fail(f"{reason}; TORCH=0 says that this is meant", pytrace=False)
    pytest.skip(reason)


@dataclass
class Warm:
    """A launcher that has imported what it needs."""

    python: str
    imports: str
    env: Mapping[str, str]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Start it; it is ready when it is first asked for something."""
        self._process = subprocess.Popen(
            [self.python, "-c", PROGRAM, self.imports],
            env={
                **self.env,
                "TORCH_CPP_LOG_LEVEL": "FATAL",
            },  # torchrun's own, where ranks' errors go
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and whatever it still runs."""
        assert self._process is not None
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()

    def wait_ready(self) -> None:
        """Wait until it has imported everything."""
        assert self._answer() == "ready\n"

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], folder: Path) -> int:
        """Start a run whose output goes to `out`, `err` and `log`; its exit code will be in `code`."""
        paths = {name: str(folder / name) for name in ("out", "err", "log", "code")}
        asked = {"argv": list(argv), "cwd": str(cwd), "env": dict(env), **paths}
        assert self._process is not None
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            return int(self._answer())
