"""Scripts of jobs for tests: what is rendered for steps, always with the same id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from milkweed.jobspec.graph import (
    Graph,
    Need,
    RunFile,
    Step,
    Work,
    Write,
)
from milkweed.jobspec.plan import Plan
from milkweed.jobspec.transformers.slurm import Transformer
from unit.slurm_script_runs import Node

RUN_ID = "11111111-2222-4333-8444-555555555555"


def work(*argv: str | RunFile, **more: Any) -> Work:
    """Work with a command."""
    return Work(argv=argv, **more)


def write(name: str = "run.sh", content: bytes = b"#!/bin/sh\necho hello\n") -> Write:
    """A script of the run."""
    return Write(id=f"write-{name}", filename=name, content=content, executable=True)


WRITTEN = (Need("write-run.sh"),)


def plan_of(*found: Step, **setting: Any) -> Plan:
    """What is done for these steps."""
    return Transformer(**setting).render(Graph(steps=found), run_id=RUN_ID)


def job_of(*found: Step) -> dict[str, Any]:
    """The details of the last step."""
    return dict(plan_of(*found).actions[-1].details)


def logs_of(home: Path, label: str = "job") -> str:
    """What a job printed."""
    return (home / "jobspec" / RUN_ID / "logs" / f"{label}.log").read_text()


def run_job(node: Node, *found: Step, shell: str = "sh", **more: str) -> int:
    """Run the script of the last step."""
    return node.run(job_of(*found)["script"], shell, **more).returncode
