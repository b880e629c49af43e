"""The operator as people install it: its manifests in a real cluster, and the endpoint for pods without rights."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import CLIENT, Lab, wait
from kubernetes.operators import (
    HOME,
    Meshes,
    Running,
    ended,
    free_port,
    install,
    make_login,
    render_manifests,
)
from milkweed import pki
from milkweed.errors import AccessError, MilkweedError
from milkweed.operator.asking import delete_mesh, look_up_mesh, request_mesh
from milkweed.operator.install import Install, make_install
from milkweed.operator.provision import AUDIENCE

POLICY = """
rules:
- name: small
  serviceAccounts: ["{namespace}/asker"]
  namespaces: ["{namespace}"]
  images: ["localhost/*"]
  maxHosts: 2
  maxGpus: 0
  maxTotalHosts: 3
"""


@pytest.fixture(scope="module")
def installed(lab: Lab) -> None:
    """The definition and all rights."""
    install(lab)


@pytest.fixture
def meshes(lab: Lab, namespace: str, installed: None) -> Meshes:
    """Meshes of this test's namespace."""
    return Meshes(lab, namespace)


# In the cluster


@pytest.fixture
def deployed(lab: Lab, meshes: Meshes) -> Iterator[str]:
    """The operator's own pods, in a namespace that they serve and nothing else; its name."""
    home = meshes.namespace
    argv = (f"--namespace={home}", f"--image={CLIENT}", f"--only={home}")
    lab.kubectl("apply", "-f", "-", text=render_manifests(*argv))
    lab.kubectl("label", "namespace", home, "pod-security.kubernetes.io/enforce-", "--overwrite")
    yield home
    lab.kubectl("-n", home, "delete", "deployment", "milkweed-operator")


def test_the_manifests_run(lab: Lab, meshes: Meshes, deployed: str) -> None:
    """Two pods without root that are ready, of which one acts; when it goes, the other one does."""
    here = ("-n", deployed)
    rollout = ("rollout", "status", "deployment/milkweed-operator", "--timeout=50s")
    done = lab.kubectl(*here, *rollout, check=False)
    assert done.returncode == 0, lab.kubectl(*here, "get", "events").stdout
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    holder = holder_of(lab, deployed)
    assert holder in operators(lab, deployed)
    lab.kubectl(*here, "delete", "pod", holder)
    wait(lambda: holder_of(lab, deployed) not in {"", holder}, 30, "nobody takes over")
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


class Endpoint(Running):
    """One `milkweed operator provision`, with the endpoint's rights."""

    def __init__(self, folder: Path, kubeconfig: str, policy: Path, namespace: str) -> None:
        authority = pki.make_authority("endpoint")
        names = ["127.0.0.1", own_address()]
        keys = pki.save_credentials(folder / "tls", authority.issue(names), authority.cert_pem)
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(authority.cert_pem)
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        argv = [
            "provision",
            f"--policy={policy}",
            f"--cert={keys.cert}",
            f"--key={keys.key}",
            f"--listen=0.0.0.0:{port}",
            f"--namespace={namespace}",
            f"--kubeconfig={kubeconfig}",
        ]
        super().__init__(folder, port, *argv)

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            look_up_mesh(self.url, self.ca, "nobody", "default", "x")
        except AccessError:
            return True
        except MilkweedError:
            return False
        return True


@pytest.fixture
def endpoint(lab: Lab, meshes: Meshes, tmp_path: Path) -> Iterator[Endpoint]:
    """An endpoint for a namespace with the account `asker`, who has no rights at all."""
    lab.kubectl("-n", meshes.namespace, "create", "serviceaccount", "asker")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(namespace=meshes.namespace))
    kubeconfig = make_login(lab, tmp_path, "milkweed-provision")
    running = Endpoint(tmp_path, kubeconfig, policy, meshes.namespace)
    with ended([running]):
        wait(running.is_up, 20, "the endpoint does not answer", running.log.read_text)
        yield running
        assert running.stop() == 0, running.log.read_text()


def make_token(lab: Lab, namespace: str, account: str, audience: str = AUDIENCE) -> str:
    argv = ("create", "token", account, f"--audience={audience}")
    return lab.kubectl("-n", namespace, *argv).stdout.strip()


