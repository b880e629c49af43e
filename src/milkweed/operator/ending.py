"""When a mesh ends by itself: every host of it has said that its lease is over.

A host says so with the last words of its worker's container, when nobody was connected to it for the idle time-out
or its owner is gone. Kubernetes starts the container again and keeps the words, so they alone tell nothing of now.

A mesh of a job is over when all of this is so:

1. Each of its hosts has a pod that is not being deleted, and the worker's container there ended with the words
   the last time it ended.
2. At least one of these pods was not ready since. Clients connect to all hosts of a mesh at once, and only when
   all are ready: none was there when that pod said so, and none can have come. If all are ready again, it is
   too late to act upon the words, since somebody may be there.
3. No host was up again for longer than SPREAD_S when the last one spoke. Such a host may be in use, and the last
   one may only have been cut off from a client that the others still have.

Hosts need not speak at about the same time: they may have started apart, or one may have been made anew. Who has
spoken and is up again speaks once more after a minute without a client (`LEFT_GRACE_S` of the worker), and at once
when its time limit is over. So when the last one speaks, no other one is up for longer than that.

Otherwise hosts speak seconds apart, and up to a minute where some notice later than others that a client is gone.
The times are those of the nodes, whose clocks are taken to be less than SPREAD_S apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.kubernetes.pod_parts import condition, own_status, parse_time
from ..backends.kubernetes.pod_template import WORKER
from ..backends.kubernetes.start import JOB_LABEL, LEASE_OVER
from .reading import Object, is_leaving, mapping, name_of, number, pick, text
from .reconcile import World

SPREAD_S = 120.0
"""How long a host may be up again before it counts as used; a lost client is noticed within a minute."""
_NOTICED_S = 2.0
"""How long after a container started its node may notice that the one before it ended."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """The last words of one host."""

    at: float
    """When they were said, in seconds since 1970."""
    up_since: float | None
    """Since when the host is up again; None when it is not."""
    silent: bool
    """Whether the host was not ready since."""


def is_over(world: World) -> bool:
    """Whether a mesh is to be ended, by the rule above."""
    pods = _find_hosts(world)
    if not pods or not text(world.mesh, "metadata", "labels", JOB_LABEL):
        return False
    said = [read_farewell(pod) for pod in pods]
    known = [one for one in said if one is not None]
    if len(known) < len(said) or not any(one.silent for one in known):
        return False
    last = max(one.at for one in known)
    return all(one.up_since is None or last - one.up_since <= SPREAD_S for one in known)


def count_farewells(pods: Sequence[Object]) -> int:
    """How many hosts have ended because their lease was over, the last time that they ended."""
    return sum(read_farewell(pod) is not None for pod in pods)


def _find_hosts(world: World) -> list[Object]:
    """The pods of all hosts; none when one is missing, leaves or is not ours."""
    found = world.own_stateful_set
    wanted = [f"{name_of(world.mesh)}-{i}" for i in range(number(world.mesh, "spec", "replicas"))]
    pods = {name_of(pod): pod for pod in world.pods if not is_leaving(pod)}
    if found is None or is_leaving(found) or not all(name in pods for name in wanted):
        return []
    return [pods[name] for name in wanted]


def read_farewell(pod: Object) -> Farewell | None:
    """What the worker's container said when it last ended; None when that were not the words."""
    own = own_status(pod, WORKER)
    now = mapping(own, "state")
    ended = pick(now, "terminated") or pick(own, "lastState", "terminated")
    at = parse_time(text(ended, "finishedAt"))
    if at is None or not text(ended, "message").strip().startswith(LEASE_OVER):
        return None
    up_since = parse_time(text(now, "running", "startedAt"))
    return Farewell(at, up_since, up_since is None or _is_unready_since(pod, up_since))


def _is_unready_since(pod: Object, up_since: float) -> bool:
    """Whether a pod was not ready since its container started: it was not when that did, and nothing changed."""
    ready = condition(mapping(pod, "status"), "Ready")
    changed = parse_time(text(ready, "lastTransitionTime"))
    if text(ready, "status") == "True" or changed is None:
        return False
    return changed <= up_since + _NOTICED_S
