"""What a job takes from the variables of sbatch: only what nobody said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import SpecError
from . import commands
from .shape import Shape

_SAID = frozenset({"SBATCH_EXCLUSIVE", "SBATCH_NO_KILL"})
"""What every job says, by an option of sbatch or by its absence."""
_GPUS = frozenset(
    {"SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_SOCKET", "SBATCH_GPUS_PER_TASK"}
)
_LISTS = frozenset({"SBATCH_GRES", "SBATCH_TRES_PER_TASK"})
"""Lists in which GPUs may be one thing among others."""
_CPUS = frozenset({"SBATCH_CPUS_PER_GPU"})
"""What some versions of sbatch refuse beside the CPUs that were said."""


def drop_overruled(environ: Mapping[str, str], shapes: Sequence[Shape]) -> dict[str, str]:
    """The variables that sbatch may see: none that would add to what was said, or be taken instead of it."""
    hidden = _SAID
    if any(shape.cpus_per_task is not None for shape in shapes):
        hidden |= _CPUS
    if all(shape.gpus is None for shape in shapes):
        return {key: value for key, value in environ.items() if key not in hidden}
    kept = {key: value for key, value in environ.items() if key not in hidden | _GPUS}
    lists = {key: _without_gpus(kept[key]) for key in _LISTS & kept.keys()}
    return {key: value for key, value in {**kept, **lists}.items() if value or key not in _LISTS}


def _without_gpus(text: str) -> str:
    """A list of resources (`gpu:4,nvme:1`, `gres/gpu:4`) without GPUs."""
    items = text.split(",")
    return ",".join(each for each in items if not _is_gpu(each.strip()))


def _is_gpu(item: str) -> bool:
    name = item.removeprefix("gres/").removeprefix("gres:")
    return name.replace("=", ":").partition(":")[0] == "gpu"


def check_clusters(environ: Mapping[str, str]) -> None:
    """Refuse to submit to another cluster than the one whose queue is looked at."""
    asked = environ.get("SBATCH_CLUSTERS")
    if asked and asked != (here := commands.cluster_name()):
        raise SpecError(
            f"SBATCH_CLUSTERS is {asked!r}, and a job is submitted to the cluster {here!r} only: "
            "nobody would find it again in another",
            hint=f"unset SBATCH_CLUSTERS, or run this on a login node of {asked!r}",
        )
