"""A cluster in memory: an API server with versions, watches and faults, and what its controllers do."""

from __future__ import annotations

import bisect
import contextlib
import copy
import itertools
import json
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from milkweed.errors import UnreachableError
from milkweed.kube.api import ApiError
from milkweed.kube.resources import MESHES, PODS, SERVICES, STATEFUL_SETS, Resource

Place = tuple[str, str, str]
KINDS = {one.plural: one for one in (MESHES, PODS, SERVICES, STATEFUL_SETS)}
WITH_STATUS = {MESHES.plural, STATEFUL_SETS.plural}


def refuse(status: int, reason: str, message: str = "") -> ApiError:
    """An answer of the API server that is no."""
    error = ApiError(f"no ({status})", seen=message or reason)
    error.status, error.reason = status, reason
    return error


class Stream(list[Any]):
    """The events of one watch."""

    def end(self) -> None:
        """Nothing more is to come."""


class Cluster:
    """What milkweed.kube.Api is to the operator, without a server behind it."""

    def __init__(self) -> None:
        self.objects: dict[Place, dict[str, Any]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.version = 100
        self.uids = itertools.count(1)
        self.writes: list[tuple[str, str, str]] = []
        """Every write that was asked for: verb, plural, name."""
        self.requests = 0
        self.faults: deque[str] = deque()
        """For each coming write: empty, `before` or `after`: the connection breaks then."""
        self.down = False
        self._settled = -1
        self.forgotten = 0
        """Versions up to here cannot be watched from any more."""
        self.admit: Callable[[str, dict[str, Any]], None] = lambda _plural, _body: None
        """What webhooks do to objects on their way in: change them, or raise."""

    # Reading

    def get(self, resource: Resource, namespace: str = "", name: str = "", **query: str) -> Any:
        """One object, or a list of all."""
        self._arrive()
        if name:
            return copy.deepcopy(self._find(resource, namespace, name))
        found = [
            copy.deepcopy(body)
            for (plural, home, _name), body in sorted(self.objects.items())
            if plural == resource.plural and namespace in {"", home} and matches(body, query)
        ]
        return {"items": found, "metadata": {"resourceVersion": str(self.version)}}

    def _arrive(self) -> None:
        self.requests += 1
        if self.down:
            raise UnreachableError("the API server does not answer")

    def _find(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        found = self.objects.get((resource.plural, namespace, name))
        if found is None:
            raise refuse(404, "NotFound", f"{resource.plural} {name!r} not found")
        return found

    @contextlib.contextmanager
    def watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str], *, timeout_s: float
    ) -> Generator[Stream]:
        """The events so far; the stream ends with them."""
        self._arrive()
        since = int(query["resourceVersion"])
        if since < self.forgotten:
            raise refuse(410, "Expired", "too old resource version")
        yield Stream(self._events(resource, namespace, query, since))

    def _events(
        self, resource: Resource, namespace: str, query: Mapping[str, str], since: int
    ) -> Iterator[Any]:
        first = bisect.bisect_right(self.history, since, key=lambda entry: entry[0])
        for _version, plural, kind, body in self.history[first:]:
            home = body["metadata"]["namespace"]
            if plural == resource.plural and namespace in {"", home}:
                if not matches(body, query):
                    kind = "DELETED"  # noqa: PLW2901  whoever selects sees it go
                yield {"type": kind, "object": copy.deepcopy(body)}

    # Writing

    @contextlib.contextmanager
    def _write(self, verb: str, resource: Resource, name: str) -> Generator[None]:
        self._arrive()
        self.writes.append((verb, resource.plural, name))
        fault = self.faults.popleft() if self.faults else ""
        if fault == "before":
            raise UnreachableError("the connection broke")
        yield
        if fault == "after":
            raise UnreachableError("the connection broke")

    def create(self, resource: Resource, namespace: str, body: Any, **query: str) -> Any:
        """Make a new object."""
        name = body["metadata"]["name"]
        with self._write("create", resource, name):
            if (resource.plural, namespace, name) in self.objects:
                raise refuse(409, "AlreadyExists", f"{name} already exists")
            made = normal(body)
            self.admit(resource.plural, made)
            made["metadata"] |= {
                "namespace": namespace,
                "uid": f"uid-{next(self.uids)}",
                "generation": 1,
                "creationTimestamp": "2024-01-01T00:00:00Z",
            }
            if resource.plural in WITH_STATUS:
                made.pop("status", None)
            return self._store("ADDED", resource.plural, made)

    def replace(self, resource: Resource, namespace: str, name: str, body: Any) -> Any:
        """Put an object in the place of the one that was read."""
        with self._write("replace", resource, name):
            before = self._find(resource, namespace, name)
            version = body["metadata"].get("resourceVersion")
            if version and version != before["metadata"]["resourceVersion"]:
                raise refuse(409, "Conflict", "the object has been modified")
            made = normal(body)
            self.admit(resource.plural, made)
            if resource.plural in WITH_STATUS:
                made.pop("status", None)
                if "status" in before:
                    made["status"] = copy.deepcopy(before["status"])
            return self._change(resource.plural, before, made)

    def patch(
        self, resource: Resource, namespace: str, name: str, body: Any, *, sub: str = ""
    ) -> Any:
        """Change some fields of an object."""
        with self._write(f"patch {sub}".strip(), resource, name):
            before = self._find(resource, namespace, name)
            part = {"status": body["status"]} if sub == "status" else body
            return self._change(resource.plural, before, merge_patch(before, part))

    def delete(
        self, resource: Resource, namespace: str, name: str, uid: str = "", **_options: str
    ) -> bool:
        """Delete an object, or only the one with a uid."""
        with self._write("delete", resource, name):
            found = self.objects.get((resource.plural, namespace, name))
            if uid and found is not None and found["metadata"]["uid"] != uid:
                raise refuse(409, "Conflict", "the UID in the precondition does not match")
            return self.remove(resource.plural, namespace, name)

    # What lies below

    def _change(self, plural: str, before: dict[str, Any], made: dict[str, Any]) -> Any:
        made["metadata"] = {**made["metadata"], "generation": before["metadata"]["generation"]}
        if without_version(made) == without_version(before):
            return copy.deepcopy(before)
        if made.get("spec") != before.get("spec"):
            made["metadata"]["generation"] += 1
        return self._store("MODIFIED", plural, made)

    def _store(self, kind: str, plural: str, made: dict[str, Any]) -> Any:
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        meta = made["metadata"]
        self.objects[plural, meta["namespace"], meta["name"]] = made
        self.history.append((self.version, plural, kind, copy.deepcopy(made)))
        return copy.deepcopy(made)

    def remove(self, plural: str, namespace: str, name: str) -> bool:
        """Remove an object, by nobody's request."""
        found = self.objects.pop((plural, namespace, name), None)
        if found is None:
            return False
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, plural, "DELETED", copy.deepcopy(found)))
        return True

    def edit(self, plural: str, namespace: str, name: str, change: Callable[[Any], object]) -> Any:
        """Change an object, as somebody else would."""
        before = self.objects[plural, namespace, name]
        made = copy.deepcopy(before)
        change(made)
        return self._change(plural, before, made)

    def put(self, plural: str, body: dict[str, Any]) -> Any:
        """Make an object, as somebody else would."""
        made = copy.deepcopy(body)
        made["metadata"].setdefault("namespace", "team")
        made["metadata"] |= {"uid": f"uid-{next(self.uids)}", "generation": 1}
        return self._store("ADDED", plural, made)

    def of_kind(self, plural: str) -> list[dict[str, Any]]:
        """Every object of a kind."""
        return [
            body for (kind, _home, _name), body in sorted(self.objects.items()) if kind == plural
        ]

    def restart(self) -> None:
        """The API server comes back and has forgotten what happened."""
        self.down = False
        self.forgotten = self.version

    # What other controllers do

    def settle(self, *, ready: bool = True) -> None:
        """Let the cluster's own controllers work until they have nothing to do."""
        while self._settled != self.version:
            self._settled = self.version
            self._collect()
            for found in list(self.of_kind(STATEFUL_SETS.plural)):
                self._run_stateful_set(found, ready=ready)

    def _collect(self) -> None:
        """Remove what belonged to something that is gone."""
        uids = {body["metadata"]["uid"] for body in self.objects.values()}
        for (plural, home, name), body in list(self.objects.items()):
            owners = body["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.remove(plural, home, name)

    def _run_stateful_set(self, found: dict[str, Any], *, ready: bool) -> None:
        home, name = found["metadata"]["namespace"], found["metadata"]["name"]
        count, revision = found["spec"]["replicas"], digest(found["spec"]["template"])
        wanted = {f"{name}-{index}" for index in range(count)}
        for pod in list(self._pods_of(found)):
            if pod["metadata"]["name"] not in wanted or pod["metadata"]["revision"] != revision:
                self.remove(PODS.plural, home, pod["metadata"]["name"])
        for pod_name in sorted(wanted):
            if (PODS.plural, home, pod_name) not in self.objects:
                self._make_pod(found, pod_name, revision, ready=ready)
        self._report(found, revision)

    def _pods_of(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        uid = found["metadata"]["uid"]
        pods = self.of_kind(PODS.plural)
        return [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _make_pod(self, found: dict[str, Any], name: str, revision: str, *, ready: bool) -> None:
        state = "True" if ready else "False"
        meta = {
            "name": name,
            "namespace": found["metadata"]["namespace"],
            "labels": found["spec"]["template"]["metadata"]["labels"],
            "revision": revision,
            "ownerReferences": [make_owner(found)],
        }
        conditions = [{"type": "Ready", "status": state}]
        self.put(PODS.plural, {"metadata": meta, "spec": {}, "status": {"conditions": conditions}})

    def _report(self, found: dict[str, Any], revision: str) -> None:
        meta = found["metadata"]
        pods = self._pods_of(found)
        status = {
            "observedGeneration": meta["generation"],
            "replicas": len(pods),
            "readyReplicas": sum(is_ready(pod) for pod in pods),
            "updatedReplicas": len(pods),
            "currentRevision": revision,
            "updateRevision": revision,
        }
        place = STATEFUL_SETS.plural, meta["namespace"], meta["name"]
        self.edit(*place, lambda made: made.update(status=status))


def make_owner(found: dict[str, Any]) -> dict[str, Any]:
    meta = found["metadata"]
    return {"kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"], "controller": True}


def is_ready(pod: dict[str, Any]) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"]
    )


def digest(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def normal(body: Any) -> dict[str, Any]:
    """A copy of a request's body, as JSON would carry it."""
    return json.loads(json.dumps(body))


def without_version(body: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
    return {**body, "metadata": meta}


def merge_patch(before: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge_patch(made.get(key), value)
    return copy.deepcopy(made)


def matches(body: dict[str, Any], query: Mapping[str, str]) -> bool:
    """Whether an object is among those that were asked for."""
    labels = body["metadata"].get("labels") or {}
    for word in filter(None, query.get("labelSelector", "").split(",")):
        key, given, value = word.partition("=")
        if key not in labels or (given and labels[key] != value):
            return False
    for word in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = word.partition("=")
        found: Any = body
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        if found != value:
            return False
    return True
