"""One look at one mesh: what is seen, what is decided, what is written and what is told."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import MilkweedError, UnreachableError
from ..kube.api import ApiError
from ..kube.meshes import MESH_LABEL, mesh_of_service, service_name
from ..kube.resources import SERVICES, STATEFUL_SETS, Resource
from .act import EXISTS, Hands
from .conditions import ALL_READY, UPDATING, WAITING, is_told, make_status, read_condition
from .ending import LEASE_OVER, is_over
from .lease import render_second, utc_now
from .memory import Memory
from .picture import Change, Picture, trim, trim_pod
from .pods import find_ailment, is_ready
from .reading import (
    Key,
    Object,
    is_leaving,
    items,
    key_of,
    name_of,
    namespace_of,
    number,
    pick,
    text,
    uid_of,
)
from .reconcile import Action, Decision, Trouble, World, decide

WARNINGS_AFTER_S = 5.0
"""How long a mesh may take its time before the cluster's complaints are read."""
SOON_S, SELDOM_S = 10.0, 60.0
"""How often a mesh is looked at that is not ready: at first, and after some minutes."""
SOON_FOR_S = 180.0
TELL_AFTER_FAILURES = 2
LEASE_REASON = "LeaseOver"
_QUIET = frozenset({ALL_READY, WAITING, UPDATING, "SchedulingGated"})


