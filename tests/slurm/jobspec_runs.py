"""Runs of jobspecs on a real cluster, for the tests of this folder."""

from __future__ import annotations

from jobspec_work import DOCUMENT, HOSTILE, Runs, make, shell, submit, the_run
from milkweed.jobspec.transformers.slurm import Transformer
from slurm.lab import Lab

__all__ = [
    "DOCUMENT",
    "HOSTILE",
    "NOISE",
    "RUNS",
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


RUNS = Runs(Transformer, NOISE)
carry_out, printed, states = RUNS.carry_out, RUNS.printed, RUNS.states


def left_behind(lab: Lab) -> list[str]:
    """What is left of jobs below the /tmp of any node."""
    found: list[str] = []
    for number in range(1, len(lab.nodes) + 1):
        listed = lab.on_node(number, "ls", "/tmp").stdout.split()  # noqa: S108  the node's own
        found += [name for name in listed if name.startswith("milkweed-jobspec")]
    return found
