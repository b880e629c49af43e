"""Workers of others on a real cluster: ready when they listen, not bothered by it, and not restarted for it."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import LISTEN, SLEEP, Meshes, Operating, Start, unprobed
from milkweed.operator.objects import make_service, make_stateful_set
from milkweed.operator.probe import NO_PROBE, PROBE, PROBE_NOTE
from milkweed.pki import make_authority

LATE = ["sh", "-c", f"until [ -e /go ]; do sleep 0.2; done; {LISTEN[-1]}"]
# As Monarch's own job starts its workers; with TLS where it is given certificates.
SERVE = """
import base64, os, socket
transport, port = os.environ["TRANSPORT"], os.environ["MONARCH_PORT"]
for word in ("CERT", "KEY", "CA"):
    with open(f"/tmp/{word}", "wb") as file:
        file.write(base64.b64decode(os.environ.get(word, "")))
    os.environ[f"HYPERACTOR_TLS_{word}"] = f"/tmp/{word}"
from monarch.actor import run_worker_loop_forever
address = f"{transport}://{socket.gethostname()}:{port}"
run_worker_loop_forever(ca="trust_all_connections", address=address)
"""
PROBES = 10
"""How many probes a worker is watched for."""


def probe_of(meshes: Meshes, kind: str = "pod", name: str = "trainers-0") -> Any:
    found = meshes.find(kind, name)["spec"]
    (container,) = found.get("template", {"spec": found})["spec"]["containers"]
    return container.get(PROBE)


def test_a_mesh_is_ready_when_its_workers_listen(
    meshes: Meshes, operating: Operating, lab: Lab
) -> None:
    """And not before; meanwhile it says at which port nobody listens."""
    meshes.apply(meshes.make(container={"command": LATE}))
    message = meshes.wait_reason("NotReady", words="0 of 2 hosts are ready")
    assert "26600: connect: connection refused" in message
    assert meshes.get()["status"]["readyReplicas"] == 0
    lab.in_pod(meshes.namespace, "trainers-0", "touch", "/go")
    meshes.wait_reason("NotReady", words="1 of 2 hosts are ready")
    lab.in_pod(meshes.namespace, "trainers-1", "touch", "/go")
    meshes.wait_ready(timeout_s=20)


def make_certificates() -> dict[str, str]:
    authority = make_authority("3f0c5f0e-0000-4000-8000-000000000001")
    leaf = authority.issue(["localhost", "127.0.0.1"])
    files = {"CERT": leaf.cert_pem, "KEY": leaf.key_pem, "CA": authority.cert_pem}
    return {word: base64.b64encode(text).decode() for word, text in files.items()}


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_a_worker_does_not_mind(
    meshes: Meshes, operating: Operating, lab: Lab, transport: str
) -> None:
    """The engine says nothing of connections without a word, with TLS and without, and keeps nothing of them."""
    said = {"TRANSPORT": transport, "MONARCH_PORT": "26700", **make_certificates()}
    variables = [{"name": name, "value": value} for name, value in said.items()]
    command = ["python3", "-u", "-c", SERVE]
    container = {"image": WORKER, "command": command, "env": variables}
    meshes.apply(meshes.make(replicas=1, container=container))
    meshes.wait_ready()
    assert probe_of(meshes)["tcpSocket"] == {"port": 26700}
    before = look(lab, meshes.namespace)
    time.sleep(PROBES)
    assert look(lab, meshes.namespace) == before
    (status,) = meshes.pods()["trainers-0"]["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0)


def look(lab: Lab, namespace: str) -> tuple[str, str, int]:
    """What a worker printed, how much it wrote into its log, and how many files it has open.

    A probe's connection may be open at that very moment, which is no harm.
    """

    def count(command: str) -> str:
        return lab.in_pod(namespace, "trainers-0", "sh", "-c", f"{command} | wc -w").stdout

    files = min(int(count("ls /proc/1/fd")) for _look in range(3))
    return lab.logs(namespace, "trainers-0"), count("cat /tmp/*/monarch_log.log"), files


def test_probes_of_ones_own_stay(meshes: Meshes, operating: Operating) -> None:
    """Somebody knows better when such a host is ready."""
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    meshes.apply(meshes.make(replicas=1, container={"command": SLEEP, PROBE: probe}))
    meshes.wait_ready()
    assert probe_of(meshes)["exec"] == probe["exec"]
    assert "tcpSocket" not in probe_of(meshes)


def test_a_mesh_that_wants_no_probe(meshes: Meshes, operating: Operating) -> None:
    """Its hosts are ready when they run."""
    mesh = meshes.make(replicas=1, container={"command": SLEEP})
    mesh["metadata"]["annotations"] = {PROBE_NOTE: NO_PROBE}
    meshes.apply(mesh)
    meshes.wait_ready()
    assert probe_of(meshes) is None


def test_hosts_from_before_are_not_restarted(meshes: Meshes, start: Start, lab: Lab) -> None:
    """StatefulSets without a probe stay as they are, in all sizes, until their template is another one."""
    meshes.apply(meshes.make(container={"command": SLEEP}))
    mesh = meshes.get()
    for made in (make_service(mesh), unprobed(make_stateful_set(mesh))):
        lab.kubectl("create", "-f", "-", text=json.dumps(made))
    meshes.wait_for(lambda: len(meshes.pods()) == 2, "no pods")
    before = meshes.uids()
    operator = start()
    operator.wait_leads()
    meshes.wait_ready()
    meshes.patch("trainers", {"replicas": 3})
    meshes.wait_ready()
    assert before.items() <= meshes.uids().items()
    assert probe_of(meshes, "statefulset", "trainers") is None
    meshes.apply(meshes.make())
    meshes.wait_ready()
    assert not set(before.values()) & set(meshes.uids().values())
    assert probe_of(meshes)["tcpSocket"] == {"port": 26600}
