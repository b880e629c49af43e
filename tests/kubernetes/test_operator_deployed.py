"""The operator and the endpoint as `milkweed operator manifests` installs them, for a whole real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import CLIENT, Lab, wait
from kubernetes.operators import HOME, Meshes, Shared, render_manifests
from milkweed import pki
from milkweed.operator.provision import AUDIENCE

pytestmark = pytest.mark.timeout(400)  # two rollouts may take their time, one after the other
ENDPOINT = f"milkweed-provision.{HOME}.svc"
POLICY = """
rules:
- name: small
  serviceAccounts: ["*/asker"]
  namespaces: ["t*"]
  images: ["localhost/*"]
  maxHosts: 1
  maxGpus: 0
"""
ASK = """
import json, os, sys
from milkweed.errors import MilkweedError
from milkweed.kube.asking import read_endpoint, request_mesh
place = read_endpoint(os.environ["URL"], "/var/run/asking/ca.pem", "/var/run/asking/token")
try:
    made = request_mesh(place, json.loads(os.environ["MESH"]))
except MilkweedError as error:
    print(error)
else:
    print("made", made["metadata"]["name"])
"""


@pytest.fixture(scope="module")
def deployed(lab: Lab, shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Everything that the command prints, a policy and a certificate; the certificate's authority."""
    shared.rest()
    folder = tmp_path_factory.mktemp("endpoint")
    lab.kubectl("apply", "-f", "-", text=render_manifests(f"--image={CLIENT}", "--provision"))
    ca = make_secrets(lab, folder)
    here = ("-n", HOME)
    for name in ("milkweed-operator", "milkweed-provision"):
        rollout = ("rollout", "status", f"deployment/{name}", "--timeout=110s")
        done = lab.kubectl(*here, *rollout, check=False, timeout_s=120)
        assert done.returncode == 0, lab.kubectl(*here, "get", "events").stdout
    yield ca
    lab.kubectl(*here, "delete", "deployments", "--all")
    wait(lambda: not lab.get("pods", *here)["items"], 90, "the operator's pods do not end")


def make_secrets(lab: Lab, folder: Path) -> Path:
    authority = pki.make_authority("endpoint")
    keys = pki.save_credentials(folder / "tls", authority.issue([ENDPOINT]), authority.cert_pem)
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "ca.pem").write_bytes(authority.cert_pem)
    here, name = ("-n", HOME, "create"), "milkweed-provision"
    pair = (f"--cert={keys.cert}", f"--key={keys.key}")
    lab.kubectl(*here, "secret", "tls", f"{name}-tls", *pair)
    lab.kubectl(*here, "configmap", f"{name}-policy", f"--from-file={folder}/policy.yaml")
    return folder / "ca.pem"


@pytest.fixture
def meshes(lab: Lab, namespace: str, deployed: Path) -> Meshes:
    """Meshes of this test's namespace, in which there are two accounts without rights."""
    here = ("-n", namespace, "create")
    lab.kubectl(*here, "serviceaccount", "asker")
    lab.kubectl(*here, "serviceaccount", "stranger")
    lab.kubectl(*here, "configmap", "ca", f"--from-file=ca.pem={deployed}")
    return Meshes(lab, namespace)


def ask(meshes: Meshes, pod: str, mesh: dict[str, Any], account: str = "asker") -> str:
    """What a pod is told that asks for a mesh."""
    token = {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}
    sources = [{"serviceAccountToken": token}, {"configMap": {"name": "ca"}}]
    spec = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "volumes": [{"name": "asking", "projected": {"sources": sources}}],
    }
    container = {
        "volumeMounts": [{"name": "asking", "mountPath": "/var/run/asking"}],
        "env": [
            {"name": "URL", "value": f"https://{ENDPOINT}"},
            {"name": "MESH", "value": json.dumps(mesh)},
        ],
    }
    lab, here = meshes.lab, meshes.namespace
    argv = ("python3", "-c", ASK)
    lab.start_pod(here, pod, *argv, image=CLIENT, spec=spec, container=container)
    lab.wait_phase(here, pod, "Succeeded")
    return lab.logs(here, pod)


def test_a_pod_without_rights_gets_hosts(lab: Lab, meshes: Meshes) -> None:
    """It asks the endpoint by its name, which makes the mesh, of which the operator makes hosts."""
    assert ask(meshes, "asking", meshes.make(replicas=1)) == "made trainers\n"
    assert sorted(meshes.wait_ready()["metadata"]["labels"].values()) == ["small"]
    assert "trainers-0" in meshes.pods()
    who = f"--as=system:serviceaccount:{meshes.namespace}:asker"
    done = lab.kubectl("-n", meshes.namespace, "get", "monarchmeshes", who, check=False)
    assert "forbidden" in done.stderr


def test_what_is_too_much_is_denied_by_name(meshes: Meshes) -> None:
    """The pod is told which rule denies it, which field, and by how much."""
    mesh = meshes.make(replicas=3, hostNetwork=True)
    told = ask(meshes, "asking", mesh)
    assert "rule small: spec.replicas 3 hosts asked for, at most 1: 2 too many" in told
    assert "rule small: spec.podTemplate.spec.hostNetwork is not allowed" in told
    told = ask(meshes, "stranger", meshes.make(), account="stranger")
    assert f"no rule is for system:serviceaccount:{meshes.namespace}:stranger" in told
    assert "monarchmesh.monarch.pytorch.org/trainers" not in meshes.lab.objects(meshes.namespace)


def test_the_operators_pods_are_held_to_the_strictest_rules(lab: Lab, meshes: Meshes) -> None:
    """Their namespace takes no others, and they write nothing to their disks and run as nobody."""
    labels = lab.get("namespace", HOME)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pods = lab.get("pods", "-n", HOME)["items"]
    assert len(pods) == 3
    assert {one["status"]["containerStatuses"][0]["restartCount"] for one in pods} == {0}


def test_a_rollout_of_the_operator(lab: Lab, meshes: Meshes) -> None:
    """All its pods are made anew; meshes that are asked for meanwhile get their hosts."""
    here = ("-n", HOME, "rollout")
    lab.kubectl(*here, "restart", "deployment/milkweed-operator")
    meshes.apply(meshes.make())
    meshes.wait_ready()
    before = meshes.uids()
    status = ("status", "deployment/milkweed-operator", "--timeout=110s")
    lab.kubectl(*here, *status, timeout_s=120)
    meshes.patch("trainers", {"replicas": 3})
    meshes.wait_ready()
    assert meshes.uids().items() >= before.items()
