"""What is installed in a cluster: the definition, the operator and the least rights it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from .definition import make_definition
from .deployments import make_operator_deployment, make_provision_deployment, make_provision_service
from .rights import (
    CLIENT,
    CLIENT_RULES,
    LEASE_RULES,
    OPERATOR,
    OPERATOR_RULES,
    PROVISION,
    PROVISION_RULES,
    REVIEW_RULES,
    WORKER,
    bind,
    make_account,
    make_role,
)

NAMESPACE = "milkweed-system"
IMAGE = f"milkweed:{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """What is to be installed."""

    namespace: str = NAMESPACE
    """Where the operator runs."""
    image: str = IMAGE
    """An image in which the command `milkweed` is found."""
    only: Sequence[str] = ()
    """The namespaces it serves; empty: all of them."""
    provision: bool = False
    """Whether pods without rights may ask for meshes."""
    replicas: int = 2


def make_install(asked: Install) -> list[dict[str, Any]]:
    """All objects, in an order in which they can be made."""
    objects = [make_namespace(asked.namespace), make_definition()]
    objects += make_operator(asked)
    objects += make_clients(asked)
    if asked.provision:
        objects += make_provision(asked)
    return objects


def make_namespace(name: str) -> dict[str, Any]:
    """A namespace whose pods are held to the strictest rules."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def make_operator(asked: Install) -> list[dict[str, Any]]:
    """The operator, what it may do in the namespaces it serves, and its lease."""
    home = asked.namespace
    return [
        make_account(OPERATOR, home),
        *_grant(OPERATOR, OPERATOR_RULES, asked),
        make_role(f"{OPERATOR}-lease", LEASE_RULES, home),
        bind(f"{OPERATOR}-lease", OPERATOR, home, home),
        make_operator_deployment(home, asked.image, asked.only, asked.replicas),
    ]


def make_clients(asked: Install) -> list[dict[str, Any]]:
    """What programs may do that use meshes, for a person to bind. Workers may do nothing."""
    if not asked.only:
        return [make_role(CLIENT, CLIENT_RULES)]
    objects: list[dict[str, Any]] = []
    for namespace in asked.only:
        objects += [
            make_account(CLIENT, namespace),
            make_role(CLIENT, CLIENT_RULES, namespace),
            bind(CLIENT, CLIENT, namespace, namespace),
            make_account(WORKER, namespace, token=False),
        ]
    return objects


def make_provision(asked: Install) -> list[dict[str, Any]]:
    """The endpoint for pods without rights; who asks is told by the API server."""
    home = asked.namespace
    return [
        make_account(PROVISION, home),
        make_role(f"{PROVISION}-review", REVIEW_RULES),
        bind(f"{PROVISION}-review", PROVISION, home),
        *_grant(PROVISION, PROVISION_RULES, asked),
        make_provision_deployment(home, asked.image, asked.only),
        make_provision_service(home),
    ]


def _grant(account: str, rules: Sequence[dict[str, Any]], asked: Install) -> list[dict[str, Any]]:
    """Rights in the namespaces that are served, and in no other."""
    if not asked.only:
        return [make_role(account, rules), bind(account, account, asked.namespace)]
    objects: list[dict[str, Any]] = []
    for namespace in asked.only:
        objects.append(make_role(account, rules, namespace))
        objects.append(bind(account, account, asked.namespace, namespace))
    return objects
