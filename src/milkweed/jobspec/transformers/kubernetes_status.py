"""How a step is, from its Job and the pods of that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...backends.kubernetes.pod_parts import condition, own_status, part, text
from ...backends.kubernetes.reasons import PodView, describe_pod, is_hopeless
from ..progress import DONE, State, StepStatus, ended
from .kubernetes_objects import CONTAINER, INDEX_NOTE
from .processes import NOT_FOUND, NOT_RUNNABLE, TIMED_OUT

Object = Mapping[str, Any]
GONE = "its Job is gone from the cluster, and nobody saw how it ended"
LOST = StepStatus(State.LOST, None, GONE)
ADMISSION = "it waits to be admitted by a queue"
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
_MISSING = ("not found", "no such file")


def judge_job(job: Object, pods: Sequence[Object], *, holding: bool = False) -> StepStatus:
    """How the step of a Job is; `holding`: only its first pod works, and the others hold their nodes."""
    status, pods = part(job, "status"), sorted(pods, key=index_of)
    if condition(status, "Complete").get("status") == "True" or (holding and _is_served(pods)):
        return DONE
    failure = condition(status, "Failed")
    if failure.get("status") == "True":
        return _judge_failure(failure, pods)
    views = [describe_pod(pod, container=CONTAINER) for pod in pods]
    for view in views:
        if view.phase == "Pending" and is_hopeless(view):
            return ended(_code(view), view.reason)
    return _judge_going(job, pods, views)


def _is_served(pods: Sequence[Object]) -> bool:
    """Whether the one pod has ended well for which the others hold their nodes: older clusters do not see that."""
    return any(index_of(pod) == 0 and _phase(pod) == "Succeeded" for pod in pods)


def index_of(pod: Object) -> int:
    """Which of the pods of its Job it is."""
    said = part(pod, "metadata", "annotations").get(INDEX_NOTE, "0")
    return int(said) if str(said).isdecimal() else 0


def _phase(pod: Object) -> str:
    return text(part(pod, "status"), "phase")


def has_begun(pod: Object) -> bool:
    """Whether there is anything that it may have printed."""
    state = part(own_status(pod, CONTAINER), "state")
    return bool(part(state, "running") or part(state, "terminated"))


def _judge_failure(failure: Object, pods: Sequence[Object]) -> StepStatus:
    """The code of the first pod that failed; the others were ended because of it."""
    failed = [pod for pod in pods if _phase(pod) == "Failed"]
    if not failed:
        reason, message = text(failure, "reason"), text(failure, "message")
        return ended(1, ": ".join(filter(None, (reason, message))) or "its Job failed")
    first = min(failed, key=_finished)
    view = describe_pod(first, container=CONTAINER)
    code = _code(view)
    where = f"pod {view.name}: " if len(pods) > 1 else ""
    return ended(code, "" if _is_plain(view) else f"{where}{view.reason}")


def _finished(pod: Object) -> str:
    return text(part(own_status(pod, CONTAINER), "state", "terminated"), "finishedAt") or "~"


def _is_plain(view: PodView) -> bool:
    """Whether work has ended with a code, and there is nothing else to say."""
    return view.word == "Error" and view.reason.endswith(f"exit code {view.exit_code}")


def _code(view: PodView) -> int:
    if view.word == "DeadlineExceeded":
        return TIMED_OUT
    if view.word in _CANNOT_START:
        missing = any(word in view.reason for word in _MISSING)
        return NOT_FOUND if missing else NOT_RUNNABLE
    return view.exit_code or 1


def _judge_going(job: Object, pods: Sequence[Object], views: Sequence[PodView]) -> StepStatus:
    wanted = int(part(job, "spec").get("completions") or 1)
    begun = sum(map(has_begun, pods))
    waiting = [view for view, pod in zip(views, pods, strict=True) if not has_begun(pod)]
    reason = ""
    if waiting:
        reason = waiting[0].reason or waiting[0].phase
        reason = f"{begun} of {wanted} pods run; {reason}" if wanted > 1 else reason
    elif part(job, "spec").get("suspend"):
        reason = ADMISSION
    return StepStatus(State.RUNNING if begun else State.PENDING, None, reason)
