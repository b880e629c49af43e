"""Jobspecs that several tests read, and a transformer whose jobs do what they are told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import JobspecError
from milkweed.jobspec import Run, TransformerBase, parse_jobspec, steps
from milkweed.jobspec.driver import Running, Wake
from milkweed.jobspec.graph import Graph, Need, Step, Submit, Word, Work
from milkweed.jobspec.progress import State, StepStatus
from milkweed.jobspec.steps import Handle, StepBase

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobspec"

STEPS = """\
version: 1
resources:
- {type: node, count: 4, with: [{type: slot, count: 1, label: hello, with: [{type: core, count: 4}]}]}
task:
  slot: hello
  count: {per_slot: 1}
  scripts:
  - {name: install.sh, content: "#!/bin/bash\\necho install\\n"}
  - {name: job.sh, content: "#!/usr/bin/env python3\\nprint(1)\\n"}
  transform:
  - {step: write, filename: install.sh, executable: true}
  - {step: stage, filename: install.sh}
  - {step: submit, filename: install.sh, wait: true}
  - {step: write, filename: job.sh}
  - {step: stage, filename: job.sh}
  - {step: submit, filename: job.sh}
"""

TASKS = """\
version: 1
resources:
  small: {type: slot, count: 1, with: [{type: core, count: 1}]}
tasks:
- {name: a, resources: small, command: [echo, a]}
- {name: b, resources: small, command: [echo, b], depends_on: [a]}
"""

FLUX = """\
version: 1
resources:
- {type: slot, count: 2, label: task, with: [{type: core, count: 3}]}
tasks:
- {command: [hostname], slot: task, count: {per_slot: 1}}
attributes: {system: {duration: 5}}
"""


def wrong(text: str, dialect: str | None = None) -> str:
    """The error that a text makes."""
    with pytest.raises(JobspecError) as caught:
        parse_jobspec(text, "job.yaml", dialect=dialect)
    return str(caught.value)


def job(name: str, *needs: str | Need, argv: tuple[Word, ...] = ("true",), **more: Any) -> Submit:
    """A job with needs; a plain name is one that must have ended well."""
    found = tuple(need if isinstance(need, Need) else Need(need) for need in needs)
    return Submit(id=name, needs=found, work=Work(argv=argv), **more)


def graph(*found: Step) -> Graph:
    """A graph of these steps."""
    return Graph(steps=found)


def forget_record(made: Run) -> None:
    """The program ended between asking and writing down."""
    lines = made.journal.path.read_text().splitlines(keepends=True)
    made.journal.path.write_text(
        "".join(each for each in lines if json.loads(each)["event"] == "intent")
    )


class World:
    """A scheduler in memory: what was submitted, and how each job is told to be."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.before: dict[str, dict[str, Any]] = {}
        self.cancelled: list[str] = []
        self.states: dict[str, StepStatus] = {}
        self.story: Iterator[dict[str, StepStatus]] = iter(())
        self.marked: dict[str, Handle] = {}
        self.fail: dict[str, Exception] = {}
        self.pauses = 0


class TalkStep(StepBase):
    """A job of the world."""

    name = "submit"

    @property
    def world(self) -> World:
        """The scheduler."""
        found: Any = self.transformer
        return found.world

    def run(self, stage: Path) -> Handle:
        """Submit it."""
        if error := self.world.fail.get(self.action.id):
            raise error
        self.world.submitted.append(self.action.id)
        self.world.before[self.action.id] = {
            key: entry.handle for key, entry in self.before.items()
        }
        handle = {"id": f"job-{self.action.id}"}
        self.world.marked[self.mark] = handle
        return handle

    def poll(self, handle: Handle) -> StepStatus:
        """Look."""
        return self.world.states.get(self.action.id, StepStatus(State.PENDING))

    def cancel(self, handle: Handle) -> None:
        """End it."""
        self.world.cancelled.append(str(handle["id"]))

    def find(self) -> Handle | None:
        """What carries its mark."""
        return self.world.marked.get(self.mark)


class Talker(TransformerBase):
    """A transformer of the world; every poll is the next chapter of its story."""

    name = "talker"
    description = "a scheduler in memory"
    durable = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.world = World()

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = 2.0
    ) -> Mapping[str, StepStatus]:
        """Turn a page."""
        self.world.pauses += 1
        self.world.states |= next(self.world.story)
        return {name: each.step.poll(each.handle) for name, each in running.items()}


Talker.register_step(TalkStep)
Talker.register_step(steps.WriterStep)
Talker.register_step(steps.AuthStep)
Talker.register_step(steps.EmptyStep, name="stage")


class NativeStep(TalkStep):
    """A job whose needs the scheduler itself keeps."""

    native = frozenset({"afterok", "afterany"})


class NativeTalker(Talker):
    """A transformer of a world that knows dependencies."""

    name = "native"


NativeTalker.register_step(NativeStep)
