"""What is handed to sbatch: arguments, which need no quoting, and a script that starts the keepers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...worker import wire
from .. import launch
from ..launch import (
    DEFAULT_PYTHON,
    EXIT_NOT_SHARED,
    LOADER,
    render_client,
    render_enter,
    render_python,
)
from ..traces import CLIENT_LOG
from .shape import Part, Shape, fill_memory
from .text import JobRow, Mark, render_mark, render_sign
from .times import render_time_limit

_END = "MILKWEED_INVITATION"

# Settings of the batch step that a step of one task per node must not inherit.
_UNSET = (
    *("SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"),
    *("SLURM_MEM_PER_GPU", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND", "SLURM_EXACT"),
    *("SLURM_TRES_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS"),
    *("SLURM_NPROCS", "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_EXCLUSIVE"),
)
# Nor what the user's shell, or the site, has srun do otherwise: `SRUN_CPUS_PER_TASK=1` gives a keeper one CPU.
_UNSET_SRUN = r"unset $(env | sed -n 's/^\(SRUN_[A-Za-z0-9_]*\)=.*/\1/p')"

# One keeper per node, which sees all that the job has there; a node that is lost takes no other with it.
_STEP = (
    "--ntasks-per-node=1",
    "--distribution=block",
    "--overlap",
    "--mem=0",
    "--cpu-bind=none",
    "--mpi=none",
)
_SRUN = (*_STEP, "--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--label")

_WAIT = [
    "trap '' USR1 USR2",  # what is sent to programs (`--signal=B:USR1@60`) would end the script, or its waiting
    "code=0",
    'for pid in $started; do wait "$pid" || code=$?; done',
    'exit "$code"',
]
"""A job whose keepers could not start has failed, and its exit code says so."""


_OWN_LOGS = [
    'if ! [ -w "$logs" ]; then',
    "  logs=$(mktemp -dt milkweed-logs-XXXXXX)",
    """  trap 'rm -rf "$logs"' EXIT""",
    "  trap 'exit 143' TERM",
    "fi",
]
"""A first node that does not see the folder for logs keeps them while the job is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """All that a submission is made of."""

    apply_id: str
    name: str
    generation: int
    first: int
    """The number of its first component."""
    parts: tuple[Part, ...]
    whole: tuple[Shape, ...] = ()
    """What each component of the job asks for, where these parts may be added to others."""
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

    @property
    def shapes(self) -> list[Shape]:
        """All that the job asks for: of GPUs and memory, what one component says counts for the others."""
        return [*self.whole, *(part.shape for part in self.parts)]

    def part_name(self, number: int) -> str:
        """How a part is called in files: generation and component."""
        return f"{self.generation}.{self.first + number}"

    def mark(self, number: int) -> Mark:
        """What a part is found again by."""
        return Mark(self.apply_id, self.generation, self.first + number, self.name)


def render_arguments(submission: Submission) -> list[str]:
    """The arguments of sbatch; components are set apart by a colon."""
    arguments = ["sbatch", "--parsable"]
    for number, part in enumerate(submission.parts):
        memory_mb = fill_memory(part.shape, submission.shapes)
        if number:
            arguments.append(":")
        arguments += [
            f"--job-name={submission.name}",
            f"--comment={render_mark(submission.mark(number))}",
            f"--nodes={len(part.hosts)}",
            *render_shape(replace(part.shape, memory_mb=memory_mb)),
        ]
        if submission.survives:
            arguments.append("--no-kill")
        if not number:
            arguments += ["--output=/dev/null", "--input=/dev/null"]
    return arguments


def render_shape(shape: Shape) -> list[str]:
    """What one component asks for each of its hosts."""
    gpus = f"{shape.gpu_type}:{shape.gpus}" if shape.gpu_type else shape.gpus
    said = {
        "partition": shape.partition,
        "account": shape.account,
        "qos": shape.qos,
        "constraint": shape.constraint,
        "time": None if shape.time_limit_s is None else render_time_limit(shape.time_limit_s),
        "ntasks-per-node": shape.ntasks_per_node,
        "cpus-per-task": shape.cpus_per_task,
        "gpus-per-node": gpus if shape.gpus else None,
        "mem": None if shape.memory_mb is None else f"{shape.memory_mb}M",
        "tmp": None if shape.disk_mb is None else f"{shape.disk_mb}M",
    }
    arguments = [f"--{key}={value}" for key, value in said.items() if value is not None]
    return [*arguments, *(["--exclusive"] if shape.exclusive else []), *shape.arguments]


