"""The operator on a real cluster: from a mesh to hosts, through every change and every accident."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from kubernetes.lab import BUSYBOX, Lab, wait
from kubernetes.operators import Meshes, Operating, Start, unprobed
from milkweed.operator.objects import HASH, PASSED_ON, make_service, make_stateful_set


@pytest.fixture
def operator(operating: Operating) -> Operating:
    """One operator that acts."""
    return operating


# From a mesh to hosts


def test_a_mesh_becomes_hosts(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """Two pods with names that everybody in the cluster knows, and a mesh that says it is ready."""
    meshes.apply(meshes.make())
    mesh = meshes.wait_ready()
    assert (mesh["status"]["replicas"], mesh["status"]["readyReplicas"]) == (2, 2)
    assert mesh["status"]["observedGeneration"] == 1
    assert sorted(meshes.pods()) == ["trainers-0", "trainers-1"]
    name = f"trainers-1.trainers-svc.{meshes.namespace}.svc.cluster.local"
    address = meshes.pods()["trainers-1"]["status"]["podIP"]
    assert address in lab.in_pod(meshes.namespace, "trainers-0", "nslookup", name).stdout
    assert meshes.events() == {"Created", "AllReady"}
    shown = lab.kubectl("-n", meshes.namespace, "get", "monarchmeshes").stdout.splitlines()
    assert shown[0].split() == ["NAME", "HOSTS", "READY", "REASON", "AGE"]
    assert shown[1].split()[:4] == ["trainers", "2", "2", "AllReady"]


def test_a_quiet_world_is_left_in_peace(meshes: Meshes, start: Start) -> None:
    """Nothing is written when nothing changes, also by an operator that comes anew."""
    operator = start()
    operator.wait_leads()
    meshes.apply(meshes.make())
    meshes.wait_ready()
    kinds = [("monarchmesh", "trainers"), ("statefulset", "trainers"), ("service", "trainers-svc")]
    wait(lambda: is_steady(operator), 30, "the operator writes and writes")
    before = [meshes.find(*kind)["metadata"]["resourceVersion"] for kind in kinds]
    looks = operator.measure("looks_total")
    meshes.lab.kubectl("-n", meshes.namespace, "annotate", "pod", "trainers-0", "look=again")
    wait(lambda: operator.measure("looks_total") > looks, 60, "the operator does not look")
    assert is_steady(operator)
    assert [meshes.find(*kind)["metadata"]["resourceVersion"] for kind in kinds] == before


def is_steady(operator: Operating) -> bool:
    writes = operator.measure("writes_total")
    subprocess.run(["sleep", "1"], check=True)
    return operator.measure("writes_total") == writes


def test_what_is_strange_to_us_is_passed_on(meshes: Meshes, operator: Operating) -> None:
    """Fields of a pod that milkweed knows nothing of reach the pods."""
    mesh = meshes.make(replicas=1, hostAliases=[{"ip": "10.1.2.3", "hostnames": ["far"]}])
    mesh["spec"]["podTemplate"]["metadata"] = {"annotations": {"mine": "too"}}
    meshes.apply(mesh)
    meshes.wait_ready()
    pod = meshes.pods()["trainers-0"]
    assert pod["spec"]["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": ["far"]}]
    assert pod["metadata"]["annotations"]["mine"] == "too"


# Changes


def test_scaling(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """Up and down, by hand and by `kubectl scale`; the first host is the same all the time."""
    meshes.apply(meshes.make())
    meshes.wait_ready()
    first = meshes.uids()["trainers-0"]
    meshes.patch("trainers", {"replicas": 4})
    meshes.wait_ready()
    assert len(meshes.pods()) == 4
    lab.kubectl("-n", meshes.namespace, "scale", "monarchmesh", "trainers", "--replicas=1")
    meshes.wait_ready()
    meshes.wait_for(lambda: list(meshes.pods()) == ["trainers-0"], "hosts are left")
    assert meshes.uids()["trainers-0"] == first
    assert "Scaled" in meshes.events()


def test_another_template(meshes: Meshes, operator: Operating) -> None:
    """Every host is made anew with it, and the mesh is ready only after the last."""
    meshes.apply(meshes.make())
    meshes.wait_ready()
    before = meshes.uids()
    meshes.apply(meshes.make(container={"env": [{"name": "A", "value": "1"}]}))
    assert "of them have the new pod template" in meshes.wait_reason("Updating")
    meshes.wait_ready()
    assert not set(before.values()) & set(meshes.uids().values())
    variables = [pod["spec"]["containers"][0].get("env") for pod in meshes.pods().values()]
    assert variables == [[{"name": "A", "value": "1"}]] * 2
    assert "TemplateChanged" in meshes.events()


def test_labels_come_and_go(meshes: Meshes, operator: Operating) -> None:
    """They are passed on to the StatefulSet and taken back, and no host is restarted for it."""
    mesh = meshes.make(replicas=1)
    mesh["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "low"}
    meshes.apply(mesh)
    meshes.wait_ready()
    before = meshes.uids()
    assert labels_of(meshes)["kueue.x-k8s.io/priority-class"] == "low"
    mesh["metadata"]["labels"] = {"team": "vision"}
    meshes.apply(mesh)
    meshes.wait_for(lambda: "team" in labels_of(meshes), "the label does not come")
    assert "kueue.x-k8s.io/priority-class" not in labels_of(meshes)
    assert meshes.uids() == before


def test_a_queue_finds_its_label(meshes: Meshes, operator: Operating) -> None:
    """Kueue reads the mesh's label on the StatefulSet; what a template says is on the pods."""
    queue = {"kueue.x-k8s.io/queue-name": "research"}
    rack = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    mesh = meshes.make(replicas=1)
    mesh["metadata"] |= {"labels": queue, "annotations": {"owner": "ada"}}
    mesh["spec"]["podTemplate"]["metadata"] = {"labels": queue, "annotations": rack}
    meshes.apply(mesh)
    meshes.wait_ready()
    found = meshes.find("statefulset")["metadata"]
    assert found["labels"].items() >= queue.items()
    assert found["annotations"]["owner"] == "ada"
    assert not [key for key in found["annotations"] if key.startswith("kubectl.kubernetes.io/")]
    pod = meshes.pods()["trainers-0"]["metadata"]
    assert pod["labels"].items() >= queue.items()
    assert pod["annotations"].items() >= rack.items()


