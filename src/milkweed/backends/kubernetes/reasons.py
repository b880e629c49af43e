"""What a pod is, and what ails it: Kubernetes' own words, and what a person needs to know.

Pods and events come as the API gives them, as plain JSON. Nothing is asked here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from .pod_parts import (
    Object,
    condition,
    events_of,
    own_status,
    owner,
    parse_time,
    part,
    parts,
    text,
    told,
)
from .pod_template import WORKER
from .ranks import RANK_LABEL, rank_or_none
from .start import LEASE_OVER

MAX_RESTARTS = 3
"""A worker that ended this often will not stay by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One look at a pod."""

    name: str
    rank: int | None
    """None when its labels do not tell."""
    phase: str
    ready: bool
    node: str
    ip: str
    uid: str
    word: str
    """Kubernetes' own word for what ails it or what it waits for: ImagePullBackOff; empty when it is well."""
    reason: str
    """The word, and what it means here; empty likewise."""
    exit_code: int | None
    """How the container ended last, if it ever did."""
    container: str
    """The container that the reason is about; else the worker's."""
    restarts: int
    """How often that container was started again."""
    started: float | None
    """Since when the worker's container runs, in seconds since 1970."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    deleting: bool = False
    owner: str = ""
    """What makes it anew when it is gone: `StatefulSet/trainers`."""


class _Trouble(NamedTuple):
    word: str
    message: str = ""
    container: Object = MappingProxyType({})
    """The status of the container that it is about."""


MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        # before it is on a node
        "Pending": "the scheduler has not looked at it yet",
        "Unschedulable": "no node can take it now",
        "SchedulingGated": "it waits to be admitted, by a queue such as Kueue's",
        # before it runs
        "ContainerCreating": "its container is being made",
        "PodInitializing": "its init containers run",
        "FailedMount": "a volume cannot be mounted",
        "FailedAttachVolume": "a volume cannot be attached to the node",
        "FailedCreatePodSandBox": "the node cannot make the pod's network",
        "ErrImagePull": "its image cannot be pulled",
        "ImagePullBackOff": "its image cannot be pulled",
        "ErrImageNeverPull": "its image is not on the node, and may not be pulled",
        "InvalidImageName": "its image has a name that cannot be",
        "CreateContainerConfigError": "something that it refers to is missing or wrong",
        "CreateContainerError": "the node cannot make its container",
        "RunContainerError": "its command cannot be started",
        "StartError": "its command cannot be started",
        "ContainerCannotRun": "its command cannot be started",
        # while it runs
        "CrashLoopBackOff": "it ends again and again",
        "OOMKilled": "it used more memory than it was given; ask for more",
        "Error": "it ended with an error",
        "Completed": "it ended by itself",
        "NotReady": "it runs, and is not ready yet",
        "Terminating": "it is being deleted",
        # when it is taken away
        "Evicted": "its node ran out of something",
        "Preempting": "something of a higher priority took its place",
        "PreemptionByScheduler": "something of a higher priority took its place",
        "EvictionByEvictionAPI": "somebody drained its node, or evicted it",
        "DeletionByTaintManager": "its node is not to be used any more, or does not answer",
        "DeletionByPodGC": "its node is gone",
        "TerminationByKubelet": "its node shut down, or ran out of something",
        "Terminated": "its node shut down",
        "NodeShutdown": "its node shut down",
        "NodeLost": "its node does not answer",
        "NodeNotReady": "its node does not answer",
        "DeadlineExceeded": "it ran for longer than it may",
    }
)
"""Kubernetes' words in plain ones."""

_EARLY = frozenset({"", "ContainerCreating", "PodInitializing"})
_CREATION_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_NEVER = frozenset(
    {
        *("ErrImageNeverPull", "InvalidImageName", "RunContainerError"),
        *("StartError", "ContainerCannotRun"),
    }
)
_CANNOT_RUN = frozenset({126, 127})
"""Exit codes of shells for a command that is not there, or is no command."""
_MISSING = re.compile(
    r"not found|couldn't find key|manifest unknown|unauthorized|authentication required|denied|forbidden"
    r"|no basic auth credentials|invalid reference|not a valid image|no match for platform|runAsNonRoot",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"timed? ?out|deadline exceeded|too ?many ?requests|connection re"
    # What the cluster puts into every new namespace, and milkweed beside every mesh: it comes.
    r'|kube-root-ca|secrets? "milkweed-[0-9a-f]{8}-hosts"'
    # A node that is new: its drivers register, and the API server learns what its pods may read.
    r"|registered CSI drivers|no relationship found",
    re.IGNORECASE,
)
_CANNOT_START = re.compile(r"last (?:StartError|ContainerCannotRun)\b")
_NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')


