"""A spool folder and a real cluster: a service that is killed loses no file and makes nothing twice."""

from __future__ import annotations

from pathlib import Path

from kubernetes.jobspecs import LIMIT_S, Place
from kubernetes.lab import WORKER
from milkweed.jobspec import load_runs
from spooled import kill_at, serve_until_over

TEXT = """\
version: 1
resources: {r: {type: slot, with: [{type: core}]}}
tasks:
- {name: a, resources: r, command: [echo, ran]}
- {name: b, resources: r, command: [echo, then], depends_on: [a]}
"""


def test_a_service_is_killed(place: Place, folder: Path) -> None:
    """The next one, as cron starts it, sees to the run: each Job is made once, and the file is done."""
    said = {"image": WORKER, "namespace": place.namespace, "pull_policy": "Never"}
    kill_at("recorded", folder / "spool", TEXT, "kubernetes", **said)
    assert serve_until_over(folder / "spool", "kubernetes", LIMIT_S, **said) == "done"
    [run] = load_runs()
    assert place.lines(run) == [("a", "ran"), ("b", "then")]
    place.lab.wait_empty(place.namespace)
