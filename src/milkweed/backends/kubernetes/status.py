"""How a job in a cluster is: from its pods, and from what its hosts say themselves."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence

from ...status import HostState, HostStatus, Liveness, Status
from .places import Pod
from .reasons import PodView, is_hopeless

_SIGNALS = frozenset(int(each) for each in signal.Signals)


def make_status(pods: Sequence[Pod], gone: Collection[str] = (), client: str = "") -> Status:
    """What the pods alone tell: it runs as soon as one of them does; hosts that can never run are told.

    `gone` names the objects that are not there any more, or never were: no pod comes of them. `client` says what a
    batch client waits for.
    """
    live = Liveness.RUNNING if any(pod.running for pod in pods) else Liveness.PENDING
    waiting = [pod for pod in pods if not pod.running or pod.ailing]
    if gone and live is Liveness.PENDING:
        names = ", ".join(sorted(gone))
        return Status(liveness=Liveness.ENDED, reason=f"its objects are gone: {names}")
    lost = tuple(_judge_lost(pod) for pod in waiting if _is_lost(pod, gone))
    reason = "; ".join(filter(None, (client, describe_waiting(waiting, len(pods)))))
    details = {"client": client} if client else {}
    return Status(liveness=live, reason=reason, hosts=lost, details=details)


def _is_lost(pod: Pod, gone: Collection[str]) -> bool:
    if pod.mesh["name"] in gone or pod.news.hopeless:
        return True
    return pod.view is not None and is_hopeless(pod.view)


def _judge_lost(pod: Pod) -> HostStatus:
    if pod.view is not None:
        return judge_pod(pod, f"pod {pod.view.name} cannot start")
    reason = pod.news.words if pod.news.reason else f"the MonarchMesh {pod.mesh['name']} is gone"
    return HostStatus(host=pod.label, state=HostState.FAILED, reason=reason)


def describe_waiting(waiting: Sequence[Pod], count: int) -> str:
    """Which pods are waited for, and why."""
    if not waiting:
        return ""
    first = waiting[0]
    why = "it is not there yet" if first.view is None else first.view.reason or first.view.phase
    if first.news.reason:
        why = first.news.words
    return f"{count - len(waiting)} of {count} pods run; {first.label}: {why}"


def describe_last(view: PodView) -> str:
    """How a container ended that runs again; what it waits for tells nothing of that."""
    code = view.exit_code
    if not view.restarts or code is None or f"exit code {code}" in view.reason:
        return ""
    times = "once" if view.restarts == 1 else f"{view.restarts} times"
    named = f" ({signal.Signals(code - 128).name})" if code - 128 in _SIGNALS else ""
    return f"its container {view.container} was started again {times}, last after exit code {code}{named}"


def judge_pod(pod: Pod, words: str) -> HostStatus:
    """A host that does not answer: lost only where Kubernetes says so."""
    news = pod.news.words if pod.news.reason else ""
    if pod.view is None:
        why = "; ".join(filter(None, ("it has no pod", news)))
        return HostStatus(host=pod.label, state=HostState.STARTING, reason=why)
    said = "; ".join(filter(None, (news or pod.view.reason, describe_last(pod.view))))
    reason = f"{words}; {said}" if said and said not in words else words
    hopeless = is_hopeless(pod.view) or pod.news.hopeless
    lost = pod.view.phase in {"Failed", "Succeeded", "Unknown"} or hopeless
    state = HostState.FAILED if lost or pod.view.deleting else HostState.STARTING
    return HostStatus(host=pod.label, state=state, reason=reason, exit_code=pod.view.exit_code)
