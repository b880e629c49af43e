"""What a mesh becomes in the cluster: a StatefulSet and a headless Service, by pure functions."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..kube.meshes import (
    API_VERSION,
    APP,
    APP_LABEL,
    KIND,
    make_selector,
    service_name,
)
from ..kube.resources import MESHES
from .probe import add_probe, keep_probe, read_port
from .reading import Object, items, mapping, name_of, namespace_of, number, pick, text, uid_of

HASH = f"{MESHES.group}/desired-pod-template-hash"
"""Which template was asked for. What the cluster made of it may differ, by others on its way in."""
PASSED_ON = f"{MESHES.group}/passed-on"
"""Which labels and annotations came from the mesh, so that they go when they go there."""
PORT_NAME = "monarch"
SELECTOR = f"{APP_LABEL}={APP}"
"""Finds everything that belongs to any mesh."""

_KEPT_BACK = frozenset({"kubectl.kubernetes.io/last-applied-configuration", HASH, PASSED_ON})
"""Annotations that speak of the mesh itself, or are ours."""


def make_owner(mesh: Object) -> dict[str, Any]:
    """Says that an object belongs to the mesh and goes with it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name_of(mesh),
        "uid": uid_of(mesh),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def hash_template(template: Any) -> str:
    """A word for a template, which is another one when anything in it changes."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_template(mesh: Object) -> dict[str, Any]:
    """The pod template of a mesh. The first operators took the pod's spec itself for it, and so do we."""
    given = mapping(mesh, "spec", "podTemplate")
    return {"spec": given} if "containers" in given and "spec" not in given else given


def make_service(mesh: Object) -> dict[str, Any]:
    """The headless Service that gives the hosts their names, before they are ready too."""
    name = name_of(mesh)
    port = read_port(mesh)
    selector = make_selector(name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _make_metadata(mesh, service_name(name), selector, {}),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [{"name": PORT_NAME, "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def make_stateful_set(mesh: Object, seen: Object | None = None) -> dict[str, Any]:
    """The StatefulSet whose pods are the hosts: all start at once, and keep their names.

    Workers without a readiness probe get one. Where a StatefulSet is there, `seen`, they get it with another
    template only: nobody is restarted for a probe, neither hosts of another operator nor of a milkweed that
    gave none.
    """
    name, template = name_of(mesh), read_template(mesh)
    selector = make_selector(name)
    labels, annotations = _pass_on(mesh)
    annotations[PASSED_ON] = _render_passed_on(labels, annotations)
    annotations[HASH] = hash_template(template)
    made = _make_template(template, selector)
    if seen is None or _is_asked_anew(seen, annotations[HASH]):
        add_probe(made, mesh)
    else:
        keep_probe(made, mesh, pick(seen, "spec", "template"))
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _make_metadata(mesh, name, labels | selector, annotations),
        "spec": {
            "replicas": number(mesh, "spec", "replicas"),
            "serviceName": service_name(name),
            "selector": {"matchLabels": selector},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "template": made,
        },
    }


def _make_metadata(
    mesh: Object, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace_of(mesh),
        "labels": dict(labels),
        "ownerReferences": [make_owner(mesh)],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return metadata


def _make_template(template: Any, selector: Mapping[str, str]) -> dict[str, Any]:
    made = copy.deepcopy(mapping(template))
    labels = mapping(made, "metadata", "labels") | dict(selector)
    return made | {"metadata": mapping(made, "metadata") | {"labels": labels}}


def _is_asked_anew(seen: Object, mark: str) -> bool:
    """Whether another template is asked for than before. The marks of other operators say nothing to us.

    A difference to what is there says nothing either: others may bend every template on its way in.
    """
    notes = mapping(seen, "metadata", "annotations")
    return PASSED_ON in notes and notes.get(HASH) != mark


# Labels and annotations of the mesh. Queues such as Kueue read them on the StatefulSet, and mark pods themselves.


def _pass_on(mesh: Object) -> tuple[dict[str, str], dict[str, str]]:
    own = make_selector(name_of(mesh))
    labels, annotations = (
        mapping(mesh, "metadata", "labels"),
        mapping(mesh, "metadata", "annotations"),
    )
    return (
        {key: value for key, value in labels.items() if key not in own},
        {key: value for key, value in annotations.items() if key not in _KEPT_BACK},
    )


def _render_passed_on(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    keys = {"labels": sorted(labels), "annotations": sorted(annotations)}
    return json.dumps(keys, separators=(",", ":"))


def parse_passed_on(found: Object) -> dict[str, set[str]]:
    """Which labels and annotations of an object came from its mesh; none where nobody wrote it down."""
    try:
        read: Any = json.loads(text(found, "metadata", "annotations", PASSED_ON) or "{}")
    except ValueError:
        read = {}
    return {kind: set(map(str, items(read, kind))) for kind in ("labels", "annotations")}


# Whose is it?


def is_of_mesh(found: Object, mesh: Object) -> bool:
    """Whether an object belongs to this very mesh."""
    return text(_controller(found), "uid") == uid_of(mesh)


def is_of_earlier_mesh(found: Object, mesh: Object) -> bool:
    """Whether an object belongs to a mesh of the same name that is gone; the cluster will remove it."""
    owner = _controller(found)
    same = (text(owner, "kind"), text(owner, "name")) == (KIND, name_of(mesh))
    return same and not is_of_mesh(found, mesh)


def _controller(found: Object) -> Any:
    owners = items(found, "metadata", "ownerReferences")
    return next((owner for owner in owners if pick(owner, "controller")), None)
