"""What keeps the hosts of a mesh from being ready, of all its pods the one thing that is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..backends.kubernetes.reasons import PodView, describe_pod
from .reading import Object, number, pick, text, uid_of

_SAME = {"ErrImagePull": "ImagePullBackOff"}
"""Words between which the cluster goes back and forth, by the one that stays longer."""
_PATIENT = frozenset({"", "Pending", "ContainerCreating", "PodInitializing", "NotReady"})
"""What every pod goes through."""
_WORST = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "OOMKilled",
    "CrashLoopBackOff",
    "Error",
    "NodeLost",
    "Unschedulable",
    "NotReady",
    "SchedulingGated",
)
"""What is told first when hosts have different troubles: what needs a person most."""
_MESSAGE = 600
_PROBES = 3
"""So many looks in vain are news: a worker that starts is looked for before it listens."""


@dataclass(frozen=True, slots=True)
class Ailment:
    """What keeps one host from being ready."""

    pod: str
    rank: int
    reason: str
    message: str = ""


def is_ready(pod: Object) -> bool:
    """Whether a pod takes part."""
    return describe_pod(pod).ready


def find_ailment(pod: Object, warnings: Sequence[Object] = ()) -> Ailment | None:
    """What keeps a pod from being ready; None when it is ready, leaves, or only takes its time."""
    view = describe_pod(pod, events=warnings)
    if view.ready or view.deleting:
        return None
    if view.word in _PATIENT and not _is_unhealthy(pod, view, warnings):
        return None
    message = view.reason.removeprefix(f"{view.word}: ")[:_MESSAGE]
    return Ailment(view.name, view.rank or 0, _word(view), message)


def _word(view: PodView) -> str:
    """One word. Of a container that ends again and again for want of memory, that is the news."""
    if view.word == "CrashLoopBackOff" and "last OOMKilled" in view.reason:
        return "OOMKilled"
    return _SAME.get(view.word, view.word)


def _is_unhealthy(pod: Object, view: PodView, warnings: Sequence[Object]) -> bool:
    """Whether a pod runs and does not answer its probe."""
    about = (one for one in warnings if pick(one, "involvedObject", "uid") == uid_of(pod))
    failed = (number(one, "count") for one in about if text(one, "reason") == "Unhealthy")
    return view.word == "NotReady" and sum(failed) >= _PROBES


def find_worst(ailments: Iterable[Ailment]) -> tuple[Ailment, int] | None:
    """The ailment that is told, and how many hosts have it."""
    known = sorted(ailments, key=lambda one: (_order(one.reason), one.rank))
    if not known:
        return None
    first = known[0]
    return first, sum(one.reason == first.reason for one in known)


def _order(reason: str) -> int:
    return _WORST.index(reason) if reason in _WORST else _WORST.index("Error")
