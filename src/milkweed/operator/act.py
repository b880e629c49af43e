"""The operator's hands: every write it makes, each only while it may act."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable
from typing import Any

from ..errors import MilkweedError
from ..kube.api import Api, ApiError
from ..kube.meshes import API_VERSION, KIND
from ..kube.resources import EVENTS, MESHES, Resource
from .lease import render_second, utc_now
from .reading import Object, items, key_of, name_of, namespace_of, number, text, uid_of
from .reconcile import Action

EXISTS = 409
COMPONENT = "milkweed-operator"
_MESSAGE = 1000


class NotLeadingError(MilkweedError):
    """Another operator acts, or may act by now."""

    transient = True


class Hands:
    """Writes to the cluster, and counts."""

    def __init__(
        self,
        api: Api,
        may_act: Callable[[], bool],
        wall: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._api = api
        self._may_act = may_act
        self._wall = wall
        self.writes = 0
        """How many writes were asked for."""

    def _begin(self) -> None:
        if not self._may_act():
            raise NotLeadingError("this operator no longer holds the lease")
        self.writes += 1

    # Reading what pictures do not show

    def look(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object as it is now."""
        try:
            return self._api.get(resource, namespace, name)
        except ApiError as error:
            if error.missing:
                return None
            raise

    def look_for_warnings(self, namespace: str, kind: str, name: str, uid: str) -> list[Object]:
        """What the cluster complained about an object, the newest last."""
        chosen = f"type=Warning,involvedObject.kind={kind},involvedObject.name={name}"
        found = items(self._api.get(EVENTS, namespace, fieldSelector=chosen), "items")
        ours = [one for one in found if text(one, "involvedObject", "uid") == uid]
        return sorted(ours, key=_time_of)

    # Writing

    def write(self, action: Action) -> Object:
        """Make or change an object; the object as it is then."""
        self._begin()
        namespace, name = key_of(action.body)
        if action.creates:
            return self._api.create(action.resource, namespace, action.body)
        return self._api.replace(action.resource, namespace, name, action.body)

    def tell(self, mesh: Object, status: Object) -> Object:
        """Write a mesh's status."""
        self._begin()
        namespace, name = key_of(mesh)
        return self._api.patch(MESHES, namespace, name, {"status": status}, sub="status")

    def end(self, mesh: Object) -> None:
        """Delete a mesh, this very one; the cluster removes all that belongs to it."""
        self._begin()
        self._api.delete(MESHES, *key_of(mesh), uid=uid_of(mesh))

    def note(self, mesh: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """An event for people who look at the mesh; the same again is counted."""
        self._begin()
        event = self._make_event(mesh, reason, message[:_MESSAGE], warning=warning)
        namespace = namespace_of(mesh)
        try:
            self._api.create(EVENTS, namespace, event)
        except ApiError as error:
            if error.status != EXISTS:
                raise
            self._count(namespace, name_of(event))

    def _count(self, namespace: str, name: str) -> None:
        found = self._api.get(EVENTS, namespace, name)
        now = render_second(self._wall())
        body = {"count": number(found, "count") + 1, "lastTimestamp": now}
        self._api.patch(EVENTS, namespace, name, body)

    def _make_event(
        self, mesh: Object, reason: str, message: str, *, warning: bool
    ) -> dict[str, Any]:
        now = render_second(self._wall())
        word = "\0".join([uid_of(mesh), reason, message])
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{name_of(mesh)}.{hashlib.sha256(word.encode()).hexdigest()[:16]}",
                "namespace": namespace_of(mesh),
            },
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": name_of(mesh),
                "namespace": namespace_of(mesh),
                "uid": uid_of(mesh),
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _time_of(event: Object) -> str:
    """Both kinds of events: those that are counted, and those that are a series."""
    moments = (
        text(event, "lastTimestamp"),
        text(event, "series", "lastObservedTime"),
        text(event, "eventTime"),
    )
    return max(moment[:19] for moment in moments)
