"""The jobspec that is handed to Flux: it asks for nodes, and starts a keeper on each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...registry import HOME_ENV
from .. import launch
from ..launch import (
    DEFAULT_PYTHON,
    EXIT_NOT_SHARED,
    LOADER,
    render_client,
    render_enter,
    render_python,
)
from ..marks import Mark
from ..traces import CLIENT_LOG
from .shape import Part, Shape
from .text import render_name

INVITATION = "milkweed.json"
"""The file with the invitation: Flux puts it into the job's own folder on every node."""
_SLOT = "host"
_KEEPER = f'"$python" -c "$1" "$mask" <"$FLUX_JOB_TMPDIR/{INVITATION}"'
# By itself Flux ends a job with any of its nodes. Its own instances tell it so, too, and there is no other way to.
_SURVIVE = """
import sys
import flux
from flux.job import JobID
asked = {"id": JobID(sys.argv[1]), "ranks": "0"}
flux.Flux().rpc("job-exec.critical-ranks", asked).get()
""".strip()
_NOT_OURS = ("FLUX_", "MILKWEED_", "SLURM_", "SLURMD_", "PMI_", "PMIX_")
"""Variables that tell a program where it runs itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """All that a submission is made of."""

    apply_id: str
    name: str
    parts: tuple[Part, ...]
    folder: str
    logs: str
    python: str = DEFAULT_PYTHON
    client: tuple[str, ...] = ()
    """In batch mode, the command line of the client."""
    state_path: str = ""
    cwd: str = "/"
    port: int = 22222
    bells: Sequence[Sequence[str | int]] = ()
    survives: bool = True
    """Whether the others stay when a node fails."""
    keep: bool = True
    """Whether hosts wait for their first client however long it takes to come."""

    def part_name(self, number: int) -> str:
        """How a part is called in files: generation and component."""
        return f"0.{number}"


def render_jobspec(
    submission: Submission,
    number: int,
    *,
    environment: Mapping[str, str],
    others: Sequence[int] = (),
) -> dict[str, Any]:
    """The jobspec of one component; `others` are the jobs that end with a batch client."""
    part = submission.parts[number]
    mark = Mark(submission.apply_id, 0, number, submission.name)
    return {
        "version": 1,
        "resources": render_resources(part.shape, len(part.hosts)),
        "tasks": [
            {
                "command": _render_command(submission, number, others),
                "slot": _SLOT,
                "count": {"per_slot": 1},
            }
        ],
        "attributes": {
            "system": {
                **_render_shape(part.shape),
                "cwd": "/",  # keepers go where the job was declared, on nodes that have the folder
                "environment": dict(environment),
                "job": {"name": render_name(mark)},
                "shell": {"options": _render_options()},
                "files": {INVITATION: _render_invitation(submission, number)},
            }
        },
    }


def render_resources(shape: Shape, hosts: int) -> list[dict[str, Any]]:
    """A node for each host, and on it what the host needs."""
    inside: list[dict[str, Any]] = [{"type": "core", "count": shape.cores or 1}]
    if shape.gpus:
        inside.append({"type": "gpu", "count": shape.gpus})
    slot = {"type": "slot", "count": 1, "label": _SLOT, "with": inside}
    node: dict[str, Any] = {"type": "node", "count": hosts, "with": [slot]}
    return [{**node, "exclusive": True} if shape.exclusive else node]


def _render_shape(shape: Shape) -> dict[str, Any]:
    said = {
        "duration": shape.time_limit_s or 0,
        "queue": shape.queue,
        "bank": shape.bank,
        "constraints": {"properties": list(shape.properties)} if shape.properties else None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _render_options() -> dict[str, Any]:
    """One that is lost takes no other with it, and each may use all that the job has on its node."""
    return {"exit-timeout": "none", "cpu-affinity": "off"}


def _render_invitation(submission: Submission, number: int) -> dict[str, Any]:
    text = json.dumps(make_invitation(submission, number))
    return {"mode": 0o100600, "encoding": "utf-8", "data": text}


def make_invitation(submission: Submission, number: int) -> dict[str, Any]:
    """What Flux carries to every node: no secret is in it."""
    return launch.make_invitation(
        apply_id=submission.apply_id,
        part=submission.part_name(number),
        folder=submission.folder,
        port=submission.port,
        bells=submission.bells,
        keep=submission.keep,
        own={
            "index_env": "FLUX_TASK_RANK",
            "node_env": "",  # Flux has no variable for it: nodes are called as they call themselves
            "restart_env": "",
            "tied": True,  # nobody else ends it when its instance is gone
            "end": ["flux", "cancel", "--message=its lease is over", "$FLUX_JOB_ID"],
        },
    )


def make_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job takes along, as those of `flux submit` do: not where this program runs itself."""
    return {
        key: value
        for key, value in environ.items()
        if (key == HOME_ENV or not key.startswith(_NOT_OURS)) and _is_text(key + value)
    }


def _is_text(value: str) -> bool:
    """Whether it can be sent: bytes that are no text come in as halves of characters."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _render_command(submission: Submission, number: int, others: Sequence[int]) -> list[str]:
    lines = ["mask=$(umask)", "umask 077", *render_python(submission.python)]
    survives = submission.survives and len(submission.parts[number].hosts) > 1
    if survives:
        tell = 'flux python -c "$2" "$FLUX_JOB_ID" >/dev/null 2>&1 </dev/null'
        lines.append(f'[ "$FLUX_TASK_RANK" != 0 ] || {tell} &')
    if submission.client and number == 0:
        lines += _render_client(submission, others)
    lines.append(f"exec {_KEEPER}")
    words = ["/bin/sh", "-c", "\n".join(lines), "milkweed", LOADER]
    return [*words, _SURVIVE] if survives else words


def _render_client(submission: Submission, others: Sequence[int]) -> list[str]:
    """The first task has the client beside its keeper; when it ends, so does the job, with its exit code."""
    folder = shlex.quote(submission.folder)
    cancel = [f"flux cancel {' '.join(map(str, others))}"] if others else []
    return [
        'if [ "$FLUX_TASK_RANK" = 0 ]; then',
        f"rm -f {folder}/exit",
        "(",
        f"[ -d {folder} ] || exit {EXIT_NOT_SHARED}",
        f"MILKWEED_STATE={shlex.quote(submission.state_path)}",
        "export MILKWEED_STATE",
        f"exec >>{shlex.quote(submission.logs)}/{CLIENT_LOG} 2>&1 </dev/null",
        render_enter(submission.cwd),
        'umask "$mask"',
        f"exec {render_client(submission.client)}",
        ") &",
        "client=$!",
        f"{_KEEPER} &",
        "keeper=$!",
        "stopped=",
        """trap 'stopped=1; kill -TERM "$client" "$keeper"' TERM""",
        'wait "$client"',
        "code=$?",
        f"""[ -n "$stopped" ] || [ ! -d {folder} ] || echo "$code" >{folder}/exit""",
        "trap '' TERM",
        *cancel,
        'flux job kill --signal=TERM "$FLUX_JOB_ID"',
        'kill -TERM "$keeper" 2>/dev/null',
        'wait "$keeper"',
        'exit "$code"',
        "fi",
    ]
