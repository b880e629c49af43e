"""What a client asks for is taken by the API server itself, strictly, without making anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Meshes
from milkweed.backends.base import Request
from milkweed.backends.kubernetes.finding import make_handle
from milkweed.backends.kubernetes.making import Maker
from milkweed.backends.kubernetes.settings import make_plans
from milkweed.compute import Compute
from milkweed.image import Image
from milkweed.job.kubernetes import ImageSpec, KubernetesJob
from milkweed.kube.resources import JOBS, MESHES, SECRETS, STATEFUL_SETS
from milkweed.pki import make_authority
from milkweed.spec import JobSpec, make_meshes
from unit.kubernetes_jobs import APPLY_ID, Space

STRICT = {"dryRun": "All", "fieldValidation": "Strict"}


def from_image(namespace: str) -> JobSpec:
    """A job file's declaration: an image for two meshes."""
    options = {"namespace": namespace, "image": WORKER}
    meshes = make_meshes({"trainers": 2, "loaders": 1}, {"TOKEN": "s3cret"})
    return JobSpec(name="demo", backend="kubernetes", meshes=meshes, options=options)


def from_compute(namespace: str) -> JobSpec:
    """All that a Compute can say."""
    compute = Compute(
        cpus=2,
        memory="4Gi",
        disk_size="1Gi",
        gpus=1,
        gpu_type="A100",
        replicas=2,
        image=Image(WORKER).pip_install(["numpy"]),
        env_vars={"A": "1"},
        secrets=["login", "keys:/keys"],
        volumes=["data", "more:/more:ro"],
        shared_memory_limit="1Gi",
        node_selector={"disk": "ssd"},
        tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        labels={"team": "a"},
        annotations={"note": "b"},
        priority_class_name="high",
        image_pull_policy="IfNotPresent",
        working_dir="/work",
        service_account_name="worker",
        queue_name="team",
    )
    resources = {"cpu": "500m", "memory": "1Gi"}
    job = KubernetesJob(
        namespace, compute=compute, client_resources=resources, sync_dirs=[], time_limit="1h"
    )
    job.add_mesh("loaders", 1, image_spec=ImageSpec(WORKER, {"cpu": "1"}, shared_memory_size="1Gi"))
    return job.spec


def from_pod_spec(namespace: str) -> JobSpec:
    """A pod's spec with init containers, a sidecar, volumes and a place; and a whole template."""
    container = {"name": "worker", "image": WORKER, "env": [{"name": "A", "value": "1"}]}
    side = {"name": "side", "image": WORKER, "command": ["sleep", "1000"]}
    pod = {
        "initContainers": [{"name": "first", "image": WORKER, "command": ["true"]}],
        "containers": [side, {**container, "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
        "volumes": [{"name": "d", "emptyDir": {}}],
        "nodeSelector": {"disk": "ssd"},
        "securityContext": {"runAsUser": 1000},
        "terminationGracePeriodSeconds": 5,
    }
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container]}}
    job = KubernetesJob(namespace)
    job.add_mesh("trainers", 2, pod_spec=pod, labels={"team": "a"}, annotations={"note": "b"})
    job.add_mesh("loaders", 1, pod_template=template, port=30000)
    return job.spec


def make_objects(spec: JobSpec, namespace: str) -> Space:
    """The objects of a job with a batch client, in a cluster that is none."""
    request = Request(spec=spec, apply_id=APPLY_ID, client_script=("true",))
    space, plans = Space(), make_plans(spec, namespace, APPLY_ID)
    space.namespaces.add(namespace)
    maker = Maker(space, make_handle(request, space, namespace, plans), request, plans)
    authority = make_authority("demo")
    maker.make(authority, worker=b"x")
    maker.make_client()
    return space


def check_template(lab: Lab, namespace: str, template: dict[str, Any]) -> None:
    """What is in a MonarchMesh nobody looks at: a StatefulSet of it is looked at as those of the operator are."""
    labels = template["metadata"]["labels"]
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "some"},
        "spec": {"serviceName": "some", "selector": {"matchLabels": labels}, "template": template},
    }
    answer = lab.api.create(STATEFUL_SETS, namespace, body, **STRICT)
    made = answer["spec"]["template"]["spec"]
    for container in (*made["containers"], *made.get("initContainers", ())):
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("declare", [from_image, from_compute, from_pod_spec])
def test_what_a_client_asks_for_is_taken(
    lab: Lab, meshes: Meshes, declare: Callable[[str], JobSpec]
) -> None:
    """Meshes, Secrets and the Job of a batch client: nothing is unknown, nothing wrong, nothing is left out."""
    here = meshes.namespace
    space = make_objects(declare(here), here)
    taken: dict[str, int] = {}
    for resource in (SECRETS, MESHES, JOBS):
        for name in space.names(resource):
            body = json.loads(json.dumps(space.objects[resource.plural, here, name]))
            for key in ("uid", "resourceVersion", "generation", "ownerReferences"):
                body["metadata"].pop(key, None)
            answer = lab.api.create(resource, here, body, **STRICT)
            assert answer["metadata"]["labels"] == body["metadata"]["labels"]
            if resource is MESHES:
                check_template(lab, here, body["spec"]["podTemplate"])
            taken[resource.plural] = taken.get(resource.plural, 0) + 1
    assert taken == {"secrets": 3, "monarchmeshes": 2, "jobs": 1}
    assert lab.objects(here) == []
