"""Who asks the endpoint for meshes in tests, and a policy for them."""

from __future__ import annotations

import json
from typing import Any

from milkweed.kube.resources import TOKEN_REVIEWS
from milkweed.operator.asked import Answer, Request
from milkweed.operator.policy import Rule, parse_policy
from milkweed.operator.provision import AUDIENCE, Provisioner
from unit.operator_cluster import Cluster
from unit.operator_runs import make_mesh

RULE: dict[str, Any] = {
    "name": "research",
    "serviceAccounts": ["team/*"],
    "namespaces": ["team", "scratch-*"],
    "images": ["worker:*", "registry.example.com/ml/*"],
    "maxHosts": 4,
    "maxGpus": 16,
}
TRAINER = "system:serviceaccount:team:trainer"
TOKENS = {
    "good": (TRAINER, [AUDIENCE]),
    "colleague": ("system:serviceaccount:team:other", [AUDIENCE]),
    "stranger": ("system:serviceaccount:elsewhere:x", [AUDIENCE]),
    "for the api server": (TRAINER, ["https://kubernetes.default.svc"]),
}
PATH = "/v1/namespaces/team/meshes"


class Reviewed(Cluster):
    """A cluster that knows some tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts: dict[str, str] = {}
        """The uids of accounts that were made anew."""

    def create(self, resource: Any, namespace: str, body: Any, **query: str) -> Any:
        """Make an object, or say whose token it is."""
        if resource is not TOKEN_REVIEWS:
            return super().create(resource, namespace, body, **query)
        self._arrive()
        user, audiences = TOKENS.get(body["spec"]["token"], ("", []))
        shared = sorted(set(audiences) & set(body["spec"]["audiences"]))
        status = {"authenticated": bool(user and shared), "audiences": shared}
        groups = ["system:serviceaccounts"]
        known = {
            "username": user,
            "uid": self.accounts.get(user, f"uid of {user}"),
            "groups": groups,
        }
        return {"status": status | {"user": known}}


def make_rule(**changes: Any) -> Rule:
    return parse_policy({"rules": [{**RULE, **changes}]}).rules[0]


def post(provisioner: Provisioner, mesh: Any, token: str = "good", path: str = PATH) -> Answer:  # noqa: S107  no secret
    return provisioner.answer(Request("POST", path, token, json.dumps(mesh).encode()))


def ask(
    provisioner: Provisioner,
    method: str,
    name: str,
    token: str = "good",  # noqa: S107  no secret
    body: Any = None,
) -> Answer:
    data = b"" if body is None else json.dumps(body).encode()
    path = name if name.startswith("/") else f"{PATH}/{name}"
    return provisioner.answer(Request(method, path, token, data))


def gpu_mesh(hosts: int, gpus: Any) -> dict[str, Any]:
    mesh = make_mesh(replicas=hosts)
    resources = {"limits": {"nvidia.com/gpu": gpus}}
    mesh["spec"]["podTemplate"]["spec"]["containers"][0]["resources"] = resources
    return mesh
