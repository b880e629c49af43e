"""Looking at the cluster through milkweed's own client: a process of kubectl for every look would be slow."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from clusters import wait
from milkweed.kube.api import Api, ApiError, _Request
from milkweed.kube.config import load_config
from milkweed.kube.resources import DEFINITIONS, NAMESPACES, PODS, Resource

ALWAYS_THERE = {
    "configmap/kube-root-ca.crt",
    "serviceaccount/default",
    # The rights of the programs that tests run (see `make_client_login`).
    "serviceaccount/milkweed-client",
    "role.rbac.authorization.k8s.io/milkweed-client",
    "rolebinding.rbac.authorization.k8s.io/milkweed-client",
}
ACCOUNTS = Resource("", "v1", "serviceaccounts")
_NUMBERS = itertools.count(1)


class Reads:
    """What is in the cluster, as its administrator sees it."""

    def __init__(self, kubeconfig: str) -> None:
        self.api = Api(load_config(None, kubeconfig))
        self._built_in: dict[str, tuple[str, Resource]] = {}

    def get(self, kind: str, *argv: str) -> Any:
        """What `kubectl get` finds, as data: `get("pods", "-n", "x", "-l", "a=b")`, `get("node", "n1")`."""
        namespace, name, query = _read_words(argv)
        return self.api.get(self.resource(kind), namespace, name, **query)

    def resource(self, kind: str) -> Resource:
        """A kind of objects by its name, in plural or not."""
        return (self._known().get(kind) or self._kinds()[kind])[1]

    def _known(self) -> dict[str, tuple[str, Resource]]:
        if not self._built_in:
            self._built_in = _by_name(self._find_kinds())
        return self._built_in

    def _kinds(self) -> dict[str, tuple[str, Resource]]:
        """Every kind by all its names; those that were defined since are among them."""
        return self._known() | _by_name(self._find_defined())

    def _find_kinds(self) -> Iterator[tuple[str, str, Resource]]:
        places = [("", "v1", "/api/v1")]
        for group in self._read("/apis")["groups"]:
            name, version = group["name"], group["preferredVersion"]["version"]
            places.append((name, version, f"/apis/{name}/{version}"))
        for group, version, path in places:
            for each in self._read(path)["resources"]:
                if "/" not in each["name"] and "list" in each["verbs"]:
                    resource = Resource(group, version, each["name"], each["namespaced"])
                    yield each["singularName"], each["kind"], resource

    def _find_defined(self) -> Iterator[tuple[str, str, Resource]]:
        for found in self.api.get(DEFINITIONS)["items"]:
            spec = found["spec"]
            version = next(each["name"] for each in spec["versions"] if each["storage"])
            spaced = spec["scope"] == "Namespaced"
            resource = Resource(spec["group"], version, spec["names"]["plural"], spaced)
            yield spec["names"]["singular"], spec["names"]["kind"], resource

    def _read(self, path: str) -> Any:
        return self.api._ask(_Request("GET", path))

    def make_token(self, namespace: str, account: str, audience: str = "") -> str:
        """A token of a service account, for a working day."""
        said = {"expirationSeconds": 8 * 3600} | ({"audiences": [audience]} if audience else {})
        path = ACCOUNTS.path(namespace, account, "token")
        body = json.dumps({"spec": said}).encode()
        request = _Request("POST", path, {}, body, "application/json")
        return self.api._ask(request)["status"]["token"]

    # Namespaces, and what is in them

    def make_namespace(self, name: str = "") -> str:
        """A new namespace in which pods can be made."""
        name = name or f"t{next(_NUMBERS)}-{os.getpid()}"
        self.api.create(NAMESPACES, "", {"metadata": {"name": name}})
        fixed = ("configmap", "kube-root-ca.crt"), ("serviceaccount", "default")
        wait(
            lambda: all(self.find(kind, name, each) for kind, each in fixed),
            60,
            f"namespace {name} has no service account",
        )
        return name

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace and all that is in it; pods get no time to end, and nobody waits for them."""
        at_once = {"gracePeriodSeconds": "0"}
        self.api._ask(_Request("DELETE", PODS.path(name), at_once))
        self.api.delete(NAMESPACES, "", name)

    def objects(self, namespace: str) -> list[str]:
        """All objects of a namespace as `kind/name`, but events and what every namespace has."""
        found: set[str] = set()
        for singular, resource in dict.fromkeys(self._kinds().values()):
            if resource.namespaced and resource.plural != "events":
                kind = f"{singular}.{resource.group}".removesuffix(".")
                items = self._list(resource, namespace)
                found |= {f"{kind}/{each['metadata']['name']}" for each in items}
        return sorted(found - ALWAYS_THERE)

    def _list(self, resource: Resource, namespace: str) -> list[Any]:
        """All of a kind; none where its definition has just been taken away."""
        try:
            return self.api.get(resource, namespace)["items"]
        except ApiError as error:
            if error.missing:
                return []
            raise

    def wait_empty(self, namespace: str, timeout_s: float = 60) -> None:
        """Wait until nothing is left in a namespace: what belongs to others goes soon after them."""
        self.wait_objects(namespace, [], timeout_s)

    def wait_objects(self, namespace: str, wanted: list[str], timeout_s: float = 60) -> None:
        """Wait until these are the objects of a namespace, and no others."""

        def seen() -> list[str]:
            return self.objects(namespace)

        wait(lambda: seen() == wanted, timeout_s, f"{namespace} has not just {wanted}", seen)

    def find(self, kind: str, namespace: str, name: str) -> Any:
        """One object; None when it is not there."""
        return _find(lambda: self.get(kind, "-n", namespace, name))

    def phase(self, namespace: str, pod: str) -> str:
        """A pod's phase; nothing when it is not there."""
        found = _find(lambda: self.api.get(PODS, namespace, pod))
        return found["status"]["phase"] if found else ""


def _find(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except ApiError as error:
        if error.missing:
            return None
        raise


def _by_name(found: Iterator[tuple[str, str, Resource]]) -> dict[str, tuple[str, Resource]]:
    """Kinds by their plural, their singular, and what they are called with their group; the first of a name."""
    named: dict[str, tuple[str, Resource]] = {}
    for singular, kind, resource in found:
        said = singular or kind.lower()
        for name in (resource.plural, said, f"{resource.plural}.{resource.group}"):
            named.setdefault(name, (said, resource))
    return named


def _read_words(argv: tuple[str, ...]) -> tuple[str, str, dict[str, str]]:
    """The namespace, the name and the selectors that stand in the words of kubectl."""
    namespace, names, query = "", list[str](), dict[str, str]()
    words = iter(argv)
    for word in words:
        if word == "-n":
            namespace = next(words)
        elif word == "-l":
            query["labelSelector"] = next(words)
        elif word.startswith("--field-selector="):
            query["fieldSelector"] = word.partition("=")[2]
        else:
            names.append(word)
    assert len(names) <= 1, f"one object at a time: {names}"
    return namespace, "".join(names), query
