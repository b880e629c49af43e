"""The operator's own pods: no root, nothing to write to, and probes that tell the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rights import OPERATOR, PROVISION

HEALTH_PORT = 8080
PROVISION_PORT = 8443
POLICY = f"{PROVISION}-policy"
"""The ConfigMap with the policy, under the key `policy.yaml`. Nobody but its author makes or changes it."""
CERTIFICATE = f"{PROVISION}-tls"
"""The Secret with `tls.crt` and `tls.key`."""
_USER = 65532
_APP_LABEL = "app.kubernetes.io/name"


def make_operator_deployment(
    namespace: str, image: str, only: Sequence[str], replicas: int
) -> dict[str, Any]:
    """Operators, of which one acts and the others wait to take its place."""
    args = [
        "operator",
        "run",
        "--identity=$(POD_NAME)",
        "--lease-namespace=$(POD_NAMESPACE)",
        f"--listen=0.0.0.0:{HEALTH_PORT}",
        *(f"--namespace={name}" for name in only),
    ]
    container = _make_container(OPERATOR, image, args, HEALTH_PORT)
    container["env"] = [
        _env("POD_NAME", "metadata.name"),
        _env("POD_NAMESPACE", "metadata.namespace"),
    ]
    return _make_deployment(OPERATOR, namespace, container, replicas=replicas)


def make_provision_deployment(namespace: str, image: str, only: Sequence[str]) -> dict[str, Any]:
    """One endpoint: two would count the same limits twice."""
    args = [
        "operator",
        "provision",
        "--policy=/etc/milkweed/policy/policy.yaml",
        "--cert=/etc/milkweed/tls/tls.crt",
        "--key=/etc/milkweed/tls/tls.key",
        f"--listen=0.0.0.0:{PROVISION_PORT}",
        *(f"--namespace={name}" for name in only),
    ]
    container = _make_container(PROVISION, image, args, PROVISION_PORT, scheme="HTTPS")
    container["volumeMounts"] = [
        {"name": "policy", "mountPath": "/etc/milkweed/policy", "readOnly": True},
        {"name": "tls", "mountPath": "/etc/milkweed/tls", "readOnly": True},
    ]
    volumes = [
        {"name": "policy", "configMap": {"name": POLICY}},
        {"name": "tls", "secret": {"secretName": CERTIFICATE}},
    ]
    made = _make_deployment(PROVISION, namespace, container, replicas=1)
    made["spec"]["strategy"] = {"type": "Recreate"}
    made["spec"]["template"]["spec"]["volumes"] = volumes
    return made


def make_provision_service(namespace: str) -> dict[str, Any]:
    """The name under which pods find the endpoint."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": PROVISION, "namespace": namespace},
        "spec": {
            "selector": {_APP_LABEL: PROVISION},
            "ports": [{"name": "https", "port": 443, "targetPort": PROVISION_PORT}],
        },
    }


def _env(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _make_container(
    name: str, image: str, args: Sequence[str], port: int, scheme: str = "HTTP"
) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "command": ["milkweed"],
        "args": list(args),
        "ports": [{"name": "http" if scheme == "HTTP" else "https", "containerPort": port}],
        "livenessProbe": _make_probe("/healthz", port, scheme, 20),
        "readinessProbe": _make_probe("/readyz", port, scheme, 5),
        "resources": {
            "requests": {"cpu": "50m", "memory": "96Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _make_probe(path: str, port: int, scheme: str, period_s: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
    }


def _make_deployment(
    name: str, namespace: str, container: dict[str, Any], *, replicas: int
) -> dict[str, Any]:
    labels = {_APP_LABEL: name}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod: dict[str, Any] = {
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": 20,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [spread],
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
