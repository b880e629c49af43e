"""Jobspecs: steps described once, run on any workload manager."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import steps
    from .dialects import DIALECTS, render_jobspec
    from .discovery import list_transformers, load_transformer, transformer_names
    from .graph import Graph
    from .plan import Action, Plan
    from .runs import Run, find_run, load_runs
    from .source import load_jobspec, parse_jobspec
    from .steps import StepBase
    from .transformer import TransformerBase

__all__ = [
    "DIALECTS",
    "Action",
    "Graph",
    "Plan",
    "Run",
    "StepBase",
    "TransformerBase",
    "find_run",
    "list_transformers",
    "load_jobspec",
    "load_runs",
    "load_transformer",
    "parse_jobspec",
    "render_jobspec",
    "steps",
    "transformer_names",
]

_PLACES = {
    "DIALECTS": "dialects",
    "Action": "plan",
    "Graph": "graph",
    "Plan": "plan",
    "Run": "runs",
    "StepBase": "steps",
    "TransformerBase": "transformer",
    "find_run": "runs",
    "list_transformers": "discovery",
    "load_jobspec": "source",
    "load_runs": "runs",
    "load_transformer": "discovery",
    "parse_jobspec": "source",
    "render_jobspec": "dialects",
    "transformer_names": "discovery",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that looking costs no more than it must."""
    if name == "steps":
        return importlib.import_module(".steps", __name__)
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
