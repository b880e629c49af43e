"""Jobs on a cluster in memory, whose rights, namespaces and pods are a test's; for tests of the backend."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from milkweed.backends.base import Request
from milkweed.backends.kubernetes import cluster
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.start import JOB_LABEL, MESH_LABEL
from milkweed.errors import UnreachableError
from milkweed.job import lifecycle
from milkweed.kube.api import Api
from milkweed.kube.config import Cluster as Server, Config, Login
from milkweed.kube.resources import MESHES, PODS, SECRETS, Resource
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import Record, StateFile
from unit.operator_cluster import Cluster, refuse

APPLY_ID = "0a1b2c3d-0000-4000-8000-000000000000"
OTHER_ID = "99999999-2222-4333-8444-555555555555"
WAIT_S = 10.0
NO_KIND = "the server could not find the requested resource"


class Live:
    """The events of one watch, as they come, until it is ended or the API server goes away."""

    def __init__(self, space: Space, events: Callable[[int], list[Any]], since: int) -> None:
        self._space, self._events, self._since = space, events, since
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        """Every event; the end is the client's, or that of the API server."""
        while True:
            with self._space.changed:
                self._space.changed.wait_for(self._has_news, WAIT_S)
                if self._over or self._space.down:
                    return
                found, self._since = self._events(self._since), self._space.version
            yield from found

    def _has_news(self) -> bool:
        return self._over or self._space.down or self._space.version > self._since

    def end(self) -> None:
        """Nothing more is to come."""
        with self._space.changed:
            self._over = True
            self._space.changed.notify_all()


class Space(Cluster, Api):
    """One API server, with a namespace `lab` that is the context's own."""

    def __init__(self) -> None:
        super().__init__()
        server = Server(server="https://here:6443")
        self.config = Config(cluster=server, namespace="lab", context="here", log_in=Login)
        self.changed = threading.Condition(threading.RLock())
        self.namespaces = {"lab", "other"}
        self.forbidden: set[tuple[str, str]] = set()
        """What this user may not do: verb and plural; a list of all namespaces is the verb `list all`."""
        self.unknown: set[str] = set()
        """Kinds of objects that the cluster does not know."""
        self.stuck = False
        """Whether pods stay when their mesh is deleted, as on a node that does not answer."""
        self.reached: list[tuple[str | None, str | None]] = []
        """Which contexts and kubeconfigs were asked for."""
        self.asked: list[tuple[str, str]] = []
        """Every request: verb and plural."""

    def reach(self, context: str | None, kubeconfig: str | None) -> Space:
        """As `api_of` does."""
        self.reached.append((context, kubeconfig))
        return self

    def _check(self, verb: str, resource: Resource, namespace: str) -> None:
        self.asked.append((verb, resource.plural))
        if self.down:
            raise UnreachableError("the API server does not answer", seen="nobody is there")
        if resource.plural in self.unknown:
            raise refuse(404, "NotFound", NO_KIND)
        if (verb, resource.plural) in self.forbidden:
            raise refuse(403, "Forbidden", f"User may not {verb} {resource.plural}")
        if verb in {"create", "apply"} and namespace not in self.namespaces:
            raise refuse(404, "NotFound", f'namespaces "{namespace}" not found')

    def get(self, resource: Resource, namespace: str = "", name: str = "", **query: str) -> Any:
        """One object, or a list of all."""
        with self.changed:
            self._check("get" if name else "list" if namespace else "list all", resource, namespace)
            return super().get(resource, namespace, name, **query)

    def create(self, resource: Resource, namespace: str, body: Any, **query: str) -> Any:
        """Make a new object."""
        with self.changed:
            self._check("create", resource, namespace)
            return super().create(resource, namespace, body, **query)

    def apply(self, resource: Resource, namespace: str, body: Any, **query: str) -> Any:
        """Say what an object should be."""
        with self.changed:
            self._check("apply", resource, namespace)
            name = body["metadata"]["name"]
            if (resource.plural, namespace, name) not in self.objects:
                return super().create(resource, namespace, body)
            with contextlib.suppress(KeyError):
                self.objects[resource.plural, namespace, name].pop("data")
            return super().patch(resource, namespace, name, body)

    def patch(
        self, resource: Resource, namespace: str, name: str, body: Any, *, sub: str = ""
    ) -> Any:
        """Change some fields of an object."""
        with self.changed:
            self._check("patch", resource, namespace)
            return super().patch(resource, namespace, name, body, sub=sub)

    def replace(self, resource: Resource, namespace: str, name: str, body: Any) -> Any:
        """Put an object in the place of the one that was read."""
        with self.changed:
            self._check("update", resource, namespace)
            return super().replace(resource, namespace, name, body)

    def delete(
        self, resource: Resource, namespace: str, name: str, uid: str = "", **options: str
    ) -> bool:
        """Delete an object, and what an operator made of it."""
        with self.changed:
            self._check("delete", resource, namespace)
            found = super().delete(resource, namespace, name, uid, **options)
            if resource is MESHES and not self.stuck:
                self.drop_pods(name)
            return found

    def drop_pods(self, mesh: str) -> None:
        """The pods of a mesh go."""
        for pod in self.of_kind(PODS.plural):
            if pod["metadata"]["name"].rpartition("-")[0] == mesh:
                self.remove(PODS.plural, pod["metadata"]["namespace"], pod["metadata"]["name"])

    @contextlib.contextmanager
    def watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str], *, timeout_s: float
    ) -> Generator[Any]:
        """Events as they come."""
        with self.changed:
            self._check("watch", resource, namespace)
            self._arrive()

        def events(since: int) -> list[Any]:
            return list(self._events(resource, namespace, query, since))

        yield Live(self, events, int(query["resourceVersion"]))

    def _store(self, kind: str, plural: str, made: dict[str, Any]) -> Any:
        with self.changed:
            self.changed.notify_all()
            return super()._store(kind, plural, made)

    def remove(self, plural: str, namespace: str, name: str) -> bool:
        """Remove an object, by nobody's request."""
        with self.changed:
            self.changed.notify_all()
            return super().remove(plural, namespace, name)

    def go_away(self) -> None:
        """The API server answers nobody."""
        with self.changed:
            self.down = True
            self.changed.notify_all()
        for watch in list(cluster._watches.values()):
            with watch.changed:
                assert watch.changed.wait_for(lambda each=watch: each._trouble is not None, WAIT_S)

    def wait_seen(self) -> None:
        """Wait until every watch has seen all that was changed."""
        for (_api, resource, namespace, selector), watch in list(cluster._watches.items()):
            found = self.get(resource, namespace, labelSelector=selector)["items"]
            expected = {each["metadata"]["name"]: watch._keep(each) for each in found}
            with watch.changed:
                assert watch.changed.wait_for(lambda w=watch, e=expected: is_seen(w, e), WAIT_S)

    def names(self, resource: Resource) -> list[str]:
        """The names of all objects of a kind."""
        return [each["metadata"]["name"] for each in self.of_kind(resource.plural)]

    def add_pod(
        self, name: str, mesh: str = "w", *, apply_id: str = APPLY_ID, **more: Any
    ) -> dict[str, Any]:
        """A pod as an operator makes it of a mesh; it runs, unless something else is said."""
        rank = name.rpartition("-")[2]
        marks = {JOB_LABEL: apply_id, MESH_LABEL: mesh, "apps.kubernetes.io/pod-index": rank}
        labels = more.pop("labels", marks if mesh else {})
        return self.put(PODS.plural, make_pod(name, labels=labels, **more))


