"""A spool folder on a real cluster: a service that is killed loses no file and submits nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.jobspec import load_runs
from slurm.lab import Lab
from spooled import kill_at, serve_until_over

TEXT = """\
version: 1
resources: {{r: {{type: slot, with: [{{type: core}}]}}}}
tasks:
- {{name: a, resources: r, command: [bash, -c, "echo ran >> {ran}"]}}
- {{name: b, resources: r, command: [bash, -c, "echo then >> {ran}"], depends_on: [a]}}
"""


@pytest.mark.parametrize("point", ["recorded", "started"])
def test_a_service_is_killed(point: str, home: Path, lab: Lab) -> None:
    """The next one, as cron starts it, sees to the run: each job is made once, and the file is done."""
    place, ran = home.parent / "spool", home.parent / "ran"
    kill_at(point, place, TEXT.format(ran=ran), "slurm")
    assert serve_until_over(place, "slurm", 120) == "done"
    assert ran.read_text() == "ran\nthen\n"
    assert len(load_runs()) == 1
    lab.wait_jobs_gone()
