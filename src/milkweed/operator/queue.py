"""Which meshes are to be looked at, and when: soon after a change, and ever later after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from .reading import Key

DEBOUNCE_S = 0.1
"""How long further changes of a mesh are waited for."""
REST_S = 0.25
"""The least time between two looks at the same mesh."""
FIRST_BACKOFF_S = 0.5
SLOWEST_BACKOFF_S = 300.0
_NAP_S = 1.0


class WorkQueue:
    """Meshes to look at. Each is in it once, and in one pair of hands at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._not_before: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._busy: set[Key] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, after_s: float = DEBOUNCE_S) -> None:
        """Look at a mesh soon; while it fails, not before its time."""
        with self._changed:
            self._schedule(key, self._clock() + after_s)

    def urge(self, key: Key) -> None:
        """Look at a mesh soon, though it failed before: what is wanted of it is another thing now."""
        with self._changed:
            self._forget(key)
            self._schedule(key, self._clock() + DEBOUNCE_S)

    def urge_all(self, keys: Sequence[Key]) -> None:
        """Look at all these."""
        for key in keys:
            self.urge(key)

    def _schedule(self, key: Key, at: float) -> None:
        at = max(at, self._not_before.get(key, at))
        self._due[key] = min(at, self._due.get(key, at))
        self._changed.notify_all()

    def _forget(self, key: Key) -> None:
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def clear(self) -> None:
        """Forget everything: somebody else looks at meshes."""
        with self._changed:
            self._due.clear()
            self._not_before.clear()
            self._failures.clear()

    # Working

    def take(self) -> Key | None:
        """The mesh that has waited longest for a look that is due; it is the caller's until `done` or `failed`."""
        with self._changed:
            return self._take()

    def _take(self) -> Key | None:
        now = self._clock()
        ready = [(at, key) for key, at in self._due.items() if at <= now and key not in self._busy]
        if not ready:
            return None
        _at, key = min(ready)
        del self._due[key]
        self._busy.add(key)
        return key

    def wait_take(self, is_over: Callable[[], bool]) -> Key | None:
        """Wait for a mesh to look at; None when it is over."""
        with self._changed:
            while not is_over():
                if key := self._take():
                    return key
                self._changed.wait(min(_NAP_S, max(self._next_s(), 0.01)))
        return None

    def _next_s(self) -> float:
        times = [at for key, at in self._due.items() if key not in self._busy]
        return min(times) - self._clock() if times else _NAP_S

    def done(self, key: Key, again_s: float | None = None) -> None:
        """It was looked at; look again after some time, or when it changes."""
        with self._changed:
            self._busy.discard(key)
            self._forget(key)
            now = self._clock()
            if key in self._due or again_s is not None:
                self._not_before[key] = now + REST_S
                again = self._due.pop(key, now + (again_s or 0.0))
                self._schedule(key, min(again, now + again_s) if again_s is not None else again)

    def failed(self, key: Key) -> float:
        """It could not be looked at; the pause before the next try."""
        with self._changed:
            self._busy.discard(key)
            count = self._failures.get(key, 0)
            self._failures[key] = count + 1
            pause_s = min(FIRST_BACKOFF_S * 2**count, SLOWEST_BACKOFF_S)
            self._not_before[key] = self._clock() + pause_s
            self._due.pop(key, None)
            self._schedule(key, self._not_before[key])
            return pause_s

    def failures(self, key: Key) -> int:
        """How often in a row it failed."""
        with self._changed:
            return self._failures.get(key, 0)

    def wake(self) -> None:
        """Let those who wait look whether it is over."""
        with self._changed:
            self._changed.notify_all()
