"""Runs of jobspecs on a Slurm that does what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.errors import (
    JobspecError,
)
from milkweed.jobspec import Run
from milkweed.jobspec.driver import Wake
from milkweed.jobspec.graph import (
    Graph,
    Need,
    Step,
    Submit,
    Work,
)
from milkweed.jobspec.transformers.slurm import Transformer
from milkweed.testing import FakeClock
from unit.slurm_fake import FakeSlurm

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"


class Quick(Transformer):
    """The transformer, whose time is that of the test."""

    clock: FakeClock

    def poll(self, running: Any, wake: Wake, timeout_s: float = 0.0) -> Any:
        """Look at once, a minute later."""
        self.clock.sleep(60)
        return super().poll(running, wake, 0.0)


def job(name: str, *needs: Need | str, wait: bool = False, **more: Any) -> Submit:
    """A job; a plain name is one that must have ended well."""
    found = tuple(need if isinstance(need, Need) else Need(need) for need in needs)
    return Submit(id=name, needs=found, wait=wait, work=Work(argv=("true",), **more))


def graph(*found: Step) -> Graph:
    """A graph of these steps."""
    return Graph(steps=found)


def run(transformer: Transformer, *found: Step, wait: bool = False) -> Run:
    """Carry out steps."""
    return transformer.run(transformer.render(graph(*found)), wait=wait)


def refused(*found: Step) -> str:
    """Why steps are refused."""
    with pytest.raises(JobspecError) as caught:
        Transformer().render(graph(*found))
    return str(caught.value)


def number_jobs(cluster: FakeSlurm) -> None:
    """Each submission gets the next number: 1, 2, ...."""
    cluster.then(
        "sbatch",
        '[ "$1" = --version ] && exec echo "slurm-wlm 22.05.8"\n'
        'n=$(($(cat "$home/number" 2>/dev/null || echo 0) + 1)); echo $n >"$home/number"; exec echo $n\n',
    )


def mark_of(made: Run, step_id: str = "a") -> str:
    """The mark of a step."""
    return made.plan.mark(step_id)
