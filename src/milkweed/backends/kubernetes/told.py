"""What the operator says of a mesh: it sees the cluster's events, of which pods themselves tell nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .pod_parts import condition, part, text
from .reasons import is_missing

READY = "Ready"
_QUIET = frozenset({"", "AllReady", "Waiting", "Updating"})
"""Reasons that every mesh goes through."""
_COUNT = re.compile(r"^\d+ of \d+ hosts are ready(?:; )?")
_PASSING = re.compile(
    r"exceeded quota|timed? ?out|deadline exceeded|too ?many ?requests|connection re|calling webhook",
    re.IGNORECASE,
)
# The account `default` of a namespace is not there for a moment after the namespace.
_NEVER = re.compile(
    r"violates PodSecurity|(?:maximum|minimum) \S+ usage per"
    r"|\bPod \S+ is invalid: |no PriorityClass with name|RuntimeClass \S+ not found"
    r"|error looking up service account [^/\s]+/(?!default:)\S+: serviceaccount \S+ not found",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Told:
    """Why a mesh is not ready."""

    reason: str = ""
    """One word: FailedMount, FailedCreate, Refused, Conflict; empty where there is nothing to tell."""
    message: str = ""

    @property
    def words(self) -> str:
        """The word, and what it is about."""
        if self.message.startswith(self.reason):
            return self.message
        return f"{self.reason}: {self.message}"

    @property
    def hopeless(self) -> bool:
        """Whether it will not get better by itself: a person must change something."""
        if self.reason in {"Refused", "Conflict"}:
            return not _PASSING.search(self.message)
        if self.reason == "FailedCreate":
            return bool(_NEVER.search(self.message))
        return self.reason == "FailedMount" and is_missing(self.message)


NOTHING = Told()


def read_told(mesh: Mapping[str, Any]) -> Told:
    """What the operator says of a mesh as it was asked for last; nothing of one that is as it should be."""
    said = condition(part(mesh, "status"), READY)
    reason = text(said, "reason")
    current = said.get("observedGeneration") == part(mesh, "metadata").get("generation")
    if not current or said.get("status") == "True" or reason in _QUIET:
        return NOTHING
    return Told(reason, " ".join(_COUNT.sub("", text(said, "message")).split()))


def is_leaving(mesh: Mapping[str, Any]) -> bool:
    """Whether an object is being deleted, as the cluster or the operator's endpoint tells it."""
    return "deletionTimestamp" in part(mesh, "metadata") or mesh.get("leaving") is True


def trim_mesh(mesh: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a mesh is looked at."""
    meta = part(mesh, "metadata")
    kept = {key: meta[key] for key in ("generation", "deletionTimestamp") if key in meta}
    said = condition(part(mesh, "status"), READY)
    return {"metadata": kept, "status": {"conditions": [said] if said else []}}
