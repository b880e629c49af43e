"""What a cluster would take after all: asked only when a look at its nodes says that it could never give it.

Slurm does not show all nodes, a plugin of the site may choose another partition, and a QOS may lift limits.
`sbatch --test-only` knows all of that, and submits nothing. Its word alone is not enough either way: it refuses
what has to wait for nodes that are down, and takes time limits that the site does not enforce, with which a job
waits for ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import BackendError, UnreachableError
from ...spec import JobSpec
from . import commands, inherited
from .check import Component, fill_in, find_problems, make_error
from .nodes import NodeRow
from .script import Submission, render_arguments, render_script
from .shape import Part, make_components, make_parts

_COUNT = re.compile(r"^PartitionName=(\S+) .*?\bTotalNodes=(\d+)", re.MULTILINE | re.ASCII)
_NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A submission that sbatch is asked about, as it would be handed over."""

    command: Sequence[str]
    """A command line in which sbatch stands."""
    script: str
    environ: Mapping[str, str] | None = None
    """What sbatch sees; this process's own variables where nothing was said."""


MakeTrial = Callable[[], Trial]


def check_spec(spec: JobSpec, rows: Sequence[NodeRow]) -> None:
    """Refuse a declaration that the cluster could never fulfil; SpecError lists all that is wrong."""
    parts = make_parts(spec)
    components = make_components(parts)
    try:
        if any(each.disk_mb for each in components) and rows:
            rows = commands.load_disks(rows)
    except UnreachableError:
        return
    check_components(components, rows, lambda: _make_trial(spec, parts))


def check_components(
    components: Sequence[Component], rows: Sequence[NodeRow], make_trial: MakeTrial
) -> None:
    """Refuse what the cluster could never give, by its nodes and what sbatch takes from its variables."""
    components = [fill_in(each, os.environ) for each in components]
    if find_problems(components, rows):
        _check_again(components, rows, make_trial)


def _check_again(
    components: Sequence[Component], rows: Sequence[NodeRow], make_trial: MakeTrial
) -> None:
    """The same with all that is known of partitions, and with Slurm's own word."""
    counts = load_counts()
    problems = find_problems(components, rows, counts)
    refusal = _try(make_trial()) if problems else ""
    if problems and not refusal:
        long = [each for each in problems if each.too_long]
        problems = [] if not long or _minds_time(components) else long
    if problems:
        raise make_error(problems, seen=refusal)


def load_counts() -> dict[str, int]:
    """All partitions, and how many nodes each has, with those that Slurm does not show."""
    said = commands.show(["scontrol", "show", "partition", "-a", "-o"])
    return {name: int(count) for name, count in _COUNT.findall(said)}


def _make_trial(spec: JobSpec, parts: Sequence[Part]) -> Trial:
    """A submission like the one of a declaration."""
    submission = Submission(
        apply_id=_NOBODY,
        name=spec.name,
        generation=0,
        first=0,
        parts=tuple(parts),
        folder="/",
        logs="/",
        survives=spec.options.get("survive_node_failure", True),
    )
    return Trial(
        command=render_arguments(submission),
        script=render_script(submission),
        environ=inherited.drop_overruled(os.environ, submission.shapes),
    )


def _try(trial: Trial) -> str:
    """Why sbatch would not start a job; empty when it would, one day."""
    at = trial.command.index("sbatch") + 1
    argv = [*trial.command[:at], "--test-only", *trial.command[at:]]
    try:
        commands.run(argv, text=trial.script, environ=trial.environ)
    except UnreachableError:
        raise
    except BackendError as error:
        return error.seen or error.what
    return ""


def _minds_time(components: Sequence[Component]) -> bool:
    """Whether Slurm's word counts for time limits, too: they hold, or a plugin may choose the partition."""
    if commands.read_setting("EnforcePartLimits") not in {"", "NO"}:
        return True
    plugins = commands.read_setting("JobSubmitPlugins")
    return plugins not in {"", "(null)"} and all(each.partition is None for each in components)
