"""What a client asks for is taken by the API server itself, strictly, without making anything."""

from __future__ import annotations

import json

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Meshes
from milkweed.backends.base import Request
from milkweed.backends.kubernetes.finding import make_handle
from milkweed.backends.kubernetes.making import Maker
from milkweed.backends.kubernetes.settings import make_plans
from milkweed.kube.resources import JOBS, MESHES, SECRETS
from milkweed.pki import make_authority
from milkweed.spec import JobSpec, make_meshes
from unit.kubernetes_jobs import APPLY_ID, Space

STRICT = {"dryRun": "All", "fieldValidation": "Strict"}


def make_objects(namespace: str) -> Space:
    """The objects of a job with a batch client, in a cluster that is none."""
    options = {"namespace": namespace, "image": WORKER}
    meshes = make_meshes({"trainers": 2, "loaders": 1}, {"TOKEN": "s3cret"})
    spec = JobSpec(name="demo", backend="kubernetes", meshes=meshes, options=options)
    request = Request(spec=spec, apply_id=APPLY_ID, client_script=("true",))
    space, plans = Space(), make_plans(spec, namespace, APPLY_ID)
    space.namespaces.add(namespace)
    maker = Maker(space, make_handle(request, space, namespace, plans), request, plans)
    authority = make_authority("demo")
    maker.make(authority, worker=b"x")
    maker.make_client(authority)
    return space


def test_what_a_client_asks_for_is_taken(lab: Lab, meshes: Meshes) -> None:
    """Meshes, Secrets and the Job of a batch client: nothing is unknown, nothing wrong, nothing is left out."""
    space, here = make_objects(meshes.namespace), meshes.namespace
    taken: dict[str, int] = {}
    for resource in (SECRETS, MESHES, JOBS):
        for name in space.names(resource):
            body = json.loads(json.dumps(space.objects[resource.plural, here, name]))
            for key in ("uid", "resourceVersion", "generation", "ownerReferences"):
                body["metadata"].pop(key, None)
            answer = lab.api.create(resource, here, body, **STRICT)
            assert answer["metadata"]["labels"] == body["metadata"]["labels"]
            taken[resource.plural] = taken.get(resource.plural, 0) + 1
    assert taken == {"secrets": 3, "monarchmeshes": 2, "jobs": 1}
    assert lab.objects(here) == []
