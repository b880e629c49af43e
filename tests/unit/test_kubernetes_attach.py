"""Pods that exist: whose they may be, and when a job can run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes import backend as module
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.start import JOB_LABEL
from milkweed.errors import SpecError
from milkweed.job.kubernetes import ImageSpec, KubernetesJob
from unit.kubernetes_jobs import FOUND, OTHER_ID, Space, submit

READY = {"state": "ready", "address": "tcp://1:1", "reason": "", "tail": [], "exit_code": None}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_pods_of_another_job_are_not_attached_to(space: Space, rank: str) -> None:
    """They speak TLS with their own clients only, and go when their job does: the error names it."""
    handle = submit(FOUND)
    other = {JOB_LABEL: OTHER_ID} if rank == "1" else {}
    space.add_pod(
        "p0", labels={"app": "x", "rank": "0", **({} if other else {JOB_LABEL: OTHER_ID})}
    )
    space.add_pod("p1", labels={"app": "x", "rank": "1", **other})
    for look in (KubernetesBackend().glance, KubernetesBackend().poll):
        with pytest.raises(SpecError, match=f"pod 'p{rank}' was made for another job") as caught:
            look(handle)
        assert OTHER_ID in caught.value.seen
        assert "label_selector" in caught.value.hint


def declare(**more: Any) -> KubernetesJob:
    """A job of two pods that exist."""
    job = KubernetesJob("lab")
    job.add_mesh("w", 2, "app=x", "rank", **more)
    return job


def test_a_job_can_run_when_all_its_pods_are_ready(
    space: Space, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not before: not while it waits, not with half of them, and not what differs."""
    monkeypatch.setattr(
        module,
        "ask_pod",
        lambda _api, _handle, pod: {**READY, "host": pod.label} if pod.running else "no",
    )
    job = declare()
    assert not job.can_run(declare())
    job.apply()
    assert job.active
    assert not job.can_run(declare())
    space.add_pod("p0", labels={"app": "x", "rank": "0"})
    space.wait_seen()
    assert not job.can_run(declare())
    space.add_pod("p1", labels={"app": "x", "rank": "1"})
    space.wait_seen()
    assert job.can_run(declare())
    other = KubernetesJob("lab")
    other.add_mesh("w", 2, image_spec=ImageSpec("a"))
    assert not job.can_run(other)
    space.go_away()
    assert not job.can_run(declare())


def test_a_job_whose_pods_are_wrong_can_run_nothing(space: Space, folder: Path) -> None:
    """Whatever is wrong with them."""
    job = declare()
    job.apply()
    space.add_pod("p0", labels={"app": "x", "rank": "0", JOB_LABEL: OTHER_ID})
    assert not job.can_run(declare())