def describe_pod(
    pod: Object,
    *,
    events: Iterable[Object] = (),
    container: str = WORKER,
    rank_label: str = RANK_LABEL,
) -> PodView:
    """What a pod is now; events of its namespace, where they are known, say more."""
    meta, status = pod["metadata"], part(pod, "status")
    own = own_status(pod, container)
    trouble = _find_trouble(pod, own, events_of(pod, events)) or _Trouble("")
    return PodView(
        name=meta["name"],
        rank=rank_or_none(pod, rank_label),
        phase=text(status, "phase") or "Unknown",
        ready=_is_ready(status),
        node=text(part(pod, "spec"), "nodeName"),
        ip=text(status, "podIP"),
        uid=text(meta, "uid"),
        word=trouble.word,
        reason=_render(trouble, own["name"]),
        exit_code=_exit_code(trouble.container or own),
        container=text(trouble.container or own, "name"),
        restarts=(trouble.container or own).get("restartCount", 0),
        started=parse_time(text(part(own, "state", "running"), "startedAt")),
        labels=dict(part(meta, "labels")),
        deleting="deletionTimestamp" in meta,
        owner=owner(pod),
    )


def _is_ready(status: Object) -> bool:
    return condition(status, "Ready").get("status") == "True"


def is_hopeless(view: PodView) -> bool:
    """Whether it will not get better by itself: a person must change something, or it has ended for good."""
    if view.phase in {"Failed", "Succeeded"}:
        return not view.owner
    if view.word in _NEVER:
        return True
    if LEASE_OVER in view.reason:
        return False  # it waits for a client, and left because none was there
    if view.word in {"CrashLoopBackOff", "Error", "OOMKilled"}:
        cannot = view.exit_code in _CANNOT_RUN or _CANNOT_START.search(view.reason)
        return view.restarts >= MAX_RESTARTS or bool(cannot)
    if view.word == "Unschedulable":
        return bool(_NO_CLAIM.search(view.reason))
    if view.word in {"ErrImagePull", "ImagePullBackOff", "FailedMount"}:
        return is_missing(view.reason)
    return view.word == "CreateContainerConfigError" and not _PASSING.search(view.reason)


def is_missing(words: str) -> bool:
    """Whether words of the cluster say that something is not there, or may not be had."""
    return bool(_MISSING.search(words)) and not _PASSING.search(words)


# What is the matter


def _find_trouble(pod: Object, own: Object, events: Sequence[Object]) -> _Trouble | None:
    """The first thing that explains why a pod is not ready, or will not stay; None when it is well."""
    status = part(pod, "status")
    return (
        _lost(status, own, events)
        or _taken(status)
        or _deleting(pod)
        or _unscheduled(status)
        or _broken(status, own, events)
        or _creating(status, events)
        or _unready(status, own, events)
    )


def _lost(status: Object, own: Object, events: Sequence[Object]) -> _Trouble | None:
    """The node does not answer. What it said last is still there, and is not true any more."""
    if text(status, "reason") == "NodeLost" or text(status, "phase") == "Unknown":
        return _Trouble("NodeLost", text(status, "message"))
    ready = condition(status, "Ready")
    # Of the pods of such a node only this one condition is changed, and no reason is given.
    silent = ready.get("status") in {"False", "Unknown"} and not ready.get("reason")
    if silent and own.get("ready") and text(status, "phase") == "Running":
        target = condition(status, "DisruptionTarget")
        return _Trouble("NodeLost", told(events, "NodeNotReady") or text(target, "message"))
    return None


