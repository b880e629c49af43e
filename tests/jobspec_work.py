"""Jobspecs that run on real schedulers: the same work everywhere."""

from __future__ import annotations

from typing import Any

from milkweed.jobspec import Run, TransformerBase, load_runs
from milkweed.jobspec.graph import Graph, Need, RunFile, Step, Submit, Work

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

SECRET = "hunter2-very-secret"  # noqa: S105  a secret of nobody
AUTH = """
version: 1
resources: {pair: {type: node, count: 2, with: [{type: core, count: 1}]}}
tasks:
- name: a
  resources: pair
  steps:
  - {name: auth, secret: token, variable: MY_TOKEN, export: TOKEN}
  command:
  - sh
  - -c
  - 'printf %s "$TOKEN" | sha256sum; stat -c %a "$JOBSPEC_SECRETS/token"; env | grep -c MY_TOKEN=; sleep 2'
  attributes: {watch: true}
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


class Shown(list[str]):
    """What was shown while a run was driven, but for the scheduler's own noise."""

    def __init__(self, noise: str) -> None:
        super().__init__()
        self._noise = noise

    def __call__(self, label: str, line: str) -> None:
        """Take one more line."""
        if not line.startswith(self._noise):
            self.append(f"{label}| {line}")


def printed(transformer: TransformerBase, run: Run, noise: str) -> list[str]:
    """All that the work of a run printed."""
    lines = transformer.logs(run)
    return [f"{label}| {line}" for label, line in lines if not line.startswith(noise)]


def states(transformer: TransformerBase, run: Run) -> dict[str, str]:
    """How each step is."""
    entries = transformer.status(run).entries
    return {name: entry.status.state.value for name, entry in entries.items()}


def the_run() -> Run:
    """The only run that is recorded."""
    [run] = load_runs()
    return run
