"""The end of a lease on a real cluster: containers say so and are started again, and the mesh is ended or not."""

from __future__ import annotations

import json
from typing import Any

from kubernetes.lab import Lab, wait
from kubernetes.operators import Meshes, Operating
from milkweed.backends.kubernetes.start import JOB_LABEL, LEASE_OVER

JOB = "3f0c5f0e-0000-4000-8000-000000000001"
# The first life of a container ends, of the second host when it is told to; the next goes on. As keepers do, they
# start in a second.
LIVES = f"""
sleep 1; touch /up
[ -e /lives/second ] && exec sleep 3600
touch /lives/second
sleep 2
[ "$SILENT" = "$HOSTNAME" ] && exec sleep 3600
[ "${{HOSTNAME##*-}}" = 0 ] || until [ -e /lives/go ]; do sleep 0.2; done
echo '{LEASE_OVER}' >/dev/termination-log
"""


def make_mesh(meshes: Meshes, silent: str = "") -> dict[str, Any]:
    """A mesh of a job, whose hosts say one after the other that their lease is over."""
    container = {
        "command": ["sh", "-c", LIVES],
        "env": [{"name": "SILENT", "value": silent}],
        "volumeMounts": [{"name": "lives", "mountPath": "/lives"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/up"]}, "periodSeconds": 1},
    }
    mesh = meshes.make(container=container, volumes=[{"name": "lives", "emptyDir": {}}])
    mesh["metadata"]["labels"] = {JOB_LABEL: JOB}
    return mesh


def make_secret(meshes: Meshes) -> None:
    """A Secret of the job, which belongs to its mesh."""
    mesh = meshes.get()
    owner = {key: mesh[key] for key in ("apiVersion", "kind")}
    owner |= {key: mesh["metadata"][key] for key in ("name", "uid")}
    meta = {"name": f"milkweed-{JOB[:8]}-hosts", "namespace": meshes.namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta | {"ownerReferences": [owner]}}
    meshes.lab.kubectl("create", "-f", "-", text=json.dumps(secret))


def restarts(meshes: Meshes) -> list[int]:
    pods = meshes.pods().values()
    return [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods]


def test_a_lease_that_is_over_ends_the_mesh(lab: Lab, namespace: str, operating: Operating) -> None:
    """The second host says so when the first one is up again; nothing is left but the event."""
    failures = operating.measure("failures_total")
    meshes = Meshes(lab, namespace)
    meshes.apply(make_mesh(meshes))
    make_secret(meshes)
    meshes.wait_ready()
    meshes.wait_for(lambda: restarts(meshes) == [1, 0], "the first host does not end")
    meshes.wait_ready()
    lab.in_pod(namespace, "trainers-1", "touch", "/lives/go")
    lab.wait_empty(namespace, timeout_s=90)
    assert "LeaseOver" in meshes.events()
    said = lab.kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
    assert f"{LEASE_OVER}, said 2 of 2 hosts; the mesh is deleted" in said.stdout
    assert operating.measure("failures_total") == failures


def test_a_mesh_where_one_host_runs_on_stays(
    lab: Lab, namespace: str, operating: Operating
) -> None:
    """Its message tells, and its hosts are the same."""
    meshes = Meshes(lab, namespace)
    meshes.apply(make_mesh(meshes, silent="trainers-1"))
    words = "2 of 2 hosts are ready; the lease of 1 was over before"
    meshes.wait_reason("AllReady", words=words)
    looks = operating.measure("looks_total")
    lab.kubectl("-n", namespace, "annotate", "pod", "trainers-1", "look=again")
    wait(lambda: operating.measure("looks_total") > looks, 60, "the operator does not look")
    assert restarts(meshes) == [1, 0]
    assert "LeaseOver" not in meshes.events()
