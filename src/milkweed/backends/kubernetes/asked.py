"""A cluster as a pod without rights has it: what it may see and make, the operator's endpoint shows and makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...errors import SpecError
from ...kube.answers import ApiError
from ...kube.asking import (
    Endpoint,
    delete_mesh,
    delete_secret,
    look_up_mesh,
    look_up_secret,
    read_endpoint,
    request_mesh,
    resize_mesh,
    update_secret,
)
from ...kube.resources import MESHES, PODS, SECRETS, Resource
from .start import authority_name, files_of, secret_name

TOKEN_FILE = "/var/run/secrets/milkweed/token"  # noqa: S105  where it is, not what it is
CA_FILE = "/var/run/secrets/milkweed/ca.pem"
NAMESPACE_FILES = (
    "/var/run/secrets/milkweed/namespace",
    "/var/run/secrets/kubernetes.io/serviceaccount/namespace",
)
Object = Mapping[str, Any]


def endpoint_of(provision: Mapping[str, Any]) -> Endpoint:
    """Where to ask, and with which token."""
    ca = provision.get("ca") or (CA_FILE if Path(CA_FILE).exists() else None)
    return read_endpoint(provision["url"], ca, provision.get("token_file") or TOKEN_FILE)


def read_provision(said: object) -> dict[str, Any]:
    """What was said of the endpoint: its address, or a mapping with more."""
    told: dict[str, Any] = {"url": said} if isinstance(said, str) else dict(said)  # type: ignore[call-overload]
    unknown = sorted(told.keys() - {"url", "ca", "token_file"})
    if unknown or not isinstance(told.get("url"), str):
        raise SpecError(
            f"kubernetes.provision: {said!r} is no endpoint",
            hint='write its address, or {"url": …, "ca": …, "token_file": …}',
        )
    return told


class AskedApi:
    """As much of an API server's interface as making a job takes, carried out by the endpoint.

    Secrets are kept back until their mesh is asked for: the endpoint makes both at once.
    """

    def __init__(self, endpoint: Endpoint, namespace: str, job: str) -> None:
        """For a job: names of meshes are used again, and what another job has by one of them is not its own."""
        self.endpoint = endpoint
        self.job = job
        self.config = SimpleNamespace(context="", namespace=namespace)
        self._secrets: dict[str, Mapping[str, str]] = {}

    def get(self, resource: Resource, namespace: str, name: str = "", **_query: str) -> Any:
        """One mesh, of whatever job, or one Secret of this one."""
        found: Any = None
        if resource is MESHES:
            found = look_up_mesh(self.endpoint, namespace, name)
        elif resource is SECRETS:
            data = look_up_secret(self.endpoint, namespace, name, job=self.job)
            found = None if data is None else {"data": data}
        if found is None:
            error = ApiError(f"there is no {name!r} that this pod asked for")
            error.status = 404
            raise error
        return found

    def apply(self, resource: Resource, _namespace: str, body: Object) -> Any:
        """Keep a Secret for the next mesh; nothing else can be asked for."""
        if resource is not SECRETS:
            raise SpecError(
                "client_script: the endpoint makes hosts, and no clients",
                hint="this pod is a client already: connect with state()",
            )
        self._secrets[body["metadata"]["name"]] = body["data"]
        return body

    def create(self, _resource: Resource, _namespace: str, body: Object) -> Any:
        """Ask for a mesh with the Secrets of its job."""
        return request_mesh(self.endpoint, body, self._secrets)

    def patch(self, resource: Resource, namespace: str, name: str, body: Object) -> Any:
        """Change the size of a mesh, or what a Secret holds; Secrets have their owners from the endpoint."""
        if resource is not MESHES:
            if "data" in body:
                known = self.get(SECRETS, namespace, name)["data"]
                data = {**known, **body["data"]}
                update_secret(self.endpoint, namespace, name, data, job=self.job)
            return body
        return resize_mesh(
            self.endpoint,
            namespace,
            name,
            body["spec"]["replicas"],
            job=self.job,
            secrets=self._secrets,
            annotations=body["metadata"]["annotations"],
            files=files_of(body["spec"].get("podTemplate", {})),
        )

    def delete(self, resource: Resource, namespace: str, name: str) -> bool:
        """Delete a mesh, or a Secret, of this job."""
        drop = delete_mesh if resource is MESHES else delete_secret
        return drop(self.endpoint, namespace, name, job=self.job)


def list_asked(api: AskedApi, resource: Resource, handle: Object) -> list[Any]:
    """What there is of a job: its own names are known, so that no list is needed."""
    namespace, apply_id = handle["namespace"], handle["apply_id"]
    if resource is MESHES or resource is PODS:
        found = [
            mesh
            for each in handle["meshes"].values()
            if (mesh := look_up_mesh(api.endpoint, namespace, each["name"], job=apply_id))
        ]
        return (
            found if resource is MESHES else [_name(pod) for mesh in found for pod in mesh["pods"]]
        )
    if resource is not SECRETS:
        return []
    names = (secret_name(apply_id), authority_name(apply_id))
    return [
        {"metadata": {"name": name}}
        for name in names
        if look_up_secret(api.endpoint, namespace, name, job=apply_id) is not None
    ]


def _name(pod: Object) -> dict[str, Any]:
    return {"metadata": {"name": pod["name"]}}


def views_of(api: AskedApi, namespace: str, name: str) -> Sequence[Object]:
    """The pods of a mesh of the job, as the endpoint describes them."""
    mesh = look_up_mesh(api.endpoint, namespace, name, job=api.job)
    return () if mesh is None else mesh["pods"]


def own_namespace() -> str:
    """The namespace of the pod that this program is in; `default` where nothing tells."""
    for name in NAMESPACE_FILES:
        path = Path(name)
        if path.exists():
            return path.read_text("utf-8").strip()
    return "default"
