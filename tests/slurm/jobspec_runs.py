"""Runs of jobspecs on a real cluster, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from milkweed.jobspec import Run, load_runs
from milkweed.jobspec.graph import (
    Graph,
    Need,
    RunFile,
    Step,
    Submit,
    Work,
)
from milkweed.jobspec.transformers.slurm import Transformer
from slurm.lab import Lab

HOSTILE = [
    "a b",
    "$(touch $HOME/pwned)",
    "`id`",
    "'",
    '"',
    "\\",
    ";",
    "new\nline",
    "tab\t",
    "\r\n",
    "*",
    "",
    "-x",
    "é☃",
    "#!",
    "&& false",
]

DOCUMENT = """
version: 1
resources:
- {type: node, count: 2, with: [{type: slot, count: 1, label: each, with: [{type: core, count: 2}]}]}
task:
  slot: each
  count: {per_slot: 1}
  scripts:
  - name: install.sh
    content: |
      #!/bin/bash
      echo "installing on $(hostname) as $JOBSPEC_TASK_RANK of $JOBSPEC_TASKS"
  - name: job.sh
    content: |
      #!/bin/bash
      echo "hello from $(hostname)"; ls
  transform:
  - {step: write, filename: install.sh, executable: true}
  - {step: stage, filename: install.sh}
  - {step: submit, filename: install.sh, wait: true}
  - {step: write, filename: job.sh, executable: true}
  - {step: stage, filename: job.sh}
  - {step: submit, filename: job.sh, wait: true}
"""


def make(*steps: Step, name: str = "") -> Graph:
    """A graph of these steps."""
    return Graph(steps=steps, name=name)


def submit(name: str, *argv: str | RunFile, needs: tuple[Need, ...] = (), **more: Any) -> Submit:
    """A job; what is not of a step is of its work."""
    own = {key: more.pop(key) for key in ("wait", "watch", "local", "replicas") if key in more}
    return Submit(id=name, needs=needs, work=Work(argv=argv, **more), **own)


def shell(name: str, script: str, *needs: Need, **more: Any) -> Submit:
    """A job that runs a line of shell."""
    return submit(name, "sh", "-c", script, needs=needs, **more)


NOISE = "srun: "
"""What srun says itself: how tasks ended, and that the cluster binds nothing to cores."""


class Shown(list[str]):
    """What was shown while a run was driven, but for Slurm's own noise."""

    def __call__(self, label: str, line: str) -> None:
        """Take one more line."""
        if not line.startswith(NOISE):
            self.append(f"{label}| {line}")


def carry_out(graph: Graph, *, wait: bool = True) -> tuple[Run, Shown]:
    """Run a graph to its end; the run, and what was shown meanwhile."""
    transformer = Transformer()
    shown = Shown()
    run = transformer.run(transformer.render(graph), wait=wait, show=shown)
    return run, shown


def printed(run: Run) -> list[str]:
    """All that the work of a run printed."""
    lines = Transformer().logs(run)
    return [f"{label}| {line}" for label, line in lines if not line.startswith(NOISE)]


def states(run: Run) -> dict[str, str]:
    """How each step is."""
    return {
        name: entry.status.state.value for name, entry in Transformer().status(run).entries.items()
    }


def left_behind(lab: Lab) -> list[str]:
    """What is left of jobs below the /tmp of any node."""
    found: list[str] = []
    for number in range(1, len(lab.nodes) + 1):
        listed = lab.on_node(number, "ls", "/tmp").stdout.split()  # noqa: S108  the node's own
        found += [name for name in listed if name.startswith("milkweed-jobspec")]
    return found


def the_run() -> Run:
    """The only run that is recorded."""
    [run] = load_runs()
    return run
