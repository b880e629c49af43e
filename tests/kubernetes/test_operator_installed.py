"""The operator as people install it: its manifests in a real cluster, and the endpoint for pods without rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubernetes.lab import CLIENT, Lab, wait
from kubernetes.operator_endpoint import Provisioning, make_token, provisioning
from kubernetes.operators import HOME, Meshes, render_manifests
from milkweed.errors import AccessError
from milkweed.kube.asking import delete_mesh, look_up_mesh, request_mesh
from milkweed.operator.install import Install, make_install

# In the cluster


@pytest.fixture
def deployed(lab: Lab, meshes: Meshes, alone: None) -> Iterator[str]:
    """The operator's own pods, in a namespace that they serve and nothing else; its name."""
    home = meshes.namespace
    argv = (f"--namespace={home}", f"--image={CLIENT}", f"--only={home}")
    lab.kubectl("apply", "-f", "-", text=render_manifests(*argv))
    lab.kubectl("label", "namespace", home, "pod-security.kubernetes.io/enforce-", "--overwrite")
    yield home
    lab.kubectl("-n", home, "delete", "deployment", "milkweed-operator")


@pytest.mark.timeout(300)
def test_the_manifests_run(lab: Lab, meshes: Meshes, deployed: str) -> None:
    """Two pods without root that are ready, of which one acts; when it goes, the other one does."""
    here = ("-n", deployed)
    rollout = ("rollout", "status", "deployment/milkweed-operator", "--timeout=110s")
    done = lab.kubectl(*here, *rollout, check=False, timeout_s=120)
    assert done.returncode == 0, lab.kubectl(*here, "get", "events").stdout
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    holder = holder_of(lab, deployed)
    assert holder in operators(lab, deployed)
    lab.kubectl(*here, "delete", "pod", holder)
    wait(lambda: holder_of(lab, deployed) not in {"", holder}, 60, "nobody takes over")
    meshes.patch("trainers", {"replicas": 2})
    meshes.wait_ready()


def holder_of(lab: Lab, namespace: str) -> str:
    lease = lab.get("lease", "-n", namespace, "milkweed-operator")
    return lease["spec"].get("holderIdentity", "")


def operators(lab: Lab, namespace: str) -> list[str]:
    chosen = ("-l", "app.kubernetes.io/name=milkweed-operator")
    found = lab.get("pods", "-n", namespace, *chosen)["items"]
    return [pod["metadata"]["name"] for pod in found]


def test_our_pods_pass_the_strictest_rules(lab: Lab, installed: None) -> None:
    """Made in the namespace that the manifests make, where anything less is refused."""
    objects = make_install(Install(namespace=HOME, image=CLIENT, provision=True))
    for deployment in (one for one in objects if one["kind"] == "Deployment"):
        template = deployment["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {"name": "probe", "namespace": HOME, **template["metadata"]}
        argv = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
        assert "probe" in lab.kubectl(*argv, text=json.dumps(pod)).stdout


# The endpoint


@pytest.fixture
def endpoint(lab: Lab, meshes: Meshes, tmp_path: Path) -> Iterator[Provisioning]:
    """An endpoint for a namespace with the account `asker`, who has no rights at all."""
    with provisioning(lab, tmp_path, meshes.namespace) as running:
        yield running


def test_a_pod_without_rights_gets_its_mesh(
    lab: Lab, meshes: Meshes, endpoint: Provisioning
) -> None:
    """It asks, looks and gives back; what is too much is told by how much."""
    token = make_token(lab, meshes.namespace, "asker")
    place = endpoint.endpoint(token)
    request_mesh(place, meshes.make(replicas=2))
    assert meshes.get()["spec"]["replicas"] == 2
    request_mesh(place, meshes.make(replicas=2))
    with pytest.raises(
        AccessError, match="2 hosts asked for beside 2 in use, at most 3: 1 too many"
    ):
        request_mesh(place, meshes.make("more", replicas=2))
    with pytest.raises(AccessError, match="hostNetwork is not allowed"):
        request_mesh(place, meshes.make("more", replicas=1, hostNetwork=True))
    assert look_up_mesh(place, meshes.namespace, "trainers")["spec"]["port"] == 26600
    assert delete_mesh(place, meshes.namespace, "trainers")
    wait(
        lambda: look_up_mesh(place, meshes.namespace, "trainers") is None,
        60,
        "the mesh does not go",
    )


def test_only_tokens_that_are_made_for_it_are_taken(
    lab: Lab, meshes: Meshes, endpoint: Provisioning
) -> None:
    """Neither the one that every pod has, nor one for another service, nor one that was tampered with."""
    good = make_token(lab, meshes.namespace, "asker")
    usual = lab.kubectl("-n", meshes.namespace, "create", "token", "asker").stdout.strip()
    other = make_token(lab, meshes.namespace, "asker", "another-service")
    head, payload, signature = good.split(".")
    for token in (usual, other, f"{head}.{payload}.{signature[::-1]}", "x"):
        with pytest.raises(AccessError, match="the token is not valid"):
            request_mesh(endpoint.endpoint(token), meshes.make())
    token = make_token(lab, meshes.namespace, "default")
    with pytest.raises(AccessError, match="no rule is for"):
        request_mesh(endpoint.endpoint(token), meshes.make())


def test_requests_are_written_down_without_secrets(
    lab: Lab, meshes: Meshes, endpoint: Provisioning
) -> None:
    """Who asked for what, and what came of it."""
    token = make_token(lab, meshes.namespace, "asker")
    secret = {"env": [{"name": "PASSWORD", "value": "hunter2"}]}
    request_mesh(endpoint.endpoint(token), meshes.make(container=secret))
    text = endpoint.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    made = lines[-1]
    user = f"system:serviceaccount:{meshes.namespace}:asker"
    assert (made["user"], made["status"], made["rule"], made["hosts"]) == (user, 201, "small", 2)
    assert token not in text
    assert "hunter2" not in text
