"""A fair share of a node for a job that does not need all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import SpecError
from ...spec import suggest
from .nodes import NodeRow


def make_share(
    rows: Sequence[NodeRow], *, partition: str, tasks: int, gpus_per_task: int
) -> dict[str, Any]:
    """What to ask for each host: as much of its CPUs and memory as of its GPUs; without GPUs, one CPU a task."""
    for word, value, least in (("tasks_per_node", tasks, 1), ("gpus_per_task", gpus_per_task, 0)):
        if value < least:
            raise SpecError(f"{word}: {value} is too small", hint=f"give at least {least}")
    nodes = [row for row in rows if row.partition == partition]
    if rows and not nodes:
        names = sorted({row.partition for row in rows})
        raise SpecError(f"partition: there is no {partition!r}", hint=suggest(partition, names))
    said: dict[str, Any] = {
        "partition": partition,
        "exclusive": False,
        "ntasks_per_node": tasks,
    }
    wanted = tasks * gpus_per_task
    if not wanted:
        return said
    if not nodes:
        raise SpecError(
            f"gpus_per_task: Slurm shows no nodes here, so nobody knows what a share with {wanted} GPUs is",
            hint="say it yourself: exclusive=False, gpus_per_node, cpus_per_task and mem",
        )
    fit = [row for row in nodes if row.gpus >= wanted]
    if not fit:
        most = max(row.gpus for row in nodes)
        raise SpecError(
            f"gpus_per_task: {tasks} tasks of {gpus_per_task} need {wanted} GPUs of one node",
            hint=f"the nodes of {partition} have {most} at most",
        )
    return {
        **said,
        "gpus_per_node": wanted,
        "cpus_per_task": max(1, min(row.cpus * gpus_per_task // row.gpus for row in fit)),
        "mem": f"{max(1, min(row.memory_mb * wanted // row.gpus for row in fit))}M",
    }
