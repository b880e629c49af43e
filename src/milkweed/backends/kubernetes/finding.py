"""Where a job's objects are: found by the mark they carry, listed, and deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import BackendError, DeadlineError, SpecError, UnreachableError
from ...kube.api import Api, ApiError
from ...kube.resources import JOBS, MESHES, PODS, SECRETS, Resource
from ...kube.via import api_of
from ...spec import JobSpec
from ..base import Handle, Request
from ..programs import is_late
from . import cluster
from .asked import AskedApi, endpoint_of, list_asked, own_namespace, read_provision
from .batch import CLIENT_LABEL, client_name
from .notes import read_handle
from .places import AnyApi
from .pod_parts import part
from .start import JOB_LABEL, authority_name, secret_name
from .told import Told, is_leaving, read_told
from .which import identify

CANCEL_TIMEOUT_S = 120.0
FORBIDDEN = 403
_PAUSE_S = 0.5


def choose_api(spec: JobSpec, apply_id: str = "") -> AnyApi:
    """How this client asks for what a declaration says: of the API server, or of the operator's endpoint."""
    if said := spec.client.get("provision"):
        namespace = spec.options.get("namespace") or own_namespace()
        return AskedApi(endpoint_of(read_provision(said)), namespace, apply_id)
    return api_of(spec.options.get("context"), spec.options.get("kubeconfig"))


def reach_api(context: str | None = None, kubeconfig: str | None = None) -> Api:
    """The API server, for who looks for what exists: without a way to it, nothing is known of that."""
    try:
        return api_of(context, kubeconfig)
    except SpecError as error:
        raise UnreachableError(error.what, seen=error.seen, hint=error.hint) from error


def find_marked(api: Api, resource: Resource, apply_id: str = "") -> list[Any]:
    """The objects of one job or of all: in all namespaces, or in one's own for whom that is not allowed."""
    selector = f"{JOB_LABEL}={apply_id}" if apply_id else JOB_LABEL
    for namespace in ("", api.config.namespace):
        try:
            return api.get(resource, namespace, labelSelector=selector)["items"]
        except ApiError as error:
            if error.missing:
                return []  # the cluster does not know such objects
            if namespace and resource is JOBS and error.status == FORBIDDEN:
                return []  # who may not look for batch clients has made none
            if namespace:
                raise
    return []


def find_handle(api: Api, apply_id: str) -> dict[str, Any] | None:
    """What finds a job again for a client that has nothing of it; None when the cluster has no trace of it."""
    meshes, jobs = (find_marked(api, each, apply_id) for each in (MESHES, JOBS))
    found = read_handle(apply_id, meshes, api.config.namespace, jobs=jobs)
    if found is None:
        return None
    return {**found, "context": api.config.context, "kubeconfig": None, "cluster": identify(api)}


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


def read_meshes(api: AnyApi, handle: Handle) -> dict[str, Told]:
    """Which meshes of a job are there, and what is told of them: watched, because it is asked often.

    One that is being deleted is not: it stays until its last pod is gone, and no other comes of it.
    """
    found: Mapping[str, Any] = (
        cluster.meshes_of(api, handle["namespace"], f"{JOB_LABEL}={handle['apply_id']}")
        if isinstance(api, Api)
        else {item["metadata"]["name"]: item for item in list_objects(api, MESHES, handle)}
    )
    return {name: read_told(mesh) for name, mesh in found.items() if not is_leaving(mesh)}


def delete_objects(
    api: AnyApi,
    handle: Handle,
    *,
    timeout_s: float = CANCEL_TIMEOUT_S,
    pause: Callable[[AnyApi, Handle], None] | None = None,
) -> None:
    """Delete all that carries a job's mark, and wait until its pods and meshes are gone.

    A mesh goes after all that was made of it: until then something could still make a pod.
    """
    deadline_s = time.monotonic() + timeout_s
    namespace = handle["namespace"]
    for resource in (JOBS, MESHES, SECRETS):
        for item in list_objects(api, resource, handle):
            after = {"policy": "Foreground"} if resource is MESHES and isinstance(api, Api) else {}
            api.delete(resource, namespace, item["metadata"]["name"], **after)
    while left := [*list_objects(api, PODS, handle), *list_objects(api, MESHES, handle)]:
        if time.monotonic() > deadline_s or is_late():
            names = ", ".join(item["metadata"]["name"] for item in left)
            raise DeadlineError(
                "the job's objects were deleted, and some of them are still there",
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
        "kubeconfig": _absolute(options.get("kubeconfig")),
        "cluster": identify(api),
        "namespace": namespace,
        "client": bool(request.client_script),
        "provision": provision_of(request.spec),
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


def reroute(handle: Handle, spec: JobSpec) -> Handle:
    """The handle of a job with the way to it that is declared now; one to somewhere else is refused."""
    provision = provision_of(spec)
    found = {**handle, "provision": provision, "reach": spec.client.get("reach", "auto")}
    known: dict[str, Any] | None = handle.get("provision")
    if _url(provision) == _url(known):
        return found
    api = choose_api(spec)
    found |= {
        "context": api.config.context,
        "kubeconfig": _absolute(spec.options.get("kubeconfig")),
        "cluster": identify(api),
    }
    if not list_objects(api, SECRETS, found):
        # What nobody knows there may be well elsewhere, and must not be taken for gone.
        raise BackendError(
            "the way that is declared now does not lead to the job",
            seen=f"it was asked for by {_describe_way(known)}, and {_describe_way(provision)} knows nothing of it",
            hint="declare provision as it was then; or end the job first: job_load(path).kill()",
        )
    return found


def _url(provision: Mapping[str, Any] | None) -> str:
    return provision["url"] if provision else ""


def _describe_way(provision: Mapping[str, Any] | None) -> str:
    return f"the endpoint {_url(provision)}" if provision else "the API server"


def provision_of(spec: JobSpec) -> dict[str, Any] | None:
    """The endpoint that a declaration names; its files are the same in every folder."""
    said = spec.client.get("provision")
    if not said:
        return None
    found = read_provision(said)
    files = {key: _absolute(found[key]) for key in ("ca", "token_file") if found.get(key)}
    return {**found, **files}


def _absolute(path: str | None) -> str | None:
    """The same file for a client that is started in another folder."""
    return path and os.path.abspath(os.path.expanduser(path))
