"""Who may do what: rules with nothing to spare, as roles of a namespace or of the whole cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kube.resources import (
    EVENTS,
    JOBS,
    LEASES,
    MESHES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    TOKEN_REVIEWS,
    Resource,
)

OPERATOR = "milkweed-operator"
PROVISION = "milkweed-provision"
CLIENT = "milkweed-client"
WORKER = "milkweed-worker"
LEASE = OPERATOR
"""The lease that tells which operator acts."""

_GROUP = "rbac.authorization.k8s.io"


def _rule(
    resource: Resource, *verbs: str, sub: str = "", names: Sequence[str] = ()
) -> dict[str, Any]:
    plural = f"{resource.plural}/{sub}" if sub else resource.plural
    rule: dict[str, Any] = {
        "apiGroups": [resource.group],
        "resources": [plural],
        "verbs": list(verbs),
    }
    return rule | ({"resourceNames": list(names)} if names else {})


OPERATOR_RULES = [
    # It deletes those whose hosts all say that their lease is over.
    _rule(MESHES, "get", "list", "watch", "delete"),
    _rule(MESHES, "patch", sub="status"),
    # Some clusters ask for it of whoever makes objects that hold up the deletion of their owner.
    _rule(MESHES, "update", sub="finalizers"),
    _rule(STATEFUL_SETS, "get", "list", "watch", "create", "update"),
    _rule(SERVICES, "get", "list", "watch", "create", "update"),
    _rule(PODS, "list", "watch"),
    _rule(EVENTS, "get", "list", "create", "patch"),
]
"""The operator deletes nothing but meshes: what belongs to one goes with it, by the cluster's own hand."""

LEASE_RULES = [
    _rule(LEASES, "create"),
    _rule(LEASES, "get", "update", names=[LEASE]),
]

CLIENT_RULES = [
    _rule(MESHES, "get", "list", "watch", "create", "update", "patch", "delete"),
    _rule(PODS, "list", "watch"),
    _rule(PODS, "get", sub="log"),
    _rule(PODS, "get", "create", sub="portforward"),
    # Batch clients; why a Job has no pod is told by events alone.
    _rule(EVENTS, "list"),
    _rule(JOBS, "get", "list", "create", "patch", "delete"),
    # The certificates of a job's hosts: each job has Secrets of its own, whose names follow from its id. Nobody
    # can list them: who does not know the id of a job reads none.
    _rule(SECRETS, "get", "create", "patch", "delete"),
]
"""What a program does that asks for meshes and connects to their hosts."""

PROVISION_RULES = [
    _rule(MESHES, "get", "list", "create", "patch", "delete"),
    _rule(PODS, "list"),
    # The Secrets of jobs, which nobody can list: who knows no name reads none.
    _rule(SECRETS, "get", "create", "update", "delete"),
]
REVIEW_RULES = [_rule(TOKEN_REVIEWS, "create")]


def make_account(name: str, namespace: str, *, token: bool = True) -> dict[str, Any]:
    """A ServiceAccount; without a token its pods cannot speak to the API server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
        "automountServiceAccountToken": token,
    }


def make_role(name: str, rules: Sequence[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
    """Rules for one namespace, or for all."""
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": _metadata(name, namespace),
        "rules": list(rules),
    }


def bind(role: str, account: str, home: str, namespace: str = "") -> dict[str, Any]:
    """Give a role to an account, whose home may be another namespace."""
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": f"{kind}Binding",
        "metadata": _metadata(role, namespace),
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
    }


def _metadata(name: str, namespace: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
