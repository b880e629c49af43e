"""How a keeper is launched by a scheduler, on a machine that may see none of this one's files."""

from __future__ import annotations

import shlex
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..worker.enrol import BRIDGE
from ..worker.wire import CLOSED_PATH
from .packing import pack_worker

DEFAULT_PYTHON = "python"
EXIT_NOT_SHARED = 78
"""The exit code of a batch client whose node does not see the job's folder: EX_CONFIG of sysexits.h."""

# Reads the invitation that a scheduler passes to every task, and hands over to the worker: the one of the client
# where the machine sees its files, else the copy that came along. Its argument is the umask of programs.
LOADER = f"""
import gc
gc.disable()
{CLOSED_PATH}
import json, os
invitation = {{**json.load(sys.stdin), "umask": sys.argv[1]}}
path = invitation["source"]
if not os.path.isfile(path + "/milkweed/worker/remote.py"):
    import base64, tempfile
    fd, path = tempfile.mkstemp(suffix=".zip", prefix="milkweed-")
    os.write(fd, base64.b64decode(invitation["worker"]))
    os.close(fd)
sys.path.insert(0, path)
from milkweed.worker.remote import main
if path != invitation["source"]:
    os.unlink(path)
code = main(invitation)
sys.stderr.flush()
os._exit(code)
""".strip()


def render_python(python: str) -> list[str]:
    """`python` is the client's own where a machine has it: a virtual environment need not be active."""
    if python != DEFAULT_PYTHON:
        return [f"python={shlex.quote(python)}"]
    own = shlex.quote(sys.executable)
    return [f"python={own}", f'[ -x "$python" ] || python={DEFAULT_PYTHON}']


def render_client(command: Sequence[str]) -> str:
    """A batch client's command line for a script that has `render_python`: its Python is that of the hosts."""
    first, *rest = command
    own = first == sys.executable
    return " ".join(['"$python"' if own else shlex.quote(first), *map(shlex.quote, rest)])


def render_enter(folder: str) -> str:
    """Go where a batch client begins, and say on which machine that cannot be done."""
    sorry = (
        'echo "milkweed: the client begins in a folder that its machine $(uname -n) cannot enter"'
    )
    return f"{{ cd {shlex.quote(folder)} || {{ {sorry}; exit 1; }}; }}"


def render_bridge(python: str) -> list[str]:
    """The command that speaks with a machine's keeper for the job's owner."""
    choose = "; ".join([*render_python(python), 'exec "$python" -c "$1"'])
    return ["/bin/sh", "-c", choose, "sh", BRIDGE]


def make_invitation(
    *,
    apply_id: str,
    part: str,
    folder: str,
    port: int,
    bells: Sequence[Sequence[str | int]],
    keep: bool,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """What a scheduler carries to every machine of a part, with its own words: no secret is in it."""
    return {
        "apply_id": apply_id,
        "part": part,
        "folder": folder,
        "port": port,
        "bells": bells,
        "keep": keep,
        **own,
        "source": str(Path(__file__).parents[2]),
        "worker": b64encode(pack_worker()).decode(),
    }
