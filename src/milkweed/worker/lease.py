"""How long hosts may live: with their owner, or, when a record is kept, until they idle too long."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

OWNER_GRACE_S = 30.0
"""How long hosts wait for the client that started them to connect for the first time."""
QUEUED_OWNER_GRACE_S = 300.0
"""The same, for hosts that came at a moment nobody knew beforehand."""
LEFT_GRACE_S = 60.0
"""How long hosts wait for a client whose lease was over, and whom a scheduler has started anew all the same.

Less than what a mesh may take to end (`SPREAD_S` of the operator): so hosts that do not idle since the same moment
have left, all of them, when the last one does.
"""


@dataclass(eq=False, repr=False)
class Lease:
    """Pure but for reading the clock once when made."""

    keep: bool
    idle_timeout_s: float
    time_limit_s: float | None = None
    batch: bool = False
    queued: bool = False
    """They took a queue to get: they wait for their first client, however long it takes to come."""
    met: bool = False
    """A client was there before they were started anew: they idle as others do."""
    age_s: float = 0.0
    """How old their place is already: what was started anew there has the time limit of the first."""
    left: bool = False
    """They left because their lease was over, and were started anew: they need not wait that long again."""
    spare_s: float | None = None
    """Of a follow-up: how long those that it follows may still be used; until then it need not be."""
    born_s: float = field(default_factory=time.monotonic)
    owner_seen: bool = False
    owner_lost: bool = False
    back_by_s: float = 0.0
    """Until when an owner that has gone may be back: it said that it would."""
    idle_since_s: float | None = None

    def __post_init__(self) -> None:
        # Somebody wanted a follow-up when it was asked for; whether anybody still does is seen by who comes.
        waits = self.queued and not self.met and self.spare_s is None
        self.idle_since_s = None if waits else self.born_s

    @property
    def _due_s(self) -> float:
        """From when on somebody should be there."""
        return self.born_s + (self.spare_s or 0.0)

    def saw_client(self, *, owner: bool) -> None:
        """A client has connected."""
        self.idle_since_s = None
        self.left = False
        if owner:
            self.owner_seen = True
            self.owner_lost = False

    def lost_client(self, now_s: float, *, owner: bool, back_s: float = 0.0) -> None:
        """A client has gone; one that wants to come back has some time to."""
        self.idle_since_s = now_s
        if owner:
            self.owner_lost = True
            self.back_by_s = now_s + back_s

    def renew(self, now_s: float, time_limit_s: float | None = None) -> None:
        """The time limit counts from now on; it may be another one."""
        self.age_s = self.born_s - now_s
        if time_limit_s is not None and self.time_limit_s is not None:
            self.time_limit_s = time_limit_s

    def time_left_s(self, now_s: float) -> float | None:
        """What is left of the time limit; None where there is none."""
        if self.time_limit_s is None:
            return None
        return max(0.0, self.time_limit_s - self.age_s - now_s + self.born_s)

    def over(self, now_s: float, clients: int) -> str:
        """Why the lease is over, or nothing."""
        if self.time_limit_s is not None and self.age_s + now_s - self.born_s >= self.time_limit_s:
            return f"its time limit of {self.time_limit_s:g} s was reached"
        if self.batch:
            return ""
        if not self.keep:
            if self.owner_lost and now_s >= self.back_by_s:
                return "its owner is gone"
            grace_s = QUEUED_OWNER_GRACE_S if self.queued else OWNER_GRACE_S
            if not self.owner_seen and now_s - self._due_s > grace_s:
                return f"its owner did not connect within {grace_s:.0f} s"
            return ""
        since_s = now_s if self.idle_since_s is None else max(self.idle_since_s, self._due_s)
        idle_s = now_s - since_s
        if clients == 0 and self.left and idle_s >= LEFT_GRACE_S:
            return f"its lease was over before, and nobody came within {LEFT_GRACE_S:g} s"
        if clients == 0 and idle_s >= self.idle_timeout_s:
            return f"nobody was connected for {self.idle_timeout_s:g} s (its idle time-out)"
        return ""

    @property
    def next_check_s(self) -> float:
        """How long to sleep between looks at the clock."""
        shortest_s = min(self.idle_timeout_s if self.keep else 10.0, self.time_limit_s or 50.0)
        return min(5.0, max(0.05, shortest_s / 10))
