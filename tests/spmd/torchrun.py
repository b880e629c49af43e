"""The real torchrun in a process of its own, asked over its pipes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from spmd.oracle import find_venv

Env = Mapping[str, str]

PROGRAM = r"""
import contextlib, io, json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint

def launch(argv):
    seen = {}
    run.elastic_launch = lambda config, entrypoint: lambda *args: seen.update(
        nodes=[config.min_nodes, config.max_nodes], nproc=config.nproc_per_node, run_id=config.run_id,
        backend=config.rdzv_backend, endpoint=config.rdzv_endpoint, role=config.role,
        restarts=config.max_restarts, shutdown=config.shutdown_timeout,
        form="path" if callable(entrypoint) else "command" if entrypoint != sys.executable
        else "module" if args[1] == "-m" else "script", args=args)
    run.run(run.parse_args(argv))
    return seen

CALLS = {
    "about": lambda _: {"version": sys.version_info[:2],
                        "options": list(run.get_args_parser()._option_string_actions)},
    "parse": lambda argv: vars(run.parse_args(argv)),
    "launch": launch,
    "streams": lambda text: Std.from_str(text),
    "conf": lambda text: list(_parse_rendezvous_config(text).items()),
    "endpoint": lambda text: parse_rendezvous_endpoint(text, -1),
}
for line in sys.stdin:
    call, value, env = json.loads(line)
    before = dict(os.environ)
    os.environ.update(env)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            answer = {"value": CALLS[call](value)}
    except SystemExit as exit:
        answer = {"error": "exit"} if exit.code else {"help": True}
    except Exception as error:
        answer = {"error": repr(error)}
    os.environ.clear()
    os.environ.update(before)
    print(json.dumps(answer), file=answers, flush=True)
"""


class Reference:
    """What torchrun reads and would do."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, call: str, value: object, env: Env | None = None) -> dict[str, Any]:
        """Its answer: a value, help, or an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([call, value, env or {}]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def find_python() -> str:
    """The Python that has torch."""
    return str(find_venv() / "bin/python")


@contextlib.contextmanager
def open_reference(python: str) -> Iterator[Reference]:
    """Start it without any variable that torchrun would read."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TORCH"))}
    with (
        tempfile.TemporaryFile("w") as errors,
        subprocess.Popen(
            [python, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=env,
        ) as process,
    ):
        try:
            yield Reference(process)
        finally:
            process.kill()
