"""Runs of jobspecs on a real cluster, for the tests of this folder."""

from __future__ import annotations

import jobspec_work
from jobspec_work import DOCUMENT, HOSTILE, make, shell, submit, the_run
from milkweed.jobspec import Run
from milkweed.jobspec.graph import Graph
from milkweed.jobspec.transformers.slurm import Transformer
from slurm.lab import Lab

__all__ = [
    "DOCUMENT",
    "HOSTILE",
    "NOISE",
    "Shown",
    "carry_out",
    "left_behind",
    "make",
    "printed",
    "shell",
    "states",
    "submit",
    "the_run",
]

NOISE = "srun: "
"""What srun says itself: how tasks ended, and that the cluster binds nothing to cores."""


class Shown(jobspec_work.Shown):
    """What was shown while a run was driven, but for Slurm's own noise."""

    def __init__(self) -> None:
        super().__init__(NOISE)


def carry_out(graph: Graph, *, wait: bool = True) -> tuple[Run, Shown]:
    """Run a graph to its end; the run, and what was shown meanwhile."""
    transformer = Transformer()
    shown = Shown()
    run = transformer.run(transformer.render(graph), wait=wait, show=shown)
    return run, shown


def printed(run: Run) -> list[str]:
    """All that the work of a run printed."""
    return jobspec_work.printed(Transformer(), run, NOISE)


def states(run: Run) -> dict[str, str]:
    """How each step is."""
    return jobspec_work.states(Transformer(), run)


def left_behind(lab: Lab) -> list[str]:
    """What is left of jobs below the /tmp of any node."""
    found: list[str] = []
    for number in range(1, len(lab.nodes) + 1):
        listed = lab.on_node(number, "ls", "/tmp").stdout.split()  # noqa: S108  the node's own
        found += [name for name in listed if name.startswith("milkweed-jobspec")]
    return found
