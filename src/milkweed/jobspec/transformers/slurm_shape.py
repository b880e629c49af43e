"""What work asks of Slurm: slots become the tasks of an allocation, and cores, GPUs and tasks stay apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...backends.slurm.check import Component
from ...backends.slurm.times import render_time_limit
from ...errors import SpecError
from ...options import Data
from ..graph import Shape, Work
from .requirements import read_machines

MINUTE_S = 60
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@+-]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+/-]")
OWN_STEP = (
    *("--overlap", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none"),
    *("--kill-on-bad-exit=1", "--quiet"),
)
"""How srun starts what is ours: beside the work, and without taking anything from it."""
_WORK_STEP = ("--mem=0", "--kill-on-bad-exit=0", "--wait=0", "--quiet")
"""How srun starts work: tasks end by themselves, whatever becomes of others, and steps share the memory."""


def render_allocation(shape: Shape) -> list[str]:
    """The arguments of sbatch for a shape: a slot is a task of the allocation."""
    found = [f"--ntasks={shape.slots}", f"--cpus-per-task={shape.cores_per_slot}"]
    if shape.nodes is not None:
        found = [f"--nodes={shape.nodes}", f"--ntasks-per-node={shape.slots_per_node}", *found]
    if shape.gpus:
        found.append(_render_gpus(shape))
    # A core is a core: without it Slurm counts the threads of one as several CPUs.
    return [*found, "--exclusive" if shape.exclusive else "--threads-per-core=1"]


def _render_gpus(shape: Shape) -> str:
    if shape.slots_per_node is None:
        return f"--gpus-per-task={shape.gpus_per_slot}"
    return f"--gpus-per-node={shape.slots_per_node * shape.gpus_per_slot}"


def render_step(shape: Shape, *, label: bool, within: Shape | None = None) -> list[str]:
    """The arguments of srun that start the tasks of a shape in an allocation of it, or in a larger one."""
    return [
        *_render_tasks(shape),
        *_render_cores(shape),
        *_render_step_gpus(shape, within),
        *_WORK_STEP,
        *(["--label"] if label else []),
    ]


def _render_tasks(shape: Shape) -> Iterator[str]:
    tasks = shape.tasks
    if shape.nodes is not None:
        nodes = min(shape.nodes, tasks)
        yield f"--nodes={nodes}"
        if tasks % nodes == 0:
            yield f"--ntasks-per-node={tasks // nodes}"
    yield f"--ntasks={tasks}"


def _render_cores(shape: Shape) -> list[str]:
    if shape.exclusive:
        return ["--overlap", "--cpu-bind=none"]  # the whole node is theirs
    if shape.tasks > shape.slots:
        return ["--overcommit", "--overlap", "--cpu-bind=none"]  # several share what a slot has
    return [f"--cpus-per-task={shape.cores_per_slot}", "--exact"]


def _render_step_gpus(shape: Shape, within: Shape | None) -> list[str]:
    """What a step does not ask for it must refuse: without a word it gets all that the allocation has."""
    if not shape.gpus:
        return ["--gres=none"] if within is not None and within.gpus else []
    if shape.tasks == shape.slots:
        return [f"--gpus-per-task={shape.gpus_per_slot}"]
    if shape.slots_per_node is not None and shape.tasks >= (shape.nodes or 1):
        return [_render_gpus(shape)]
    return [f"--gpus={shape.gpus}"]


def render_limit(duration_s: float) -> str:
    """A time limit as Slurm keeps it: whole minutes, never less than was said."""
    return render_time_limit(-(-duration_s // MINUTE_S) * MINUTE_S)


def render_settings(work: Work, settings: Mapping[str, Data]) -> list[str]:
    """Time, queue and bank; what the person says beside the file holds where the file says nothing."""
    said = {
        "time": None if work.duration_s is None else render_limit(work.duration_s),
        "partition": work.queue or settings.get("partition"),
        "account": work.bank or settings.get("account"),
    }
    return [f"--{name}={value}" for name, value in said.items() if value is not None]


def describe_rounding(duration_s: float | None) -> str:
    """What a person should know of a time limit; nothing where it is kept to the second."""
    if duration_s is None or duration_s % MINUTE_S == 0:
        return ""
    return f"{duration_s:g} s is rounded up to {render_limit(duration_s)}: Slurm counts minutes"


def job_name(graph_name: str, step_id: str) -> str:
    """How the job is called in Slurm's lists."""
    return _UNSAFE.sub("_", f"{graph_name}/{step_id}" if graph_name else step_id)[:120]


def check_work(work: Work) -> None:
    """Refuse what could never be asked for so."""
    for name in ("queue", "bank"):
        value = getattr(work, name)
        if value is not None and not _PLAIN.fullmatch(value):
            raise SpecError(f"{name}: {value!r} is no name that Slurm knows")
    read_machines(work.attributes.get("requires"))
    for name in ("output", "error"):
        if "{{" in (getattr(work, name) or ""):
            raise SpecError(f"{name}: only Flux fills in {{{{…}}}}", hint="give a plain path")
    if work.argv and isinstance(work.argv[0], str) and work.argv[0].startswith("-"):
        raise SpecError(f"command: {work.argv[0]!r} begins with a dash", hint="name a program")


def make_component(shape: Mapping[str, Any], field: str) -> Component:
    """A shape as the cluster's check knows it."""
    nodes, slots = shape.get("nodes"), shape["slots"]
    per_node = slots // nodes if nodes else 1
    gpus = per_node * shape.get("gpus_per_slot", 0)
    return Component(
        hosts=nodes or 1,
        partition=shape.get("partition"),
        ntasks_per_node=per_node,
        cpus_per_task=shape["cores_per_slot"],
        gpus_per_node=gpus or None,
        memory_mb=None,
        time_limit_s=shape.get("time_limit_s"),
        constraint=None,
        field=field,
    )
