"""What Slurm's words for the state of a job mean for an allocation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ...status import Liveness

STATES: Mapping[str, tuple[str, Liveness, str]] = MappingProxyType(
    {
        # state: short code, what it means for an allocation, plain words
        "PENDING": ("PD", Liveness.PENDING, "it waits in the queue"),
        # Nodes are given, but still boot or are being set up: no worker runs yet.
        "CONFIGURING": ("CF", Liveness.PENDING, "its nodes are being made ready"),
        "POWER_UP_NODE": ("PU", Liveness.PENDING, "its nodes are being switched on"),
        # Back in the queue, for one reason or another.
        "REQUEUED": ("RQ", Liveness.PENDING, "it was put back into the queue"),
        "REQUEUE_FED": ("RF", Liveness.PENDING, "its federation puts it back into the queue"),
        "REQUEUE_HOLD": ("RH", Liveness.PENDING, "it was put back into the queue and is held"),
        "SPECIAL_EXIT": ("SE", Liveness.PENDING, "it was put back into the queue and is held"),
        "RESV_DEL_HOLD": ("RD", Liveness.PENDING, "it is held: its reservation was deleted"),
        "EXPEDITING": ("EX", Liveness.PENDING, "it is put back to the front of the queue"),
        # The hosts are ours; that a job does not run for a while changes nothing about that.
        "RUNNING": ("R", Liveness.RUNNING, "it runs"),
        "RESIZING": ("RS", Liveness.RUNNING, "its size is being changed"),
        "SIGNALING": ("SI", Liveness.RUNNING, "it is being sent a signal"),
        "STOPPED": ("ST", Liveness.RUNNING, "it was stopped by a signal and keeps its hosts"),
        "SUSPENDED": ("S", Liveness.RUNNING, "it is suspended and keeps its hosts"),
        # Its processes are being ended. What follows is an end or the queue, and this word does not
        # tell which: ENDED would be too early, PENDING and RUNNING may never be true again.
        "COMPLETING": ("CG", Liveness.UNKNOWN, "its processes are being ended"),
        "STAGE_OUT": ("SO", Liveness.UNKNOWN, "its files are being copied back"),
        # Marks that stand beside a state and hide it.
        "LAUNCH_FAILED": ("LF", Liveness.UNKNOWN, "it could not be launched"),
        "RECONFIG_FAIL": ("RC", Liveness.UNKNOWN, "its nodes could not be set up"),
        "UPDATE_DB": ("UD", Liveness.UNKNOWN, "its record is being updated"),
        "GETENV_FAILED": ("GF", Liveness.UNKNOWN, "the user's environment could not be read"),
        # Over for good.
        "BOOT_FAIL": ("BF", Liveness.ENDED, "a node did not boot"),
        "CANCELLED": ("CA", Liveness.ENDED, "it was cancelled"),
        "COMPLETED": ("CD", Liveness.ENDED, "it ended by itself, with exit code 0"),
        "DEADLINE": ("DL", Liveness.ENDED, "its deadline passed"),
        "FAILED": ("F", Liveness.ENDED, "it failed"),
        "NODE_FAIL": ("NF", Liveness.ENDED, "a node failed"),
        "OUT_OF_MEMORY": ("OOM", Liveness.ENDED, "it used more memory than it was given"),
        "PREEMPTED": ("PR", Liveness.ENDED, "a job of higher priority took its nodes"),
        "REVOKED": ("RV", Liveness.ENDED, "another cluster of the federation took the job"),
        "TIMEOUT": ("TO", Liveness.ENDED, "its time limit was reached"),
    }
)
"""Every state of Slurm up to 24.11, and later ones that are known."""

_CODES = {code: state for state, (code, _, _) in STATES.items()}
_WORD = re.compile(r"\s*([A-Z_]+)\+?(?:\s+by\s+\S+)?\s*")


def _state_of(text: str) -> str:
    """The full word in `CANCELLED by 1000`, `CANCELLED+`, `CA` or `cancelled`; empty when not known."""
    match = _WORD.fullmatch(text.upper().replace(" BY ", " by "))
    if match is None:
        return ""
    word = _CODES.get(match[1], match[1])
    if word in STATES:
        return word
    cut = [state for state in STATES if state.startswith(word)] if len(word) >= 4 else []
    return cut[0] if len(cut) == 1 and "+" in text else ""


def liveness_of(state: str) -> Liveness:
    """What a state of Slurm means for an allocation; a word that is not known is UNKNOWN."""
    word = _state_of(state)
    return STATES[word][1] if word else Liveness.UNKNOWN


def explain_state(state: str) -> str:
    """A state in plain words, such as `a node failed`; empty when it is not known."""
    word = _state_of(state)
    return STATES[word][2] if word else ""
