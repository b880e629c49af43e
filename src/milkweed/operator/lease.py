"""Which operator acts: one holds a lease and renews it, the others wait until it runs out."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import MilkweedError
from ..kube.api import Api, ApiError
from ..kube.resources import LEASES
from .reading import Object, mapping, number, text

DURATION_S = 15
"""How long others wait for a holder that says nothing."""
ACTS_S = 10.0
"""How long a holder acts that cannot renew: it stops well before another one starts."""
STEP_S = 3.0
"""How often the lease is looked at."""
_CONFLICT = 409


def utc_now() -> dt.datetime:
    """The time of day, for people and for records."""
    return dt.datetime.now(dt.UTC)


class Leadership:
    """One operator's share in a lease. Only its own clock counts; records of others' clocks are not compared."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._clock = clock
        self._wall = wall
        self._until = 0.0
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0
        self._over = False
        self.trouble: MilkweedError | None = None

    @property
    def holder(self) -> str:
        """Who held the lease when it was last seen."""
        return self._seen[0]

    def holds(self) -> bool:
        """Whether this operator may act now."""
        return self._clock() < self._until

    def step(self) -> bool:
        """Take or renew the lease where possible; whether this operator may act."""
        try:
            self._step()
            self.trouble = None
        except ApiError as error:
            lost = error.status == _CONFLICT  # somebody else was faster
            self._until = 0.0 if lost else self._until
            self.trouble = None if lost else error
        except MilkweedError as error:
            self.trouble = error
        return self.holds()

    def _step(self) -> None:
        asked = self._clock()
        found = self._read()
        if self._over:  # it was let go while we read: nobody takes it back
            return
        if found is None:
            self._keep(self._api.create(LEASES, self._namespace, self._make({})), asked)
        elif self._may_take(found):
            self._keep(self._write(self._make(found)), asked)
        else:
            self._until = 0.0

    def _read(self) -> Object | None:
        try:
            found = self._api.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if error.missing:
                return None
            raise
        self._notice(found)
        return found

    def _notice(self, found: Object) -> None:
        seen = text(found, "spec", "holderIdentity"), text(found, "metadata", "resourceVersion")
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()

    def _may_take(self, found: Object) -> bool:
        holder = text(found, "spec", "holderIdentity")
        patience_s = number(found, "spec", "leaseDurationSeconds") or DURATION_S
        silent = self._clock() - self._seen_at >= patience_s
        return holder in {"", self.identity} or silent

    def _make(self, found: Object) -> dict[str, Any]:
        now = render_time(self._wall())
        before = mapping(found, "spec")
        spec = {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": now,
        }
        if text(before, "holderIdentity") != self.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = number(before, "leaseTransitions") + bool(before)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": mapping(found, "metadata") or {"name": self._name},
            "spec": spec,
        }

    def _write(self, body: Mapping[str, Any]) -> Object:
        """The version of what was read goes along: whoever writes second is refused."""
        return self._api.replace(LEASES, self._namespace, self._name, body)

    def _keep(self, found: Object, asked: float) -> None:
        """The time counts from the question on: the answer may have taken long."""
        self._notice(found)
        self._until = 0.0 if self._over else asked + ACTS_S

    def release(self) -> None:
        """Let another one act at once; called when this one does no more, and never will."""
        held, self._over, self._until = self.holds(), True, 0.0
        if not held:
            return
        try:
            self._let_go()
        except ApiError as error:
            self.trouble = error
            if error.status == _CONFLICT:  # a step that was under way has renewed it meanwhile
                with contextlib.suppress(MilkweedError):
                    self._let_go()
        except MilkweedError as error:
            self.trouble = error

    def _let_go(self) -> None:
        found = self._read()
        if found is not None and self.holder == self.identity:
            spec = {**mapping(found, "spec"), "holderIdentity": "", "leaseDurationSeconds": 1}
            self._write({**found, "spec": spec})


def render_time(moment: dt.datetime) -> str:
    """A time as leases have it, with microseconds."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def render_second(moment: dt.datetime) -> str:
    """A time as everything else has it."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
