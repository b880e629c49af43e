"""Which pod is which host: the rank that a label says, and all that can be wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import SpecError
from .pod_parts import Object, owner, part

RANK_LABEL = "apps.kubernetes.io/pod-index"
"""What a StatefulSet numbers its pods with."""


def rank_of(pod: Object, label: str = RANK_LABEL) -> int:
    """The rank that a pod's label says; pods of a StatefulSet have it in their names, too."""
    name = pod["metadata"]["name"]
    said: str | None = part(pod, "metadata", "labels").get(label)
    if said is None and label == RANK_LABEL and owner(pod).startswith("StatefulSet/"):
        said = name.rpartition("-")[2]  # clusters before 1.28 have no such label
    if said is None:
        raise SpecError(
            f"pod {name!r} has no label {label!r}, so its rank is not known",
            hint="name the label that has it with pod_rank_label",
        )
    if not re.fullmatch(r"\d{1,9}", said, re.ASCII):
        raise SpecError(
            f"pod {name!r}: {said!r} in the label {label!r} is not a rank",
            hint="number the pods from 0, or name another label with pod_rank_label",
        )
    return int(said)


def rank_or_none(pod: Object, label: str = RANK_LABEL) -> int | None:
    """The same, where nobody asks why."""
    try:
        return rank_of(pod, label)
    except SpecError:
        return None


def pods_by_rank(
    pods: Iterable[Object], *, replicas: int, label: str = RANK_LABEL
) -> dict[int, Object]:
    """The pod of each rank, in order; some may be missing.

    A pod that goes makes way for the one that comes: it counts only where there is no other of its rank.
    """
    found: dict[int, Object] = {}
    for pod in sorted(pods, key=_is_leaving, reverse=True):
        rank = rank_of(pod, label)
        if rank >= replicas:
            raise _too_many(pod, rank, replicas)
        if rank in found and not _is_leaving(found[rank]):
            raise _twice(found[rank], pod, rank, label)
        found[rank] = pod
    return {rank: found[rank] for rank in sorted(found)}


def stay_of(pods: Iterable[Object]) -> list[Object]:
    """The pods that are not about to go."""
    return [pod for pod in pods if not _is_leaving(pod)]


def _is_leaving(pod: Object) -> bool:
    ended = part(pod, "status").get("phase") in {"Failed", "Succeeded"}
    return ended or "deletionTimestamp" in pod["metadata"]


def _too_many(pod: Object, rank: int, replicas: int) -> SpecError:
    return SpecError(
        f"pod {pod['metadata']['name']!r} has rank {rank}, but the mesh has {replicas} hosts",
        hint=f"ask for {rank + 1} hosts, or choose fewer pods with label_selector",
    )


def _twice(first: Object, second: Object, rank: int, label: str) -> SpecError:
    names = f"{first['metadata']['name']!r} and {second['metadata']['name']!r}"
    return SpecError(
        f"pods {names} both have rank {rank} in the label {label!r}",
        hint="choose the pods of one mesh with label_selector, or another label with pod_rank_label",
    )