def _taken(status: Object) -> _Trouble | None:
    if text(status, "phase") == "Failed" and text(status, "reason"):
        return _Trouble(text(status, "reason"), text(status, "message"))
    target = condition(status, "DisruptionTarget")
    if target.get("status") == "True":
        return _Trouble(text(target, "reason") or "Evicted", text(target, "message"))
    return None


def _deleting(pod: Object) -> _Trouble | None:
    return _Trouble("Terminating") if "deletionTimestamp" in pod["metadata"] else None


def _unscheduled(status: Object) -> _Trouble | None:
    said = condition(status, "PodScheduled")
    if said.get("status") != "False":
        return None
    return _Trouble(text(said, "reason") or "Unschedulable", text(said, "message"))


def _broken(status: Object, own: Object, events: Sequence[Object]) -> _Trouble | None:
    """A container that ended or cannot begin: init containers first, then the worker's, then the others."""
    if _is_ready(status):
        return None
    inits = [each for each in parts(status, "initContainerStatuses") if not _is_done(each)]
    others = [each for each in parts(status, "containerStatuses") if each != own]
    found = (_container_trouble(each, events) for each in (*inits, own, *others))
    return next(filter(None, found), None)


def _is_done(container: Object) -> bool:
    return part(container, "state", "terminated").get("exitCode") == 0


def _container_trouble(container: Object, events: Sequence[Object]) -> _Trouble | None:
    ended = part(container, "state", "terminated")
    if ended:
        return _Trouble(text(ended, "reason") or "Error", _ending(ended), container)
    waiting = part(container, "state", "waiting")
    word, message = text(waiting, "reason"), text(waiting, "message")
    if word in _EARLY:
        return None
    last = part(container, "lastState", "terminated")
    if word == "CrashLoopBackOff" and last:
        message = _loop(container, last)
    elif word == "ImagePullBackOff" and not _MISSING.search(message):
        message = told(events, "Failed", holding="pull image") or message
    return _Trouble(word, message, container)


def _loop(container: Object, last: Object) -> str:
    kind = text(last, "reason") or "Error"
    advice = f"; {MEANINGS[kind]}" if kind == "OOMKilled" else ""
    count: int = container.get("restartCount", 0)
    times = "once" if count == 1 else f"{count} times"
    return f"{times} so far, last {kind}: {_ending(last)}{advice}"


def _ending(ended: Object) -> str:
    code: int = ended.get("exitCode", 0)
    message = text(ended, "message")
    return ": ".join(filter(None, (f"exit code {code}{_signal(code)}", message)))


def _signal(code: int) -> str:
    try:
        return f", which is {signal.Signals(code - 128).name}"
    except ValueError:
        return ""


def _creating(status: Object, events: Sequence[Object]) -> _Trouble | None:
    """It is on a node and nothing of it runs: what the node says of it is in the events."""
    if text(status, "phase") != "Pending":
        return None
    if not condition(status, "PodScheduled"):
        return _Trouble("Pending")
    # A node that has made the pod's network has mounted all before: what it said then is over.
    begun = condition(status, "PodReadyToStartContainers").get("status") == "True"
    for word in () if begun else _CREATION_EVENTS:
        if message := told(events, word):
            return _Trouble(word, message)
    waiting = [part(each, "state", "waiting") for each in parts(status, "containerStatuses")]
    words = (text(each, "reason") for each in waiting)
    return _Trouble(next(filter(None, words), "ContainerCreating"), told(events[-1:], "Pulling"))


def _unready(status: Object, own: Object, events: Sequence[Object]) -> _Trouble | None:
    if _is_ready(status) or text(status, "phase") != "Running":
        return None
    message = told(events, "Unhealthy") or text(condition(status, "Ready"), "message")
    return _Trouble("NotReady", message, own)


def _render(trouble: _Trouble, own: str) -> str:
    if not trouble.word:
        return ""
    name = text(trouble.container, "name")
    where = f"container {name!r}" if name not in {"", own} else ""
    message = " ".join(trouble.message.split())
    said = (where, trouble.word, MEANINGS.get(trouble.word, ""), message)
    return ": ".join(filter(None, said))


def _exit_code(container: Object) -> int | None:
    for state in ("state", "lastState"):
        ended = part(container, state, "terminated")
        if ended:
            return ended.get("exitCode")
    return None
