"""The languages in which jobspecs are written: each is read into a graph, and written from one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from ...errors import JobspecError
from ...options import Data
from ...spec import suggest

if TYPE_CHECKING:
    from ..graph import Graph
    from ..source import Source

COMPSPEC_STEPS = "compspec-0.0.1"
COMPSPEC_TASKS = "compspec-0.1"
FLUX = "flux-v1"
DIALECTS: Mapping[str, str] = {
    COMPSPEC_STEPS: "compspec_0_0_1",
    COMPSPEC_TASKS: "compspec_0_1",
    FLUX: "flux_v1",
}
"""Each dialect, and the module here that knows it."""

Parse = Callable[["Source"], "Graph | None"]


def choose_dialect(source: Source, name: str | None) -> Parse:
    """What reads a file: the dialect that is asked for, or the one that its keys tell."""
    return _module(name or detect_dialect(source)).parse


def detect_dialect(source: Source) -> str:
    """The dialect of a file, by the keys that only one of them has."""
    data = source.top.data
    keys = data if isinstance(data, dict) else {}
    if "task" in keys:
        return COMPSPEC_STEPS
    if isinstance(keys.get("resources"), list) or _has_slots(keys.get("tasks")):
        return FLUX
    if "tasks" in keys or "groups" in keys:
        return COMPSPEC_TASKS
    source.refuse_flaws()  # what is wrong with the text itself may be why nobody knows it
    raise JobspecError(
        f"{source.filename}:1:1: this is no jobspec of a dialect that is known",
        seen=f"its keys are: {', '.join(map(repr, list(keys)[:8])) or 'none'}",
        hint=f"`task` makes it {COMPSPEC_STEPS}, `tasks` or `groups` {COMPSPEC_TASKS}, "
        f"a list of `resources` {FLUX}",
    )


def _has_slots(tasks: Data) -> bool:
    return isinstance(tasks, list) and any(
        isinstance(task, dict) and "slot" in task for task in tasks
    )


def render_jobspec(graph: Graph, dialect: str) -> str:
    """Write a graph in a dialect, as YAML; what it cannot express is an error that names it."""
    from ..yaml_text import render_yaml

    return render_yaml(make_document(graph, dialect))


def make_document(graph: Graph, dialect: str) -> dict[str, Data]:
    """A graph as the plain data of a dialect; what it cannot express is an error that names it."""
    lacking: list[str] = []
    document = _module(dialect).make(graph, lacking)
    if lacking:
        raise JobspecError(
            "\n".join(f"{dialect} cannot express {each}" for each in dict.fromkeys(lacking)),
            hint="choose another dialect, or take it out; nothing was dropped",
        )
    return document


def _module(dialect: str) -> _Dialect:
    if dialect not in DIALECTS:
        raise JobspecError(f"no dialect is named {dialect!r}", hint=suggest(dialect, DIALECTS))
    return cast("_Dialect", importlib.import_module(f".{DIALECTS[dialect]}", __name__))


if TYPE_CHECKING:
    from typing import Protocol

    class _Dialect(Protocol):
        """What the module of a dialect has."""

        def parse(self, source: Source) -> Graph | None:
            """Read it; problems are noted in the source."""
            ...

        def make(self, graph: Graph, lacking: list[str]) -> dict[str, Data]:
            """Write it; what it cannot express is noted."""
            ...
