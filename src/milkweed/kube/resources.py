"""The kinds of objects that milkweed knows in a cluster."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects, and where they are."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path of one object, or of all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        words = [root]
        if self.namespaced and namespace:
            words += ["namespaces", urllib.parse.quote(namespace, safe="")]
        words.append(self.plural)
        words += [urllib.parse.quote(word, safe="") for word in (name, sub) if word]
        return "/".join(words)


PODS = Resource("", "v1", "pods")
SERVICES = Resource("", "v1", "services")
SECRETS = Resource("", "v1", "secrets")
CONFIG_MAPS = Resource("", "v1", "configmaps")
EVENTS = Resource("", "v1", "events")
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
NODES = Resource("", "v1", "nodes", namespaced=False)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets")
JOBS = Resource("batch", "v1", "jobs")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
MESHES = Resource("monarch.pytorch.org", "v1alpha1", "monarchmeshes")
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False
)