def render_script(submission: Submission) -> str:
    """The batch script: start a keeper on every node, and in batch mode the client beside them."""
    lines = [
        "#!/bin/sh",
        f"# milkweed: job {submission.name}, allocation {submission.apply_id}",
        "mask=$(umask)",  # the submitter's own, for what programs write; what is written here is closed
        "umask 077",
        f"unset {' '.join(_UNSET)}",
        _UNSET_SRUN,
        f"logs={shlex.quote(submission.logs)}",
        *_OWN_LOGS,
        # What was left by an earlier run of the job, on these nodes perhaps, says nothing of this one.
        *(f"rm -f {shlex.quote(submission.folder)}/{left}" for left in _leftovers(submission)),
        *render_python(submission.python),
        f"loader={shlex.quote(LOADER)}",
        "started=",
    ]
    for number in range(len(submission.parts)):
        lines += _render_keepers(submission, number)
    lines += _render_client(submission) if submission.client else _WAIT
    return "\n".join(lines) + "\n"


def _leftovers(submission: Submission) -> list[str]:
    """The files that tell how an earlier run of a job went, as the shell finds them."""
    names = [submission.part_name(number) for number in range(len(submission.parts))]
    ends = (
        [] if submission.first else ["exit"]
    )  # which is the first component's, where the client runs
    return [*ends, *(wire.up_file(f"{name}.*") for name in names)]


def render_visit(row: JobRow, hosts: int) -> list[str]:
    """The command that runs a step of one task per node in a job that runs already."""
    group = [f"--het-group={row.offset}"] if row.offset is not None else []
    sizes = [f"--nodes={hosts}", f"--ntasks={hosts}"]
    return ["srun", f"--jobid={row.leader}", *group, *sizes, *_STEP]


def _render_keepers(submission: Submission, number: int) -> list[str]:
    several = len(submission.parts) > 1
    count = f"$SLURM_JOB_NUM_NODES{f'_HET_GROUP_{number}' if several else ''}"
    group = [f"--het-group={number}"] if several else []
    group += ["--no-kill"] if submission.survives else []
    words = ["srun", *group, f'--nodes="{count}"', f'--ntasks="{count}"', *_SRUN]
    invitation = json.dumps(make_invitation(submission, number))
    log = f'"$logs/{part_log(submission.part_name(number))}"'
    return [
        f"""{" ".join(words)} "$python" -c "$loader" "$mask" >{log} 2>&1 <<'{_END}' &""",
        invitation,
        _END,
        'started="$started $!"',
    ]


def part_log(part: str) -> str:
    """The file for what Slurm itself says of a part's tasks; written anew when a job starts again.

    No host has one of that name: theirs are `<mesh>.<rank>.log`, and a mesh has no dot in its name.
    """
    return f"part.{part}.log"


def make_invitation(submission: Submission, number: int) -> Mapping[str, Any]:
    """What Slurm carries to every node: no secret is in it."""
    return launch.make_invitation(
        apply_id=submission.apply_id,
        part=submission.part_name(number),
        folder=submission.folder,
        port=submission.port,
        bells=submission.bells,
        keep=submission.keep,
        own={
            "index_env": "SLURM_PROCID",
            "node_env": "SLURMD_NODENAME",
            "restart_env": "SLURM_RESTART_COUNT",
            # When the lease is over the script ends by itself, unless its node was lost.
            "end": ["scancel", "$SLURM_JOB_ID"],
        },
    )


def _render_client(submission: Submission) -> list[str]:
    """When the client ends, so does the job, with its exit code; Slurm ends the keepers."""
    folder = shlex.quote(submission.folder)
    return [
        "trap : USR1 USR2",  # not ignored: a client, too, could not trap them then
        f"[ -d {folder} ] || exit {EXIT_NOT_SHARED}",
        f'{render_enter(submission.cwd)} >>"$logs/{CLIENT_LOG}" 2>&1',
        f"MILKWEED_STATE={shlex.quote(submission.state_path)}",
        "export MILKWEED_STATE",
        f'(umask "$mask"; exec {render_client(submission.client)}) </dev/null >>"$logs/{CLIENT_LOG}" 2>&1',
        "code=$?",
        f"printf '%s\\n' \"$code\" >{folder}/exit",
        _render_release(submission),
        'exit "$code"',
    ]


def _render_release(submission: Submission) -> str:
    """Cancel what the client has added: those are jobs of their own, which would wait for another client."""
    ours = shlex.quote(render_sign(submission.apply_id))
    return (
        'squeue -h -a -u "$(id -u)" -o %A:%k 2>/dev/null | '
        "while IFS=: read -r job mark version id generation component name; do "
        f'if [ "$mark:$version:$id" = {ours} ] && [ "$component" -ge {len(submission.parts)} ]; '
        'then scancel "$job"; fi; done'
    )
