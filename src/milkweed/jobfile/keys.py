"""The keys of a job file, block by block, and the tables of the backends' blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..options import OptionField, OptionTable
from ..plan import ON_CHANGE
from ..spec import Lifetime

OptionsOf = Callable[[str], OptionTable | None]
"""The table of a backend's block, by the backend's name; None when no backend has that name."""

TOP: OptionTable = {
    "name": OptionField("text", "The job's name.", required=True),
    "on": OptionField("text", "The backend that gives the hosts.", required=True),
    "env": OptionField("env", "Variables for the hosts of every mesh."),
    "run": OptionField("words", "The client program: one text, or a list of words."),
    "on_change": OptionField(
        "text",
        "What to do when this file and the running allocation differ: "
        "stop and show it, replace the allocation, or make a new one beside it.",
        choices=ON_CHANGE,
    ),
}

MESH: OptionTable = {
    "hosts": OptionField("int", "How many hosts the mesh has.", minimum=1, required=True),
    "cpus": OptionField("int", "CPUs of each host.", minimum=1),
    "gpus": OptionField("int", "GPUs of each host.", minimum=0),
    "gpu_type": OptionField("text", "The kind of GPU, as the scheduler names it."),
    "memory": OptionField("size", "Memory of each host."),
    "disk": OptionField("size", "Disk of each host."),
    "env": OptionField("env", "Variables for the hosts of this mesh; they win over the job's."),
}

CODE: OptionTable = {
    "workdir": OptionField("folder", "The folder of the code, seen from the job file's folder."),
    "include": OptionField("texts", "Patterns of the files to take along."),
    "exclude": OptionField("texts", "Patterns of the files to leave out."),
}

LIFETIME: OptionTable = {
    "idle_timeout": OptionField(
        "duration",
        "With nobody connected for this long, a kept allocation ends itself.",
        default=Lifetime().idle_timeout_s,
    ),
    "time_limit": OptionField("duration", "The allocation ends after this long."),
}

BLOCKS = {
    "meshes": "The named groups of equal hosts.",
    "code": "Which local code the hosts should have.",
    "lifetime": "How long an allocation may live.",
}
"""The keys whose values are blocks with keys of their own."""


@dataclass(frozen=True, slots=True)
class Backends:
    """Which backends there are, and what their blocks may hold."""

    names: Sequence[str]
    options_of: OptionsOf

    def knows(self, name: str) -> bool:
        """Whether a backend has that name; a listed one is not imported to find out."""
        return name in self.names or self.options_of(name) is not None


def make_backends(options_of: OptionsOf | None, names: Sequence[str] | None) -> Backends:
    """The given backends, or the installed ones."""
    if options_of is not None:
        return Backends(names or (), options_of)
    from ..backends import backend_names, option_table

    return Backends(backend_names() if names is None else names, option_table)
