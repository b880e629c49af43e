"""What is agreed on MonarchMesh objects, between who asks for one, who makes its pods, and who looks for them."""

from __future__ import annotations

from .resources import MESHES

API_VERSION = f"{MESHES.group}/{MESHES.version}"
KIND = "MonarchMesh"
APP_LABEL = "app.kubernetes.io/name"
APP = "monarch-worker"
MESH_LABEL = f"{MESHES.group}/mesh-name"
DEFAULT_PORT = 26600
WORKER = "worker"
"""The container that runs the worker."""
_SERVICE = "-svc"


def service_name(mesh: str) -> str:
    """The name of a mesh's headless Service, which is part of its hosts' names."""
    return mesh + _SERVICE


def mesh_of_service(service: str) -> str:
    """The mesh that a Service of that name would be for."""
    return service.removesuffix(_SERVICE)


def make_selector(mesh: str) -> dict[str, str]:
    """The labels by which the pods of a mesh are found."""
    return {APP_LABEL: APP, MESH_LABEL: mesh}


def render_labels(labels: dict[str, str]) -> str:
    """Labels as the API server takes them: whatever has all of them is meant."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
