"""What a client asks a cluster for, object by object: a change of it is seen in the recorded ones."""

from __future__ import annotations

import base64
import json
from typing import Any

from milkweed.kube.resources import JOBS, MESHES, SECRETS, Resource
from milkweed.operator.yaml import render_yaml
from milkweed.spec import JobSpec, make_meshes
from unit.kubernetes_jobs import Space, submit
from unit.test_operator_objects import check_golden

SPEC = JobSpec(
    name="demo",
    backend="kubernetes",
    meshes=make_meshes({"trainers": 2, "loaders": 1}, {"TOKEN": "s3cret"}),
    options={"namespace": "lab", "image": "me/worker:1"},
)
OPAQUE = ("cert", "key", "ca", "tls", "worker.zip", "milkweed.zip")


def stored(space: Space, resource: Resource) -> list[dict[str, Any]]:
    """The objects of a kind by name, as they were sent."""
    found = [space.objects[resource.plural, "lab", name] for name in sorted(space.names(resource))]
    return [plain(one) for one in json.loads(json.dumps(found))]


def plain(made: dict[str, Any]) -> dict[str, Any]:
    """Without what the cluster adds, and what is different every time."""
    for key in ("uid", "resourceVersion", "generation", "creationTimestamp"):
        made["metadata"].pop(key, None)
    for owner in made["metadata"].get("ownerReferences", ()):
        owner["uid"] = "of that mesh"
    if made.get("kind") == "Secret":
        made["data"] = {key: read(key, value) for key, value in sorted(made["data"].items())}
    return made


def read(key: str, value: str) -> Any:
    """What is in a file of a Secret; keys, certificates and archives are only there."""
    if key.startswith(OPAQUE):
        return "..."
    text = base64.b64decode(value).decode()
    return json.loads(text) if text.startswith("{") else text


def test_the_objects_of_a_job_are_the_recorded_ones(space: Space) -> None:
    """Meshes with the worker in them, and the Secrets that its pods and its clients read."""
    submit(SPEC)
    check_golden("client-meshes.yaml", render_yaml(stored(space, MESHES)))
    check_golden("client-secrets.yaml", render_yaml(stored(space, SECRETS)))


def test_the_objects_of_a_batch_client_are_the_recorded_ones(space: Space) -> None:
    """A Job with a pod that has no rights, and a Secret of its own."""
    submit(SPEC, client_script=("python", "train.py"))
    [job] = stored(space, JOBS)
    check_golden("client-job.yaml", render_yaml([job]))
    assert any(one["metadata"]["name"].endswith("-client") for one in stored(space, SECRETS))


def test_nothing_secret_is_in_what_others_may_read(space: Space) -> None:
    """Neither values of variables nor keys: those are in Secrets."""
    submit(SPEC, client_script=("python", "train.py"))
    text = json.dumps([*stored(space, MESHES), *stored(space, JOBS)])
    assert "s3cret" not in text
    assert "PRIVATE" not in text
