"""The file that becomes a command on a node: variables, folder, then nothing but the command's own words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..graph import RunFile, Word

EXIT_NOT_FITTING = 78
"""The exit code of work on a node that it cannot run on: EX_CONFIG of sysexits.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a process finds out where it is: words of the shell."""

    first: Sequence[str]
    """Lines that come before all others; they set `mw_files`, the folder of the run's files."""
    secrets: str
    """The folder of secrets, as it stands in double quotes."""
    rank: str
    node: str
    nodes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A command with where and with what it runs."""

    run_id: str
    step_id: str
    argv: Sequence[Word]
    """Its words; none where they come as arguments of the file."""
    tasks: int
    cwd: str | None
    """None: the job's folder."""
    environment: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    exports: Mapping[str, str] = field(default_factory=dict[str, str])
    """Secrets, and the variable in which each is found; a secret without one is only a file."""
    replica: str = ""
    """Which replica it is, as a word of the shell; nothing where there is one."""
    alone: bool = False
    """One process on the first node, whatever the scheduler says of tasks."""
    machines: Sequence[str] = ()
    """What the machine must call itself; nothing where any will do."""


def render_task_file(task: Task, place: Place) -> str:
    """The whole file."""
    exported = [(name, variable) for name, variable in task.exports.items() if variable]
    lines = [*_render_check(task.machines), *place.first]
    for at, (name, _) in enumerate(exported):
        source = f'"{place.secrets}/"{shlex.quote(name)}'
        lines.append(f"mw_secret_{at}=$(cat -- {source}; printf x)")
    for name, value in task.environment.items():
        lines.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    lines += [f"export {name}={value}" for name, value in _variables(task, place).items()]
    for at, (_, variable) in enumerate(exported):
        lines += [f'export {variable}="${{mw_secret_{at}%x}}"']
    cwd = '"$mw_files"' if task.cwd is None else shlex.quote(task.cwd)
    lines.append(f"cd -- {cwd} || exit 1")
    words = " ".join(map(_render_word, task.argv)) if task.argv else '"$@"'
    return "\n".join([*lines, f"exec {words}"]) + "\n"


def _render_check(machines: Sequence[str]) -> list[str]:
    """The lines that end work on a machine of another kind than it requires."""
    if not machines:
        return []
    text = f"the jobspec requires {machines[0]}"
    return [
        f"case $(uname -m) in {' | '.join(machines)}) ;;",
        f'*) echo "milkweed: this node is $(uname -m), and {text}" >&2; exit {EXIT_NOT_FITTING} ;; esac',
    ]


def _variables(task: Task, place: Place) -> dict[str, str]:
    """What is said to every process; words of the shell."""
    found = {
        "JOBSPEC_RUN": task.run_id,
        "JOBSPEC_STEP": task.step_id,
        "JOBSPEC_FILES": '"$mw_files"',
        "JOBSPEC_TASK_RANK": f'"{place.rank}"',
        "JOBSPEC_TASKS": str(task.tasks),
        "JOBSPEC_NODE": f'"{place.node}"',
        "JOBSPEC_NODES": f'"{place.nodes}"',
    }
    if task.exports:
        found["JOBSPEC_SECRETS"] = f'"{place.secrets}"'
    return {**found, "JOBSPEC_REPLICA": task.replica} if task.replica else found


def _render_word(word: Word) -> str:
    if isinstance(word, RunFile):
        return f'"$mw_files/"{shlex.quote(word.name)}'
    return shlex.quote(word)
