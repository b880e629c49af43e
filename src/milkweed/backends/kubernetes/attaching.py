"""Pods that somebody else made: how many a selector finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import BackendError
from ...kube.resources import PODS
from ...kube.via import api_of
from .ranks import stay_of


def count_found(options: Mapping[str, Any], selector: str) -> int:
    """How many pods a selector finds that are not about to go; none is an error."""
    api = api_of(options.get("context"), options.get("kubeconfig"))
    namespace = options.get("namespace") or api.config.namespace
    count = len(stay_of(api.get(PODS, namespace, labelSelector=selector)["items"]))
    if not count:
        raise BackendError(
            f"no pod of namespace {namespace!r} has these labels: {selector}",
            seen="0 pods",
            hint=f"look with: kubectl get pods -n {namespace} --show-labels",
        )
    return count
