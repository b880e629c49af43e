"""Runs of jobspecs on a real Flux, for the tests of this folder."""

from __future__ import annotations

import jobspec_work
from jobspec_work import Shown
from milkweed.jobspec import Run
from milkweed.jobspec.graph import Graph
from milkweed.jobspec.transformers.flux import Transformer

NOISE = "flux-shell: "
"""What Flux's shell says itself."""


def carry_out(graph: Graph, *, wait: bool = True) -> tuple[Run, Shown]:
    """Run a graph to its end; the run, and what was shown meanwhile."""
    transformer = Transformer()
    shown = Shown(NOISE)
    run = transformer.run(transformer.render(graph), wait=wait, show=shown)
    return run, shown


def printed(run: Run) -> list[str]:
    """All that the work of a run printed."""
    return jobspec_work.printed(Transformer(), run, NOISE)


def states(run: Run) -> dict[str, str]:
    """How each step is."""
    return jobspec_work.states(Transformer(), run)
