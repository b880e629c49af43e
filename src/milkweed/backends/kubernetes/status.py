"""How a job in a cluster is: from its pods, and from what its hosts say themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...status import HostState, HostStatus, Liveness, Status
from ..base import Handle
from .places import Pod
from .reasons import is_hopeless


def make_status(pods: Sequence[Pod], _handle: Handle) -> Status:
    """What the pods alone tell: it runs as soon as one of them does; hosts that can never run are told."""
    waiting = [pod for pod in pods if not pod.running]
    live = Liveness.PENDING if len(waiting) == len(pods) else Liveness.RUNNING
    hopeless = tuple(
        judge_pod(pod, f"pod {pod.view.name} cannot start")
        for pod in waiting
        if pod.view is not None and is_hopeless(pod.view)
    )
    return Status(liveness=live, reason=describe_waiting(waiting, len(pods)), hosts=hopeless)


def describe_waiting(waiting: Sequence[Pod], count: int) -> str:
    """Which pods are waited for, and why."""
    if not waiting:
        return ""
    first = waiting[0]
    why = "it is not there yet" if first.view is None else first.view.reason or first.view.phase
    return f"{count - len(waiting)} of {count} pods run; {first.label}: {why}"


def judge_pod(pod: Pod, words: str) -> HostStatus:
    """A host that does not answer: lost only where Kubernetes says so."""
    if pod.view is None:
        return HostStatus(host=pod.label, state=HostState.STARTING, reason="it has no pod")
    reason = f"{words}; {pod.view.reason}" if pod.view.reason else words
    lost = pod.view.phase in {"Failed", "Succeeded", "Unknown"} or is_hopeless(pod.view)
    state = HostState.FAILED if lost or pod.view.deleting else HostState.STARTING
    return HostStatus(host=pod.label, state=state, reason=reason, exit_code=pod.view.exit_code)


def answer_to_status(pod: Pod, answer: Mapping[str, Any]) -> HostStatus:
    """A host as its keeper described it."""
    item = next(item for item in answer["hosts"] if item["host"] == pod.label)
    reason = "\n".join([item["reason"], *item.get("tail", ())]).strip()
    return HostStatus(
        host=pod.label,
        state=HostState(item["state"]),
        reason=reason,
        exit_code=item.get("exit_code"),
    )
