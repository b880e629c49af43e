"""Runs of jobspecs on a real Flux, for the tests of this folder."""

from __future__ import annotations

from jobspec_work import Runs
from milkweed.jobspec.transformers.flux import Transformer

RUNS = Runs(Transformer, "flux-shell: ")
carry_out, printed, states = RUNS.carry_out, RUNS.printed, RUNS.states
