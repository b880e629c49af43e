"""Where a job's objects are: found by the mark they carry, listed, and deleted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DeadlineError, SpecError, UnreachableError
from ...kube.api import Api, ApiError
from ...kube.resources import JOBS, MESHES, PODS, SECRETS, Resource
from ...kube.via import api_of
from ...spec import JobSpec
from ..base import Handle, Request
from . import cluster
from .asked import AskedApi, endpoint_of, list_asked, own_namespace, read_provision
from .batch import CLIENT_LABEL, client_name
from .places import AnyApi
from .pod_parts import part
from .start import HANDLE_NOTE, JOB_LABEL, authority_name, secret_name

CANCEL_TIMEOUT_S = 120.0
_PAUSE_S = 0.5


def choose_api(spec: JobSpec) -> AnyApi:
    """How this client asks for what a declaration says: of the API server, or of the operator's endpoint."""
    if said := spec.client.get("provision"):
        namespace = spec.options.get("namespace") or own_namespace()
        return AskedApi(endpoint_of(read_provision(said)), namespace)
    return api_of(spec.options.get("context"), spec.options.get("kubeconfig"))


def reach_api(context: str | None = None, kubeconfig: str | None = None) -> Api:
    """The API server, for who looks for what exists: without a way to it, nothing is known of that."""
    try:
        return api_of(context, kubeconfig)
    except SpecError as error:
        raise UnreachableError(error.what, seen=error.seen, hint=error.hint) from error


def find_meshes(api: Api, apply_id: str = "") -> list[Any]:
    """The objects of one job or of all: in all namespaces, or in one's own for whom that is not allowed."""
    selector = f"{JOB_LABEL}={apply_id}" if apply_id else JOB_LABEL
    for namespace in ("", api.config.namespace):
        try:
            return api.get(MESHES, namespace, labelSelector=selector)["items"]
        except ApiError as error:
            if error.missing:
                return []  # the cluster does not know such objects
            if namespace:
                raise
    return []


def read_handles(meshes: Sequence[Any]) -> dict[str, Handle]:
    """The handles that objects carry, by the ids of their jobs."""
    found: dict[str, Handle] = {}
    for mesh in meshes:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            handle = json.loads(part(mesh, "metadata", "annotations")[HANDLE_NOTE])
            namespace = mesh["metadata"]["namespace"]
            found[handle["apply_id"]] = {**handle, "namespace": namespace, "context": ""}
    return found


def list_objects(api: AnyApi, resource: Resource, handle: Handle) -> list[Any]:
    """The objects of one kind that carry a job's mark."""
    if isinstance(api, AskedApi):
        return list_asked(api, resource, handle)
    if resource is SECRETS:
        return _find_secrets(api, handle)
    selector = f"{JOB_LABEL}={handle['apply_id']}"
    try:
        return api.get(resource, handle["namespace"], labelSelector=selector)["items"]
    except ApiError as error:
        if error.missing or (resource is JOBS and not handle["client"]):
            return []  # who has no batch client needs no right to look for one
        raise


def _find_secrets(api: Api, handle: Handle) -> list[Any]:
    """The Secrets of a job by their names: nobody needs a right to list those of others."""
    apply_id, found = handle["apply_id"], list[Any]()
    for name in (secret_name(apply_id), authority_name(apply_id), client_name(apply_id)):
        try:
            secret = api.get(SECRETS, handle["namespace"], name)
        except ApiError as error:
            if error.missing:
                continue
            raise
        if part(secret, "metadata", "labels").get(JOB_LABEL) == apply_id:
            found.append(secret)
    return found


def mesh_names(api: AnyApi, handle: Handle) -> set[str]:
    """Which meshes of a job are there: watched, because it is asked often while pods come."""
    if isinstance(api, Api):
        return cluster.meshes_of(api, handle["namespace"], f"{JOB_LABEL}={handle['apply_id']}")
    return {item["metadata"]["name"] for item in list_objects(api, MESHES, handle)}


def delete_objects(
    api: AnyApi,
    handle: Handle,
    *,
    timeout_s: float = CANCEL_TIMEOUT_S,
    pause: Callable[[AnyApi, Handle], None] | None = None,
) -> None:
    """Delete all that carries a job's mark, and wait until its pods are gone."""
    deadline_s = time.monotonic() + timeout_s
    namespace = handle["namespace"]
    for resource in (JOBS, MESHES, SECRETS):
        for item in list_objects(api, resource, handle):
            api.delete(resource, namespace, item["metadata"]["name"])
    while pods := list_objects(api, PODS, handle):
        if time.monotonic() > deadline_s:
            names = ", ".join(item["metadata"]["name"] for item in pods)
            raise DeadlineError(
                "the job's objects were deleted, and pods of it are still there",
                seen=names,
                hint="a node that does not answer keeps its pods; ask again later",
            )
        (pause or _pause)(api, handle)


def _pause(api: AnyApi, handle: Handle) -> None:
    """Wait for a change of the job's pods, but not for long."""
    if isinstance(api, Api):
        selector = f"{JOB_LABEL}={handle['apply_id']}"
        cluster.wait_change(api, handle["namespace"], selector, _PAUSE_S)
    else:
        time.sleep(_PAUSE_S)


def client_pods(api: AnyApi, handle: Handle) -> list[Any]:
    """The pod of a batch client, if there is one."""
    if not isinstance(api, Api):
        return []
    selector = f"{JOB_LABEL}={handle['apply_id']}"
    pods = cluster.pods_of(api, handle["namespace"], selector).values()
    return [pod for pod in pods if CLIENT_LABEL in part(pod, "metadata", "labels")]


def make_handle(
    request: Request, api: AnyApi, namespace: str, plans: Sequence[Any]
) -> dict[str, Any]:
    """All that is needed to find an allocation again."""
    options = request.spec.options
    return {
        "apply_id": request.apply_id,
        "context": api.config.context,
        "kubeconfig": options.get("kubeconfig"),
        "namespace": namespace,
        "client": bool(request.client_script),
        "provision": read_provision(said)
        if (said := request.spec.client.get("provision"))
        else None,
        "reach": request.spec.client.get("reach", "auto"),
        "meshes": {
            plan.mesh.name: {
                "name": plan.place.name,
                "made": plan.made,
                "kept": plan.kept,
                "hosts": plan.mesh.hosts,
                "port": plan.place.port,
                "selector": plan.selector,
                "rank_label": plan.rank_label,
            }
            for plan in plans
        },
    }
