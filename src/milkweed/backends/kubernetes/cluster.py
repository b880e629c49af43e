"""One cluster as this program sees it: its API server, and watches that all jobs of the program share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ...bell import Bell, bell
from ...kube.api import Api, ApiError
from ...kube.resources import MESHES, PODS, Resource
from ...kube.watch import Watch
from .pod_parts import part
from .told import is_leaving, read_told, trim_mesh

FIRST_LIST_S = 10.0
_lock = threading.Lock()
_watches: dict[tuple[int, Resource, str, str], Watch] = {}


def pods_of(api: Api, namespace: str, selector: str) -> Mapping[str, Any]:
    """Pods by name as they are now: asked for once, then watched. Raises what keeps us from knowing."""
    return _objects(api, PODS, namespace, selector)


def meshes_of(api: Api, namespace: str, selector: str) -> Mapping[str, Any]:
    """Meshes by name as they are now; none where the cluster does not know such objects."""
    try:
        return _objects(api, MESHES, namespace, selector)
    except ApiError as error:
        if error.missing:
            return {}
        raise


def _objects(api: Api, resource: Resource, namespace: str, selector: str) -> Mapping[str, Any]:
    watch = _watch(api, resource, namespace, selector)
    watch.wait_listed(FIRST_LIST_S)
    return watch.objects()


def wait_change(api: Api, namespace: str, selector: str, timeout_s: float) -> None:
    """Wait until some pod is different."""
    _watch(api, PODS, namespace, selector).wait_change(timeout_s)


def _watch(api: Api, resource: Resource, namespace: str, selector: str) -> Watch:
    key = (id(api), resource, namespace, selector)
    with _lock:
        if key not in _watches:
            keep = trim if resource is PODS else trim_mesh
            made = Watch(api, resource, namespace, labels=selector, keep=keep, heed=ring)
            _watches[key] = made.start()
        return _watches[key]


def forget(api: Api, namespace: str, selector: str) -> None:
    """Watch it no longer."""
    for resource in (PODS, MESHES):
        with _lock:
            watch = _watches.pop((id(api), resource, namespace, selector), None)
        if watch is not None:
            watch.stop()


def ring(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, bell: Bell = bell
) -> None:
    """Whoever waits for a job looks at once when an object comes, goes, or is in another phase."""
    if _phase(before) != _phase(after):
        bell.ring()


def _phase(found: Mapping[str, Any] | None) -> tuple[str, str, bool] | None:
    """The phase of a pod, or the trouble of a mesh; and whether it goes."""
    if found is None:
        return None
    phase = str(part(found, "status").get("phase", ""))
    return phase, read_told(found).reason, is_leaving(found)


def trim(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a pod is looked at; the rest of it is most of it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    containers = [
        {key: each[key] for key in ("name", "env", "image") if key in each}
        for each in pod["spec"].get("containers") or ()
    ]
    spec = {"nodeName": pod["spec"].get("nodeName", ""), "containers": containers}
    return {"metadata": metadata, "spec": spec, "status": pod.get("status") or {}}
