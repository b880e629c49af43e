"""Hosts that say that their lease is over, on a cluster in memory."""

from __future__ import annotations

import datetime as dt
from typing import Any

from milkweed.backends.kubernetes.start import JOB_LABEL, LEASE_OVER
from milkweed.kube.resources import PODS
from milkweed.operator.lease import render_second
from unit.operator_cluster import Cluster
from unit.operator_runs import START

JOB = "3f0c5f0e-0000-4000-8000-000000000001"


def mark_as_job(mesh: dict[str, Any]) -> None:
    """A mesh of a job."""
    mesh["metadata"].setdefault("labels", {})[JOB_LABEL] = JOB


def moment(seconds: float) -> str:
    """A moment, as the cluster writes it."""
    return render_second(START + dt.timedelta(seconds=seconds))


def farewell(
    at: float = 0,
    *,
    up: float | None = None,
    ready: float | None = None,
    unready: float | None = None,
    words: str = f"{LEASE_OVER}\n",
) -> dict[str, Any]:
    """The status of a pod whose worker ended; it is up again, ready, and then not ready, since these moments."""
    ended = {"terminated": {"exitCode": 0, "message": words, "finishedAt": moment(at)}}
    own = {"name": "worker", "state": ended}
    if up is not None:
        own = {
            "name": "worker",
            "state": {"running": {"startedAt": moment(up)}},
            "lastState": ended,
        }
    is_ready = ready is not None and unready is None
    changed = next(one for one in (unready, ready, at) if one is not None)
    told = {"type": "Ready", "status": str(is_ready), "lastTransitionTime": moment(changed)}
    return {"phase": "Running", "conditions": [told], "containerStatuses": [own]}


def say_farewell(cluster: Cluster, index: int, name: str = "trainers", **status: Any) -> None:
    """Let a host say it."""

    def change(pod: dict[str, Any]) -> None:
        pod["spec"] = {"containers": [{"name": "worker"}]}
        pod["status"] = farewell(**status)

    cluster.edit(PODS.plural, "team", f"{name}-{index}", change)