def is_seen(watch: Any, expected: Mapping[str, Any]) -> bool:
    """Whether a watch knows just these pods."""
    with contextlib.suppress(UnreachableError):
        return watch.objects() == expected
    return False


def make_pod(
    name: str,
    *,
    labels: Mapping[str, str],
    phase: str = "Running",
    ready: bool = True,
    ip: str = "127.0.0.1",
    env: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """A pod as the API server tells of it."""
    said = [{"name": key, "value": value} for key, value in (env or {}).items()]
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "namespace": "lab", "labels": dict(labels), **meta},
        "spec": {"nodeName": "n1", "containers": [{"name": "worker", "image": "i", "env": said}]},
        "status": {"phase": phase, "podIP": ip, "conditions": conditions, **(status or {})},
    }


# Jobs


def make_spec(
    sizes: Mapping[str, int] | None = None, client: Mapping[str, Any] | None = None, **options: Any
) -> JobSpec:
    """A declaration with a variable that nobody else may read; pods are made, unless options say otherwise."""
    return JobSpec(
        name="demo",
        backend="kubernetes",
        meshes=make_meshes(dict(sizes or {"w": 2}), {"TOKEN": "s3cret"}),
        options={"namespace": "lab", "image": "python:3", **options},
        client=dict(client or {}),
    )


SPEC = make_spec()
FOUND = make_spec(image=None, meshes={"w": {"label_selector": "app=x", "pod_rank_label": "rank"}})
"""A job whose pods somebody else made."""


def submit(spec: JobSpec = SPEC, apply_id: str = APPLY_ID, **more: Any) -> dict[str, Any]:
    """Ask for an allocation, as the lifecycle does."""
    return dict(KubernetesBackend().submit(Request(spec=spec, apply_id=apply_id, **more)))


def create(spec: JobSpec = SPEC, apply_id: str = APPLY_ID) -> Record:
    """Ask for an allocation, as a job does, and record it at a path."""
    wish = lifecycle.Wish(spec=spec, backend=KubernetesBackend(), apply_id=apply_id)
    return lifecycle.create(wish, StateFile("job.json"))[0]


def mesh_name(name: str = "w", apply_id: str = APPLY_ID) -> str:
    """What the object of a mesh is called."""
    return f"{name}x{apply_id[:8]}"


def read_secret(space: Space, name: str) -> dict[str, bytes]:
    """What a Secret holds."""
    data = space.objects[SECRETS.plural, "lab", name]["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}
