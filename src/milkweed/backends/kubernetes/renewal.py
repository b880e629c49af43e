"""More time for hosts whose time limit is near: a cluster has no limits of its own, so the same hosts go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...control import Connection
from ...errors import MilkweedError, SpecError, UnreachableError
from ...plan import Renewal
from ...spec import JobSpec
from ...status import Status
from ..keepers import Answer, ask_all
from ..leads import check_renew, lead_time_s

LEFT, LIMIT = "time_left_s", "time_limit_s"


def check_renewal(spec: JobSpec) -> None:
    """Refuse to renew what never ends."""
    renew = spec.client.get("renew")
    check_renew(renew)
    if renew and spec.lifetime.time_limit_s is None:
        raise SpecError(
            "kubernetes.renew: this job has no time limit, so there is nothing to renew",
            hint="give it one: lifetime.time_limit in a job file, KubernetesJob(time_limit=…) in Python",
        )


def describe_time(answers: Sequence[Answer | str]) -> dict[str, str]:
    """What is left of the time of the host that ends first, and how much that was; nothing without a limit."""
    said = [each for each in answers if not isinstance(each, str) and each.get(LEFT) is not None]
    first: Mapping[str, Any] | None = min(said, key=lambda each: each[LEFT], default=None)
    if first is None:
        return {}
    return {LEFT: f"{first[LEFT]:.0f}", LIMIT: f"{first[LIMIT]:.0f}"}


def judge_time(status: Status, renew: str | None) -> Renewal:
    """Whether the time limit of some host is near."""
    if not renew or LEFT not in status.details:
        return Renewal.NONE
    left_s, limit_s = float(status.details[LEFT]), float(status.details[LIMIT])
    return Renewal.DUE if left_s <= lead_time_s(renew, limit_s) else Renewal.NONE


def give_time(doors: Sequence[str], limit_s: float | None) -> None:
    """Have all hosts' time begin anew. Some may have it when one does not answer; asking again is fine."""
    order = {"op": "renew", **({} if limit_s is None else {LIMIT: limit_s})}

    def ask(door: str) -> str:
        try:
            with Connection(door) as connection:
                connection.ask(order, "renewed")
        except MilkweedError as error:
            return error.seen or error.what
        return ""

    if trouble := [words for _door, words in ask_all(doors, ask) if words]:
        raise UnreachableError(
            f"{len(trouble)} of {len(doors)} hosts were not given more time",
            seen=trouble[0],
            hint="it is tried again as long as a client is connected",
        )
