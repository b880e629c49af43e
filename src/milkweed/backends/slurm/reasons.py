"""What Slurm's reasons mean, for somebody who waits for hosts or has lost them, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ...status import Liveness
from .states import explain_state, liveness_of

_RELEASE = "`scontrol release JOB` lets it go"
_SHRINK = "ask for fewer hosts or a shorter time limit, or wait until other jobs have ended"
_LOG = "the end of its log tells more"

REASONS: Mapping[str, str] = MappingProxyType(
    {
        # waiting, and it will go on by itself
        "Priority": "jobs of higher priority come first; nothing to do but wait",
        "Resources": "it is next, and waits until enough nodes are free",
        "BeginTime": "it may not start before a given time; after a requeue Slurm waits two minutes",
        "Cleaning": "what is left of its last run is being cleaned up",
        "Prolog": "the site's prolog is running on its nodes",
        "Licenses": "it waits for a licence that other jobs use",
        "Reservation": "it waits for its reservation to begin",
        "Dependency": "it waits for another job to end",
        "SchedDefer": "the scheduler looks at it later",
        "FedJobLock": "the clusters of the federation decide which of them runs it",
        "JobArrayTaskLimit": "as many tasks of its array run as are allowed at once",
        "BurstBufferResources": "it waits for space in the burst buffer",
        "BurstBufferStageIn": "its files are being copied into the burst buffer",
        "MpiPortsBusy": "it waits for ports that other jobs use",
        "NvidiaImexChannels": "it waits for an IMEX channel that other jobs use",
        "MaxPoweredUpNodes": "no more nodes may be switched on; it waits until others are free",
        # waiting, and somebody has to do something
        "PartitionDown": (
            "the partition is down and starts no jobs; choose another one, or ask when it comes back"
        ),
        "PartitionInactive": (
            "the partition is inactive and takes no jobs; choose another one, or ask when it comes back"
        ),
        "PartitionNodeLimit": (
            "the partition does not give that many nodes to a job, or too many of them are down; "
            "ask for fewer hosts, or choose another partition"
        ),
        "PartitionTimeLimit": (
            "the partition does not allow that much time; ask for a shorter time limit, "
            "or choose another partition"
        ),
        "PartitionConfig": (
            "the partition cannot give what was asked for; compare it with "
            "`scontrol show partition`, and ask for less"
        ),
        "ReqNodeNotAvail": (
            "nodes it needs are down, drained or reserved; `sinfo -R` says why, "
            "and a shorter time limit may end before a reservation begins"
        ),
        "JobHeldUser": f"it is held; {_RELEASE}",
        "JobHeldAdmin": "an administrator holds it; only an administrator can release it",
        "JobHoldMaxRequeue": f"it was requeued too often and is held; look into its log, then {_RELEASE}",
        "DependencyNeverSatisfied": (
            "the job it waits for did not end as required, so it will never start; cancel it"
        ),
        "BadConstraints": "no node has what was asked for; ask for less, or for other features",
        "Constraints": "the nodes with the features it asks for are not available now",
        "DeadLine": "it can no longer end before its deadline",
        "InvalidAccount": "its account is not valid; `sacctmgr show associations user=$USER` has yours",
        "AccountNotAllowed": "the partition does not take jobs of this account; choose another one",
        "AccountingPolicy": "a limit of the site stops it; ask its administrators which",
        "InvalidQOS": "its QOS is not valid; `sacctmgr show associations user=$USER` has yours",
        "QOSNotAllowed": "the partition does not take jobs with this QOS; choose another one",
        "QOSUsageThreshold": "the account has used more than its QOS allows for now",
        "MaxMemPerLimit": "it asks for more memory than the partition allows; ask for less",
        "ReservationDeleted": "its reservation was deleted; cancel it, and ask without the reservation",
        "ReservationInvalid": "its reservation cannot be used; cancel it, and ask without the reservation",
        "BurstBufferOperation": "copying its files into or out of the burst buffer failed",
        # ends
        "NodeDown": "a node of the job went down",
        "SystemFailure": "Slurm itself failed; its administrators can tell more",
        "JobLaunchFailure": (
            "Slurm could not start the script, or a signal ended it; "
            "the folder for its output may be missing on the node"
        ),
        "NonZeroExitCode": f"its script ended with an error; {_LOG}",
        "RaisedSignal": f"its script was ended by a signal; {_LOG}",
        "TimeLimit": "it reached its time limit; ask for a longer one",
        "InactiveLimit": "it was idle for longer than the site allows",
        "OutOfMemory": "it used more memory than it was given; ask for more",
    }
)
"""Slurm's reasons in plain words."""

_SENTENCES = (
    ("nodes required for job are down", REASONS["ReqNodeNotAvail"]),
    (
        "launch failed requeued held",
        f"a node could not start it, so it was requeued and is held; `sinfo -R` may say why, and {_RELEASE}",
    ),
    ("job requeued in held state", f"it was requeued and is held; {_RELEASE}"),
    ("which this job was running under, has ended", "its reservation has ended"),
    ("job is at or exceeds", f"a limit of your account or QOS is reached; {_SHRINK}"),
)

_FAMILIES = (
    (r"QOSMin\w+", "it asks for less than its QOS requires; ask for more, or use another QOS"),
    (
        r"(?:QOS|Assoc)Max\w+Per(?:Job|Node)(?:Limit)?",
        "it asks for more than {who} allows one job; ask for less",
    ),
    (r"(?:QOS|Assoc)Grp\w+", f"all jobs of {{who}} together have reached a limit; {_SHRINK}"),
    (r"(?:QOS|Assoc)Max\w+", f"you have reached a limit of {{who}}; {_SHRINK}"),
    (r"(?:QOS|Association)\w+Limit", f"a limit of {{who}} is reached; {_SHRINK}"),
    (r"Max\w+PerAccount", f"your account has reached a limit of its QOS; {_SHRINK}"),
    (r"Max\w+PerUser", f"you have reached a limit of your QOS; {_SHRINK}"),
)


def explain_reason(reason: str) -> str:
    """A reason in plain words, with what to do; empty when there is nothing to add."""
    text = reason.strip().strip("()").replace("_", " ")
    for sentence, words in _SENTENCES:
        if sentence in text.lower():
            return words
    word = re.split(r"[,:;(\s]", text, maxsplit=1)[0]
    return REASONS.get(word) or _explain_family(word)


def explain_job(state: str, reason: str) -> str:
    """What is the matter with a job, in plain words; empty when neither word is known.

    A reason outlives what it was the reason for: a job that was cancelled while it was held is still
    `JobHeldUser`. Only a job that failed has a reason for that.
    """
    words = explain_state(state)
    if liveness_of(state) is Liveness.ENDED and words != explain_state("FAILED"):
        return words
    return ": ".join(filter(None, (words, explain_reason(reason))))


def _explain_family(word: str) -> str:
    """Limits have about a hundred names, made of few words."""
    who = "your QOS" if word.startswith("QOS") else "your account"
    for pattern, words in _FAMILIES:
        if re.fullmatch(pattern, word):
            return words.format(who=who)
    return ""
