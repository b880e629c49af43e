"""What the operator remembers of its writes; a new one does well without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kube.meshes import service_name
from ..kube.resources import SERVICES, STATEFUL_SETS
from .reading import Key, key_of
from .reconcile import Action

FIRST_PAUSE_S = 1.0
SLOWEST_PAUSE_S = 300.0
QUIET_S = 600.0
"""After this time without a repair the next one is a first one again."""


@dataclass(slots=True)
class _Written:
    wanted: str
    at: float
    count: int = 0
    futile: str = ""
    """What was seen when the same write changed nothing."""


class Memory:
    """What was written before, so that nothing is written in vain and nobody is fought with."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[tuple[Key, str], _Written] = {}

    def is_futile(self, action: Action) -> bool:
        """Whether the same was written before and changed nothing: others bend it on its way in."""
        last = self._written.get(_place(action))
        return bool(last and last.wanted == action.wanted and last.futile == action.seen != "")

    def wait_s(self, action: Action) -> float:
        """How long to wait before doing again what somebody undid; longer each time."""
        last = self._written.get(_place(action))
        if last is None or last.wanted != action.wanted:
            return 0.0
        pause_s = min(FIRST_PAUSE_S * 2**last.count, SLOWEST_PAUSE_S)
        return max(last.at + pause_s - self._clock(), 0.0)

    def remember(self, action: Action, *, changed: bool) -> None:
        """It was written."""
        place, now = _place(action), self._clock()
        last = self._written.get(place)
        again = last is not None and last.wanted == action.wanted and now < last.at + QUIET_S
        self._written[place] = _Written(
            action.wanted,
            now,
            count=last.count + 1 if last is not None and again else 0,
            futile="" if changed else action.seen,
        )

    def forget(self, key: Key) -> None:
        """The mesh is gone."""
        namespace, name = key
        self._written.pop((key, STATEFUL_SETS.plural), None)
        self._written.pop(((namespace, service_name(name)), SERVICES.plural), None)

    def forget_all(self) -> None:
        """Somebody else writes."""
        self._written.clear()


def _place(action: Action) -> tuple[Key, str]:
    return key_of(action.body), action.resource.plural
