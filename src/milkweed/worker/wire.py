"""The words a client and a keeper exchange: one JSON object a line."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 8 * 2**20

START_FILE = "start.json"
KEEPER_FILE = "keeper.json"
ENDED_FILE = "ended.json"
CONTROL_SOCKET = "ctl"
FORK_FIFO = "fork"
PROC_FOLDER = "p"
SOCKET_FOLDER = "s"
LOG_FOLDER = "logs"
TLS_FOLDER = "tls"
LOCK_FILE = "lock"
STEPS_FILE = "steps.json"

PROGRAM_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean something to programs only: keepers, hosts and procs ignore them, commands need not."""

RUN_ENV = "MILKWEED_RUN"
HOST_ENV = "MILKWEED_HOST"
CLIENT_ENV = "MILKWEED_CLIENT"
RANK_ENV = "MILKWEED_RANK"
PATH_ENV = "MILKWEED_PATH"
STATE_ENV = "MILKWEED_STATE"

# The engine starts a proc by running a command. This one asks the keeper to fork the proc instead, hands
# it its own environment and working folder through /proc, and passes on how the proc ended. A keeper that
# is gone closes the fifo, which reads as exit code 1.
LAUNCHER = (
    'f="$MILKWEED_RUN/p/$$"; mkfifo -m 600 "$f" && echo "$$" >"$MILKWEED_RUN/fork" && read -r c <"$f"; '
    'case "$c" in s*) kill -"${c#s}" $$ ;; esac; exit "${c:-1}"'
)

# What begins every program that is started by `python -c`: Python would look for its own modules in the current
# folder first, and run what somebody else put there. An empty word of PYTHONPATH is that folder, too, and Python
# has made a whole path of it by now. One that is named in full is meant, and one that a package was installed from
# comes after Python's own; where it is the empty word's, too, it cannot be told apart, and goes. Here nothing may
# be imported but what Python imports by itself.
CLOSED_PATH = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import os
try:
    here, said = os.getcwd(), os.environ.get("PYTHONPATH")
    said = [word for word in said.split(os.pathsep) if os.path.abspath(word) == here] if said else []
    if said and not any(map(os.path.isabs, said)):
        sys.path[:] = [folder for folder in sys.path if folder != here]
except OSError:
    pass
""".strip()


def run_prefix(apply_id: str) -> str:
    """How the names of a job's run folders begin on machines that it has to itself."""
    return apply_id.replace("-", "")[:16]


def part_file(part: str) -> str:
    """The file in a job's folder that tells the hosts of one part what they are."""
    return f"part-{part}.json"


def up_file(share: str) -> str:
    """The file by which a keeper tells that it is there: of the part's host, whichever task keeps it."""
    return f"up-{share}"


def met_file(part: str) -> str:
    """The file by which the hosts of a part tell that a client was there: they waited long enough for one."""
    return f"met-{part}"


def engine_environment(folder: str) -> dict[str, str]:
    """Tell the engine's `tls` transport where the files are: paths, never secrets."""
    names = {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}
    return {f"HYPERACTOR_TLS_{word}": f"{folder}/{name}" for word, name in names.items()}


def encode(message: Mapping[str, Any]) -> bytes:
    """Write one message as a line; bytes are sent as base64, which a line takes as it is."""
    if isinstance(data := message.get("data"), bytes):
        rest = json.dumps({**message, "data": ""}, separators=(",", ":")).encode()
        head, _, tail = rest.rpartition(b'"data":""')
        return b"".join([head, b'"data":"', base64.b64encode(data), b'"', tail, b"\n"])
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read one line; ValueError when it is not a message."""
    message: dict[str, Any] = json.loads(line)
    if message.__class__ is not dict:
        raise ValueError("a message is a JSON object")
    return message
