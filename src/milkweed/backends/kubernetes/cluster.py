"""One cluster as this program sees it: its API server, and watches that all jobs of the program share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ...kube.api import Api
from ...kube.resources import PODS
from ...kube.watch import Watch

FIRST_LIST_S = 10.0
_lock = threading.Lock()
_watches: dict[tuple[int, str, str], Watch] = {}


def pods_of(api: Api, namespace: str, selector: str) -> Mapping[str, Any]:
    """Pods by name as they are now: asked for once, then watched. Raises what keeps us from knowing."""
    watch = _watch(api, namespace, selector)
    watch.wait_listed(FIRST_LIST_S)
    return watch.objects()


def wait_change(api: Api, namespace: str, selector: str, timeout_s: float) -> None:
    """Wait until some pod is different."""
    _watch(api, namespace, selector).wait_change(timeout_s)


def _watch(api: Api, namespace: str, selector: str) -> Watch:
    key = (id(api), namespace, selector)
    with _lock:
        if key not in _watches:
            _watches[key] = Watch(api, PODS, namespace, labels=selector, keep=trim).start()
        return _watches[key]


def forget(api: Api, namespace: str, selector: str) -> None:
    """Watch it no longer."""
    with _lock:
        watch = _watches.pop((id(api), namespace, selector), None)
    if watch is not None:
        watch.stop()


def trim(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a pod is looked at; the rest of it is most of it."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    containers = [
        {key: each[key] for key in ("name", "env", "image") if key in each}
        for each in pod["spec"].get("containers") or ()
    ]
    spec = {"nodeName": pod["spec"].get("nodeName", ""), "containers": containers}
    return {"metadata": metadata, "spec": spec, "status": pod.get("status") or {}}