class RefusedError(MilkweedError):
    """The API server does not take what a mesh needs; the mesh says so."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """What is seen of the cluster."""

    meshes: Picture
    stateful_sets: Picture
    services: Picture
    pods: Picture


def make_pictures(changed: Change) -> Pictures:
    """Empty pictures, which call `changed` for the mesh of whatever changes."""
    return Pictures(
        meshes=Picture(key_of, changed, trim),
        stateful_sets=Picture(key_of, changed, trim),
        services=Picture(_mesh_of_service, changed, trim),
        pods=Picture(_mesh_of_pod, changed, trim_pod),
    )


def _mesh_of_service(found: Object) -> Key:
    return namespace_of(found), mesh_of_service(name_of(found))


def _mesh_of_pod(found: Object) -> Key:
    return namespace_of(found), text(found, "metadata", "labels", MESH_LABEL)


class Controller:
    """Looks at meshes, one at a time for each."""

    def __init__(
        self,
        pictures: Pictures,
        hands: Hands,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._pictures = pictures
        self._hands = hands
        self._clock = clock
        self._wall = wall
        self._memory = Memory(clock)
        self._unready_since: dict[Key, float] = {}

    def reconcile(self, key: Key, failures: int = 0) -> float | None:
        """Put right what is not as a mesh says, and tell how it is; when to look again, if at all."""
        world = self._look(key)
        if world is None or is_leaving(world.mesh):
            self._forget(key)
            return None
        if is_over(world):
            self._end(world.mesh)
            return None
        decision = decide(world)
        done = self._carry_out(world.mesh, decision, failures)
        self._tell(world, done.trouble or decision.trouble, pending=done.pending)
        if done.refusal is not None:
            raise RefusedError("a mesh is refused", seen=str(done.refusal)) from done.refusal
        return self._when_again(key, done.wait_s)

    def _forget(self, key: Key) -> None:
        self._memory.forget(key)
        self._unready_since.pop(key, None)

    def forget_all(self) -> None:
        """Another operator acts; what is remembered of meshes will be old when this one does again."""
        self._memory.forget_all()
        self._unready_since.clear()

    # Looking

    def _look(self, key: Key) -> World | None:
        """What there is; an object that no picture shows may be somebody else's, so it is asked for."""
        mesh = self._pictures.meshes.get(key)
        if mesh is None:
            return None
        namespace, name = key
        found = self._see(self._pictures.stateful_sets, STATEFUL_SETS, namespace, name)
        service = self._see(self._pictures.services, SERVICES, namespace, service_name(name))
        pods = [pod for pod in self._pictures.pods.of_mesh(key) if _belongs(pod, found)]
        world = World(mesh, found, service, pods)
        return World(mesh, found, service, pods, self._look_for_warnings(key, world))

    def _see(
        self, picture: Picture, resource: Resource, namespace: str, name: str
    ) -> Object | None:
        seen = picture.get((namespace, name))
        return seen if seen is not None else self._hands.look(resource, namespace, name)

    def _look_for_warnings(self, key: Key, world: World) -> list[Object]:
        since = self._unready_since.get(key)
        found = world.own_stateful_set
        if found is None or since is None or self._clock() - since < WARNINGS_AFTER_S:
            return []
        about: list[tuple[str, Object]] = []
        if len(world.pods) < number(world.mesh, "spec", "replicas"):
            about.append(("StatefulSet", found))
        silent = (pod for pod in world.pods if not is_ready(pod) and find_ailment(pod) is None)
        about += [("Pod", pod) for pod in _first(silent)]
        return [
            warning
            for kind, one in about
            for warning in self._hands.look_for_warnings(key[0], kind, name_of(one), uid_of(one))
        ]

    # Writing

    def _carry_out(self, mesh: Object, decision: Decision, failures: int) -> _Done:
        done = _Done()
        for action in decision.actions:
            if self._memory.is_futile(action):
                continue
            done.pending = True
            done.wait_s = max(done.wait_s, self._memory.wait_s(action))
            if done.wait_s:
                continue
            try:
                self._write(mesh, action)
            except (ApiError, UnreachableError) as error:
                done.refusal, done.trouble = error, _explain(action, error, failures)
                break
        return done

    def _write(self, mesh: Object, action: Action) -> None:
        written = self._hands.write(action)
        before = text(action.body, "metadata", "resourceVersion")
        changed = text(written, "metadata", "resourceVersion") != before
        self._memory.remember(action, changed=changed)
        picture = self._pictures.services
        if action.resource is STATEFUL_SETS:
            picture = self._pictures.stateful_sets
        picture.put(written)
        if changed:
            self._note(mesh, action.reason, action.message)

    def _end(self, mesh: Object) -> None:
        """Delete a mesh that nobody wants any more, and say why where it can still be read."""
        count = number(mesh, "spec", "replicas")
        words = f"{LEASE_OVER}, said {count} of {count} hosts; the mesh is deleted"
        self._note(mesh, LEASE_REASON, words)
        self._hands.end(mesh)
        self._forget(key_of(mesh))
        self._pictures.meshes.remove(mesh)

    # Telling

    def _tell(self, world: World, trouble: Trouble | None, *, pending: bool) -> None:
        now = render_second(self._wall())
        status = make_status(world, trouble, pending=pending, now=now)
        condition = items(status, "conditions")[-1]
        self._mark(key_of(world.mesh), ready=text(condition, "status") == "True")
        if is_told(world.mesh, status):
            return
        try:
            self._pictures.meshes.put(self._hands.tell(world.mesh, status))
        except ApiError as error:
            if not error.missing:
                raise
            return  # the mesh is gone meanwhile
        if _is_news(read_condition(world.mesh), condition):
            reason, message = text(condition, "reason"), text(condition, "message")
            self._note(world.mesh, reason, message, warning=reason not in _QUIET)

    def _note(self, mesh: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell people; where that is not taken, as in a namespace that goes away, nothing else is lost."""
        with contextlib.suppress(ApiError):
            self._hands.note(mesh, reason, message, warning=warning)

    def _mark(self, key: Key, *, ready: bool) -> None:
        if ready:
            self._unready_since.pop(key, None)
        else:
            self._unready_since.setdefault(key, self._clock())

    def _when_again(self, key: Key, wait_s: float) -> float | None:
        since = self._unready_since.get(key)
        if since is None:
            return wait_s or None
        age_s = self._clock() - since
        again_s = SOON_S if age_s < SOON_FOR_S else SELDOM_S
        if age_s < WARNINGS_AFTER_S:
            again_s = WARNINGS_AFTER_S - age_s
        return min(wait_s, again_s) if wait_s else again_s


@dataclass(slots=True)
class _Done:
    pending: bool = False
    wait_s: float = 0.0
    trouble: Trouble | None = None
    refusal: MilkweedError | None = None


def _explain(action: Action, error: MilkweedError, failures: int) -> Trouble:
    """Why a write was not taken; raises what is no answer to this mesh."""
    if isinstance(error, ApiError) and error.status == EXISTS:
        raise error  # somebody was faster: look again
    if isinstance(error, UnreachableError) and failures < TELL_AFTER_FAILURES:
        raise error
    return Trouble("Refused", f"the API server does not take {action.body['kind']}: {error.seen}")


def _belongs(pod: Object, stateful_set: Object | None) -> bool:
    owners = items(pod, "metadata", "ownerReferences")
    return any(pick(owner, "uid") == uid_of(stateful_set or {}) for owner in owners)


def _is_news(before: Object | None, after: Object) -> bool:
    """Whether people are told: it became ready, or is not for another reason."""
    reason = text(after, "reason")
    if reason == text(before, "reason"):
        return False
    return reason not in {WAITING, UPDATING}


def _first(found: Iterable[Object]) -> list[Object]:
    return [one for one, _ in zip(found, range(1), strict=False)]
