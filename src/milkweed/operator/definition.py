"""The definition of MonarchMesh: what may be asked for, and what is told about it."""

from __future__ import annotations

from typing import Any

from ..kube.meshes import DEFAULT_PORT, KIND
from ..kube.resources import MESHES

NAME_RULE = "self.metadata.name.matches('^[a-z][a-z0-9]*$') && self.metadata.name.size() <= 63"
NAME_MESSAGE = (
    "the name of a mesh has at most 63 lowercase letters and digits, and starts with a letter"
)
REASON = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
"""How a condition's reason is spelled, in all of Kubernetes."""


def make_definition() -> dict[str, Any]:
    """The CustomResourceDefinition; every mesh that other operators took is one by it, too."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{MESHES.plural}.{MESHES.group}"},
        "spec": {
            "group": MESHES.group,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": MESHES.plural,
                "singular": KIND.lower(),
            },
            "versions": [_make_version()],
        },
    }


def _make_version() -> dict[str, Any]:
    return {
        "name": MESHES.version,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
        "additionalPrinterColumns": [
            _column("Hosts", "integer", ".spec.replicas"),
            _column("Ready", "integer", ".status.readyReplicas"),
            _column("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason'),
            _column("Age", "date", ".metadata.creationTimestamp"),
            _column("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
        ],
        "schema": {"openAPIV3Schema": _make_schema()},
    }


def _column(name: str, kind: str, path: str, priority: int = 0) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "priority": priority}


def _make_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A mesh of hosts for Monarch programs: equal pods with names that stay.",
        "required": ["spec"],
        "x-kubernetes-validations": [{"rule": NAME_RULE, "message": NAME_MESSAGE}],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _make_spec(),
            "status": _make_status(),
        },
    }


def _make_spec() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "The hosts that are wanted.",
        "required": ["replicas", "podTemplate"],
        "properties": {
            "replicas": _integer("How many hosts there should be.", minimum=1),
            "port": _integer(
                "The port on which workers listen.",
                minimum=1,
                maximum=65535,
                default=DEFAULT_PORT,
            ),
            "podTemplate": _make_pod_template(),
        },
    }


def _make_pod_template() -> dict[str, Any]:
    """A PodTemplateSpec of any version: the cluster checks it when it gets the StatefulSet."""
    container = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "image": {"type": "string"}},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    containers = {"type": "array", "minItems": 1, "items": container}
    return {
        "type": "object",
        "description": "The pod of each host: labels, annotations and spec, as in a StatefulSet.",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "spec": {
                "type": "object",
                "required": ["containers"],
                "properties": {"containers": containers},
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
    }


def _make_status() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "The hosts as they are.",
        "properties": {
            "observedGeneration": _integer("The version of the spec this is about.", size=64),
            "replicas": _integer("How many hosts have a pod."),
            "readyReplicas": _integer("How many hosts are ready."),
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": _make_condition(),
            },
        },
    }


def _make_condition() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": REASON},
            "message": {"type": "string", "maxLength": 32768},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": _integer("The version of the spec this is about.", size=64),
        },
    }


def _integer(description: str, *, size: int = 32, **limits: int) -> dict[str, Any]:
    return {"type": "integer", "format": f"int{size}", "description": description, **limits}
