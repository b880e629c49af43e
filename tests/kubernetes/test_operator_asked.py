"""A pod without any right gets a whole job from the endpoint: hosts, Secrets, another size, and why they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import BUSYBOX, Lab
from kubernetes.operator_endpoint import Provisioning, make_token, provisioning, run_asking
from kubernetes.operators import Meshes, Operating
from milkweed.backends.kubernetes.start import JOB_LABEL
from milkweed.errors import AccessError
from milkweed.kube.asking import look_up_mesh, look_up_secret, request_mesh

JOB = "3f0c5f0e-0000-4000-8000-000000000001"
HOSTS, AUTHORITY = "milkweed-3f0c5f0e-hosts", "milkweed-3f0c5f0e-authority"
KEY = "aHVudGVyMg=="  # hunter2
ASK = """
import json, os, time
from milkweed.kube.asking import *
from milkweed.kube.asking import read_endpoint
place = read_endpoint(os.environ["URL"], "/var/run/asking/ca.pem", "/var/run/asking/token")
mesh, secrets = json.loads(os.environ["MESH"]), json.loads(os.environ["SECRETS"])
here = mesh["metadata"]["namespace"]
JOB = mesh["metadata"]["labels"]["milkweed.dev/job"]

def wait(true):
    for _ in range(400):
        found = look_up_mesh(place, here, "trainers")
        if true(found):
            return found
        time.sleep(0.2)
    raise SystemExit(f"{found}")

def ready(count):
    return lambda found: [pod["ready"] for pod in found["pods"]] == [True] * count

request_mesh(place, mesh, secrets)
request_mesh(place, mesh, secrets)
print("ready", [pod["name"] for pod in wait(ready(1))["pods"]])
print("holds", look_up_secret(place, here, "milkweed-3f0c5f0e-authority"))
resize_mesh(place, here, "trainers", 2, job=JOB, secrets=secrets)
print("ready", [pod["name"] for pod in wait(ready(2))["pods"]])
print("gone", delete_mesh(place, here, "trainers", job=JOB), wait(lambda found: found is None))
"""


@pytest.fixture
def endpoint(
    lab: Lab, operating: Operating, namespace: str, tmp_path: Path
) -> Iterator[Provisioning]:
    """An operator, and an endpoint for a namespace with the account `asker`, who has no rights at all."""
    with provisioning(lab, tmp_path, namespace) as running:
        yield running


def make_job(lab: Lab, namespace: str, **container: Any) -> dict[str, Any]:
    """A mesh of a job, whose pods see their Secret."""
    mount = {"name": "milkweed", "mountPath": "/etc/milkweed"}
    volume = {"name": "milkweed", "secret": {"secretName": HOSTS}}
    container = {"volumeMounts": [mount], **container}
    mesh = Meshes(lab, namespace).make(replicas=1, volumes=[volume], container=container)
    mesh["metadata"]["labels"] = {JOB_LABEL: JOB}
    return mesh


def test_a_whole_job_from_within_a_pod(lab: Lab, namespace: str, endpoint: Provisioning) -> None:
    """Nothing of it is left in the end, and nothing of its Secrets was written down."""
    secrets = {HOSTS: {"key": KEY}, AUTHORITY: {"ca.key": KEY}}
    mesh = make_job(lab, namespace)
    env = {"URL": endpoint.address, "MESH": json.dumps(mesh), "SECRETS": json.dumps(secrets)}
    out = run_asking(lab, namespace, ASK, **env)
    assert out.splitlines() == [
        "ready ['trainers-0']",
        f"holds {{'ca.key': {KEY!r}}}",
        "ready ['trainers-0', 'trainers-1']",
        "gone True None",
    ]
    lab.kubectl("-n", namespace, "delete", "pod", "asking", "--now")
    lab.kubectl("-n", namespace, "delete", "configmap", "ca")
    lab.kubectl("-n", namespace, "delete", "serviceaccount", "asker")
    lab.wait_empty(namespace)
    told = lab.kubectl("-n", namespace, "get", "events", "-o", "yaml").stdout
    for text in (endpoint.log.read_text(), told):
        assert KEY not in text
        assert "hunter2" not in text


def test_why_hosts_wait_is_told_to_their_caller_alone(
    lab: Lab, namespace: str, endpoint: Provisioning
) -> None:
    """Another account, and one of the same name that was made anew, see neither mesh nor Secret."""
    place = endpoint.endpoint(make_token(lab, namespace, "asker"))
    mesh = make_job(lab, namespace, image="localhost/nothing:1")
    request_mesh(place, mesh, {HOSTS: {"key": KEY}})
    meshes = Meshes(lab, namespace)
    meshes.wait_reason("ErrImageNeverPull")
    (pod,) = look_up_mesh(place, namespace, "trainers")["pods"]
    assert (pod["name"], pod["ready"], pod["word"]) == ("trainers-0", False, "ErrImageNeverPull")
    assert "localhost/nothing:1" in pod["reason"]
    lab.kubectl("-n", namespace, "delete", "serviceaccount", "asker")
    lab.kubectl("-n", namespace, "create", "serviceaccount", "asker")
    for account in ("asker", "default"):
        other = endpoint.endpoint(make_token(lab, namespace, account))
        assert look_up_mesh(other, namespace, "trainers") is None
        assert look_up_secret(other, namespace, HOSTS) is None
    other = endpoint.endpoint(make_token(lab, namespace, "asker"))
    peek = make_job(lab, namespace, image=BUSYBOX)
    peek["metadata"]["name"] = "peek"
    with pytest.raises(AccessError, match=f"'{HOSTS}' is not among"):
        request_mesh(other, peek)