def labels_of(meshes: Meshes) -> dict[str, str]:
    return meshes.find("statefulset")["metadata"]["labels"]


def test_deleting_leaves_nothing(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """What was made for a mesh goes with it."""
    meshes.apply(meshes.make())
    meshes.wait_ready()
    lab.kubectl("-n", meshes.namespace, "delete", "monarchmesh", "trainers")
    lab.wait_empty(meshes.namespace)


def test_made_anew_under_the_same_name(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """The old hosts go, new ones come."""
    meshes.apply(meshes.make())
    meshes.wait_ready()
    before = meshes.uids()
    lab.kubectl("-n", meshes.namespace, "delete", "monarchmesh", "trainers")
    meshes.apply(meshes.make())
    meshes.wait_ready()
    assert not set(before.values()) & set(meshes.uids().values())


# Repairs


def test_a_pod_that_is_killed_comes_back(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """Under the same name, and the mesh tells of both."""
    meshes.apply(meshes.make())
    meshes.wait_ready()
    changed = meshes.condition()["lastTransitionTime"]
    before = meshes.uids()
    force = ("--force", "--grace-period=0")
    lab.kubectl("-n", meshes.namespace, "delete", "pod", "trainers-1", *force)
    meshes.wait_for(
        lambda: meshes.is_ready() and meshes.uids().get("trainers-1") != before["trainers-1"],
        "the pod does not come back",
    )
    assert meshes.uids()["trainers-0"] == before["trainers-0"]
    assert meshes.condition()["lastTransitionTime"] >= changed


def test_what_somebody_changed_is_put_right(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """A number, an image and a whole Service."""
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    here = ("-n", meshes.namespace)
    lab.kubectl(*here, "scale", "statefulset", "trainers", "--replicas=3")
    meshes.wait_for(lambda: spec_of(meshes)["replicas"] == 1, "it is not scaled back")
    lab.kubectl(*here, "set", "image", "statefulset/trainers", "worker=nowhere/x:1")
    meshes.wait_for(lambda: image_of(meshes) == BUSYBOX, "the image is not put back")
    lab.kubectl(*here, "delete", "service", "trainers-svc")
    meshes.wait_for(
        lambda: "service/trainers-svc" in lab.objects(meshes.namespace), "no new Service"
    )
    meshes.wait_ready()
    assert "Repaired" in meshes.events()


def spec_of(meshes: Meshes) -> dict[str, Any]:
    return meshes.find("statefulset")["spec"]


def image_of(meshes: Meshes) -> str:
    return spec_of(meshes)["template"]["spec"]["containers"][0]["image"]


def test_a_restart_that_somebody_asked_for_is_theirs(
    meshes: Meshes, operator: Operating, lab: Lab
) -> None:
    """`kubectl rollout restart` changes the template, and that is not put back."""
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    before = meshes.uids()
    lab.kubectl("-n", meshes.namespace, "rollout", "restart", "statefulset/trainers")
    meshes.wait_for(
        lambda: meshes.is_ready() and meshes.uids() != before, "the host is not restarted"
    )
    annotations = spec_of(meshes)["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in annotations


def test_meshes_of_another_operator_change_hands(meshes: Meshes, start: Start, lab: Lab) -> None:
    """Objects as the other operator makes them are taken over, and the pods are the same."""
    meshes.apply(meshes.make())
    mesh = meshes.get()
    service, found = make_service(mesh), unprobed(make_stateful_set(mesh))
    del service["spec"]["publishNotReadyAddresses"]
    found["metadata"]["annotations"] = {HASH: "0123abcd"}
    for made in (service, found):
        lab.kubectl("create", "-f", "-", text=json.dumps(made))
    meshes.wait_for(lambda: len(meshes.pods()) == 2, "no pods")
    before, revision = meshes.uids(), meshes.find("statefulset")["status"]["updateRevision"]
    start().wait_leads()
    meshes.wait_ready()
    after = meshes.find("statefulset")
    assert meshes.uids() == before
    assert after["status"]["updateRevision"] == revision
    assert PASSED_ON in after["metadata"]["annotations"]
    assert "Adopted" in meshes.events()


def test_a_foreign_object_is_never_touched(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """The mesh says so; when it is gone the mesh gets what it needs."""
    here = ("-n", meshes.namespace)
    lab.kubectl(*here, "create", "service", "clusterip", "trainers-svc", "--tcp=80")
    before = meshes.find("service", "trainers-svc")
    meshes.apply(meshes.make(replicas=1))
    message = meshes.wait_reason("Conflict")
    assert "Service trainers-svc is there already" in message
    assert meshes.find("service", "trainers-svc") == before
    assert lab.kubectl(*here, "get", "statefulsets", "-o", "name").stdout == ""
    lab.kubectl(*here, "delete", "service", "trainers-svc")
    meshes.wait_ready()


# Accidents


def test_an_operator_that_is_killed_in_the_middle(meshes: Meshes, start: Start) -> None:
    """The next one goes on where it was, and has nothing to undo."""
    first = start()
    first.wait_leads()
    meshes.apply(meshes.make(replicas=3))
    meshes.wait_for(
        lambda: "service/trainers-svc" in meshes.lab.objects(meshes.namespace), "no Service"
    )
    first.kill()
    meshes.patch("trainers", {"replicas": 2})
    second = start("second")
    meshes.wait_ready()
    assert len(meshes.pods()) == 2
    assert second.measure("failures_total") == 0


def test_of_two_operators_one_acts(meshes: Meshes, start: Start) -> None:
    """The other one takes its place within seconds when it stops, and after its time when it is killed."""
    first = start()
    first.wait_leads()
    second = start("second")
    wait(lambda: second.ask("/readyz") == "ok\n", 60, "the second is not ready")
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    assert (second.measure("leads"), second.measure("writes_total")) == (0, 0)
    assert first.stop() == 0
    second.wait_leads(timeout_s=20)
    meshes.patch("trainers", {"replicas": 2})
    meshes.wait_ready()
    third = start("third")
    wait(lambda: third.ask("/readyz") == "ok\n", 60, "the third is not ready")
    second.kill()
    third.wait_leads(timeout_s=40)
    meshes.patch("trainers", {"replicas": 1})
    meshes.wait_ready()


def test_the_api_server_restarts(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """What changes afterwards is done, by the same program."""
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    before = meshes.uids()
    lab.restart_api()
    meshes.patch("trainers", {"replicas": 2})
    meshes.wait_ready()
    assert meshes.uids()["trainers-0"] == before["trainers-0"]
    assert operator.process.poll() is None
    assert operator.ask("/healthz") == "ok\n"


def test_the_api_server_falls_silent(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """The operator stops acting, and goes on when it answers again."""
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()
    lab.freeze_api()
    wait(lambda: operator.measure("leads") == 0, 60, "it acts without a lease")
    assert operator.ask("/healthz") == "ok\n"
    lab.thaw_api()
    operator.wait_leads(timeout_s=60)
    meshes.patch("trainers", {"replicas": 2})
    meshes.wait_ready()
