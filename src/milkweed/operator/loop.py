"""The operator as a program: it follows the cluster, and acts while it holds the lease."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MilkweedError
from ..kube.api import Api
from ..kube.resources import MESHES, PODS, SERVICES, STATEFUL_SETS
from .act import Hands, NotLeadingError
from .controller import Controller, RefusedError, make_pictures
from .follow import Follower
from .lease import STEP_S, Leadership, utc_now
from .objects import SELECTOR
from .queue import WorkQueue
from .reading import Key, Object, mapping, number
from .rights import LEASE

RESYNC_S = 600.0
"""How often every mesh is looked at, though nothing seems to have changed."""
STUCK_S = 300.0
"""After this time one look at one mesh counts as stuck."""
SILENT_S = 180.0
"""After this time without a look at the lease the program counts as stuck."""
STOP_S = 10.0
IDLE_S = 0.5
"""How often an operator that does not act looks whether it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an operator runs."""

    identity: str
    lease_namespace: str
    lease: str = LEASE
    namespaces: Sequence[str] = ()
    """The namespaces it serves; empty: all of them."""
    workers: int = 2


@dataclass(slots=True)
class Counts:
    """What has happened so far, for metrics."""

    looks: int = 0
    failures: int = 0
    refusals: int = 0
    terms: int = 0
    """How often this operator became the one that acts."""


class Operator:
    """One operator. It can be run by threads, or step by step."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], dt.datetime] = utc_now,
        log: Callable[[str], None] = lambda _line: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.api = api
        self._pause = pause
        self.settings = settings
        self._clock = clock
        self._log = log
        self.counts = Counts()
        self.queue = WorkQueue(clock)
        self.pictures = make_pictures(self._notice)
        place = settings.lease_namespace, settings.lease, settings.identity
        self.leadership = Leadership(api, *place, clock=clock, wall=wall)
        self.hands = Hands(api, self.leadership.holds, wall)
        self.controller = Controller(self.pictures, self.hands, clock=clock, wall=wall)
        self.followers = self._make_followers()
        self._stopping = threading.Event()
        self._led = False
        self._lease_trouble = ""
        self._resync_at = clock() + RESYNC_S
        self._beat = clock()
        self._working: dict[Key, float] = {}
        self._threads: list[threading.Thread] = []

    def _make_followers(self) -> list[Follower]:
        seen = self.pictures
        kinds = [
            (MESHES, seen.meshes, ""),
            (STATEFUL_SETS, seen.stateful_sets, SELECTOR),
            (SERVICES, seen.services, SELECTOR),
            (PODS, seen.pods, SELECTOR),
        ]
        ways: dict[str, Any] = {"clock": self._clock, "log": self._log, "pause": self._pause}
        return [
            Follower(self.api, resource, namespace, picture, labels=labels, **ways)
            for namespace in self.settings.namespaces or [""]
            for resource, picture, labels in kinds
        ]

    def _notice(self, key: Key, before: Object | None, after: Object | None) -> None:
        """Something of a mesh changed."""
        if _is_asked_anew(before, after):
            self.queue.urge(key)
        else:
            self.queue.add(key)

    # How it is

    def is_synced(self) -> bool:
        """Whether everything was seen once."""
        return all(follower.listed for follower in self.followers)

    def may_work(self) -> bool:
        """Whether this operator acts now: it has seen everything, and holds the lease."""
        return self.is_synced() and self.leadership.holds()

    def find_ailment(self) -> str:
        """What is wrong with the program itself; empty when nothing is."""
        now = self._clock()
        if now - self._beat > SILENT_S:
            return f"the lease was not looked at for {now - self._beat:.0f} s"
        if not self._stopping.is_set() and not all(one.is_alive() for one in self._threads):
            return "a thread has ended"
        slow = [key for key, since in list(self._working.items()) if now - since > STUCK_S]
        return f"{len(slow)} looks at meshes are stuck" if slow else ""

    # Step by step

    def lead(self) -> bool:
        """One look at the lease, and at the time; whether this operator acts."""
        self._beat = self._clock()
        leads = self.leadership.step()
        if leads and not self._led:
            self.counts.terms += 1
            self._log(f"{self.settings.identity} acts from now on")
            self.queue.urge_all(self.pictures.meshes.places())
        elif not leads:
            self._wait()
        self._led = leads
        self._tell_trouble()
        if self._clock() >= self._resync_at:
            self._resync_at = self._clock() + RESYNC_S
            for key in self.pictures.meshes.places():
                self.queue.add(key)
        return leads

    def _wait(self) -> None:
        """Somebody else acts. All meshes are looked at when this one does, so none need be kept in mind."""
        if self._led:
            self._log(f"{self.leadership.holder or 'nobody'} holds the lease; waiting")
            self.controller.forget_all()
        self.queue.clear()

    def _tell_trouble(self) -> None:
        """What keeps us from the lease, once for each trouble."""
        trouble = str(self.leadership.trouble or "")
        if trouble and trouble != self._lease_trouble:
            self._log(f"lease: {trouble}")
        self._lease_trouble = trouble

    def work(self, key: Key) -> None:
        """Look at one mesh that was taken from the queue."""
        self._working[key] = self._clock()
        self.counts.looks += 1
        try:
            self.queue.done(key, self.controller.reconcile(key, self.queue.failures(key)))
        except NotLeadingError:
            self.queue.failed(key)
        except Exception as error:  # noqa: BLE001  one strange mesh must not stop the others
            self._stumble(key, error)
        finally:
            self._working.pop(key, None)

    def _stumble(self, key: Key, error: Exception) -> None:
        refused = isinstance(error, RefusedError)
        self.counts.refusals += refused
        self.counts.failures += not refused
        pause_s = self.queue.failed(key)
        self._log(f"{'/'.join(key)}: {_describe(error)} (again in {pause_s:g} s)")

    # By threads

    def start(self) -> None:
        """Follow, lead and work, each by threads."""
        loops = [follower.run for follower in self.followers]
        loops += [self._lead_on, *[self._work_on] * self.settings.workers]
        for loop in loops:
            thread = threading.Thread(target=loop, name="milkweed-operator", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _lead_on(self) -> None:
        while not self._stopping.is_set():
            self.lead()
            self.queue.wake()
            self._stopping.wait(STEP_S)

    def _work_on(self) -> None:
        while not self._stopping.is_set():
            if not self.may_work():
                self._stopping.wait(IDLE_S)
            elif key := self.queue.wait_take(
                lambda: self._stopping.is_set() or not self.may_work()
            ):
                self.work(key)

    def stop(self) -> None:
        """Finish what is being written, then let another operator act."""
        self._stopping.set()
        for follower in self.followers:
            follower.stop()
        self.queue.wake()
        deadline = time.monotonic() + STOP_S
        while self._working and time.monotonic() < deadline:
            self._pause(0.05)
        self.leadership.release()
        self._log(f"{self.settings.identity} has stopped")


def _describe(error: Exception) -> str:
    """A failure for the log; what the API server says of a mesh's pods is for those who see the mesh."""
    if isinstance(error, RefusedError):
        return f"{error.what}; its condition says why"
    return str(error) if isinstance(error, MilkweedError) else repr(error)


def _is_asked_anew(before: Object | None, after: Object | None) -> bool:
    """Whether the wish changed: another spec, or other labels and annotations to pass on."""
    if before is None or after is None:
        return True
    same = number(before, "metadata", "generation") == number(after, "metadata", "generation")
    parts = ("labels", "annotations")
    kept = all(mapping(before, "metadata", p) == mapping(after, "metadata", p) for p in parts)
    return not (same and kept)