def test_a_pod_without_rights_gets_its_mesh(lab: Lab, meshes: Meshes, endpoint: Endpoint) -> None:
    """It asks, looks and gives back; what is too much is told by how much."""
    token = make_token(lab, meshes.namespace, "asker")
    place = endpoint.url, endpoint.ca, token
    request_mesh(*place, meshes.make(replicas=2))
    assert meshes.get()["spec"]["replicas"] == 2
    request_mesh(*place, meshes.make(replicas=2))
    with pytest.raises(
        AccessError, match="2 hosts asked for beside 2 in use, at most 3: 1 too many"
    ):
        request_mesh(*place, meshes.make("more", replicas=2))
    with pytest.raises(AccessError, match="hostNetwork is not allowed"):
        request_mesh(*place, meshes.make("more", replicas=1, hostNetwork=True))
    assert look_up_mesh(*place, meshes.namespace, "trainers")["spec"]["port"] == 26600
    assert delete_mesh(*place, meshes.namespace, "trainers")
    assert "monarchmesh.monarch.pytorch.org/trainers" not in lab.objects(meshes.namespace)


def test_only_tokens_that_are_made_for_it_are_taken(
    lab: Lab, meshes: Meshes, endpoint: Endpoint
) -> None:
    """Neither the one that every pod has, nor one for another service, nor one that was tampered with."""
    good = make_token(lab, meshes.namespace, "asker")
    usual = lab.kubectl("-n", meshes.namespace, "create", "token", "asker").stdout.strip()
    other = make_token(lab, meshes.namespace, "asker", "another-service")
    head, payload, signature = good.split(".")
    for token in (usual, other, f"{head}.{payload}.{signature[::-1]}", "x"):
        with pytest.raises(AccessError, match="the token is not valid"):
            request_mesh(endpoint.url, endpoint.ca, token, meshes.make())
    token = make_token(lab, meshes.namespace, "default")
    with pytest.raises(AccessError, match="no rule is for"):
        request_mesh(endpoint.url, endpoint.ca, token, meshes.make())


def test_requests_are_written_down_without_secrets(
    lab: Lab, meshes: Meshes, endpoint: Endpoint
) -> None:
    """Who asked for what, and what came of it."""
    token = make_token(lab, meshes.namespace, "asker")
    secret = {"env": [{"name": "PASSWORD", "value": "hunter2"}]}
    request_mesh(endpoint.url, endpoint.ca, token, meshes.make(container=secret))
    text = endpoint.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    made = lines[-1]
    user = f"system:serviceaccount:{meshes.namespace}:asker"
    assert (made["user"], made["status"], made["rule"], made["hosts"]) == (user, 201, "small", 2)
    assert token not in text
    assert "hunter2" not in text


ASK = """
import json, os
from milkweed.operator.asking import request_mesh
token = open("/var/run/asking/token").read()
made = request_mesh(os.environ["URL"], "/var/run/asking/ca.pem", token, json.loads(os.environ["MESH"]))
print("made", made["metadata"]["name"])
"""


def test_from_within_a_pod(lab: Lab, meshes: Meshes, endpoint: Endpoint) -> None:
    """A real pod with a token that the cluster projects for it, and no other right in the world."""
    here = ("-n", meshes.namespace)
    lab.kubectl(*here, "create", "configmap", "ca", f"--from-file=ca.pem={endpoint.ca}")
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}},
        {"configMap": {"name": "ca"}},
    ]
    spec = {
        "serviceAccountName": "asker",
        "automountServiceAccountToken": False,
        "volumes": [{"name": "asking", "projected": {"sources": sources}}],
    }
    url = f"https://{own_address()}:{endpoint.port}"
    container = {
        "volumeMounts": [{"name": "asking", "mountPath": "/var/run/asking"}],
        "env": [
            {"name": "URL", "value": url},
            {"name": "MESH", "value": json.dumps(meshes.make(replicas=1))},
        ],
    }
    argv = ("python3", "-c", ASK)
    lab.start_pod(meshes.namespace, "asking", *argv, image=CLIENT, spec=spec, container=container)
    lab.wait_phase(meshes.namespace, "asking", "Succeeded")
    assert lab.logs(meshes.namespace, "asking") == "made trainers\n"
    assert meshes.get()["spec"]["replicas"] == 1


def own_address() -> str:
    """The address of this program as pods see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.250.0.1", 1))
        return probe.getsockname()[0]
