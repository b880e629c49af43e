"""What meshes tell on a real cluster, and what is refused before it is one."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes.lab import Lab
from kubernetes.operators import Meshes, Operating, ended, install
from milkweed.backends.kubernetes.told import read_told
from milkweed.operator.definition import make_definition
from milkweed.operator.install import Install, make_install
from milkweed.operator.objects import make_service, make_stateful_set
from milkweed.operator.yaml import render_yaml


@pytest.fixture
def operator(operating: Operating) -> Operating:
    """One operator that acts."""
    return operating


@pytest.fixture
def own_operator(
    meshes: Meshes, operator_login: str, alone: None, tmp_path: Path
) -> Iterator[Operating]:
    """The same, of which a test may do as it likes."""
    running = Operating(tmp_path, operator_login, meshes.namespace, "teller")
    with ended([running]):
        running.wait_leads()
        yield running
        assert running.stop() == 0, running.log.read_text()


# Conditions


def test_an_image_that_does_not_exist(meshes: Meshes, operator: Operating) -> None:
    """The mesh names the image and the host."""
    image = {"image": "registry.invalid/nowhere:1", "imagePullPolicy": "IfNotPresent"}
    meshes.apply(meshes.make(container=image))
    message = meshes.wait_reason("ImagePullBackOff", words="at 2 hosts, first trainers-0")
    assert "registry.invalid/nowhere:1" in message
    meshes.apply(meshes.make())
    meshes.wait_ready()


def test_an_image_that_must_be_there_and_is_not(meshes: Meshes, operator: Operating) -> None:
    """Where nothing may be pulled."""
    meshes.apply(meshes.make(replicas=1, container={"image": "localhost/nothing:1"}))
    assert "localhost/nothing:1" in meshes.wait_reason("ErrImageNeverPull")


def test_hosts_that_no_node_can_take(meshes: Meshes, operator: Operating) -> None:
    """What the scheduler misses is told."""
    rare = {"resources": {"limits": {"example.com/rare": 1}}}
    meshes.apply(meshes.make(replicas=1, container=rare))
    message = meshes.wait_reason("Unschedulable")
    assert "at trainers-0" in message
    assert "Insufficient example.com/rare" in message


def _restarts(meshes: Meshes) -> int:
    told = [pod["status"].get("containerStatuses", ()) for pod in meshes.pods().values()]
    return sum(status["restartCount"] for statuses in told for status in statuses)


def test_hosts_that_end_again_and_again(meshes: Meshes, operator: Operating) -> None:
    """With the exit code, in the word that the cluster has at the moment."""
    meshes.apply(meshes.make(replicas=1, container={"command": ["sh", "-c", "exit 7"]}))
    meshes.wait_for(lambda: _restarts(meshes) > 1, "it is not started again")
    meshes.wait_reason("CrashLoopBackOff", "Error", words="exit code 7")


def test_hosts_that_use_too_much_memory(meshes: Meshes, operator: Operating) -> None:
    """A host that was killed for its memory is told as such, between its lives too."""
    hungry = {
        "command": ["sh", "-c", "tail /dev/zero"],
        "resources": {"limits": {"memory": "16Mi"}},
    }
    meshes.apply(meshes.make(replicas=1, container=hungry))
    assert "more memory" in meshes.wait_reason("OOMKilled")


def test_hosts_that_wait_to_be_admitted(meshes: Meshes, operator: Operating) -> None:
    """As pods of a queue do."""
    meshes.apply(meshes.make(replicas=1, schedulingGates=[{"name": "example.com/queue"}]))
    assert "at trainers-0" in meshes.wait_reason("SchedulingGated")


def test_hosts_that_do_not_answer_their_probe(meshes: Meshes, operator: Operating) -> None:
    """They run and are not ready; the events say why."""
    probe = {"exec": {"command": ["sh", "-c", "echo not yet; exit 1"]}, "periodSeconds": 1}
    meshes.apply(meshes.make(replicas=1, container={"readinessProbe": probe}))
    assert "not yet" in meshes.wait_reason("NotReady")


def test_a_volume_that_is_not_there(meshes: Meshes, operator: Operating) -> None:
    """Of pods that never begin the events tell."""
    volume = {"name": "keys", "secret": {"secretName": "no-such-secret"}}
    mount = {"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    meshes.apply(meshes.make(replicas=1, volumes=[volume], container=mount))
    assert "no-such-secret" in meshes.wait_reason("FailedMount")


def test_hosts_that_may_not_be_made(meshes: Meshes, operator: Operating, lab: Lab) -> None:
    """A quota: there is no pod, and still a reason."""
    lab.kubectl("-n", meshes.namespace, "create", "quota", "small", "--hard=pods=1")
    meshes.apply(meshes.make(replicas=3))
    assert "exceeded quota" in meshes.wait_reason("FailedCreate")


def test_a_name_that_is_too_long_for_pods(meshes: Meshes, operator: Operating) -> None:
    """The mesh and its StatefulSet are taken, and no pod: the words are such that nobody waits for one."""
    name = "w" * 53
    meshes.apply(meshes.make(name, replicas=1))
    meshes.wait_reason("FailedCreate", name=name, words="must be no more than 63")
    assert read_told(meshes.get(name)).hopeless


def test_what_the_api_server_refuses(meshes: Meshes, operator: Operating) -> None:
    """A template that is wrong is told in the API server's words, and one that is mended is taken at once."""
    volume = [{"name": "x", "mountPath": "/x"}]
    meshes.apply(meshes.make(replicas=1, container={"volumeMounts": volume}))
    assert 'volumeMounts[0].name: Not found: "x"' in meshes.wait_reason("Refused")
    meshes.apply(meshes.make(replicas=1))
    meshes.wait_ready()


# The definition


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"name": "two-words"}}, "lowercase letters and digits"),
        ({"metadata": {"name": "2nd"}}, "starts with a letter"),
        ({"metadata": {"name": "a" * 64}}, "at most 63"),
        ({"spec": {"replicas": 0}}, "greater than or equal to 1"),
        ({"spec": {"replicas": "many"}}, "must be of type integer"),
        ({"spec": {"port": 70000}}, "less than or equal to 65535"),
        ({"spec": {"podTemplate": None}}, "Required"),
        ({"spec": {"podTemplate": {"spec": {"containers": []}}}}, "at least 1 items"),
    ],
)
def test_meshes_that_could_never_be(meshes: Meshes, change: dict[str, Any], words: str) -> None:
    """They are refused before anybody makes anything of them."""
    mesh = meshes.make()
    for part, values in change.items():
        mesh[part] |= values
    done = meshes.lab.kubectl("create", "-f", "-", text=json.dumps(mesh), check=False)
    assert done.returncode != 0
    assert words in done.stderr


def test_what_is_not_said_is_filled_in(meshes: Meshes) -> None:
    """The port of Monarch; and nothing is left out that we do not know."""
    mesh = meshes.make()
    mesh["spec"]["podTemplate"]["spec"]["brandNew"] = {"deep": [1]}
    meshes.apply(mesh)
    spec = meshes.get()["spec"]
    assert spec["port"] == 26600
    assert spec["podTemplate"]["spec"]["brandNew"] == {"deep": [1]}


def make_first_definition() -> dict[str, Any]:
    """The definition of the first operators: any template, no scale, few words in the status."""
    made = copy.deepcopy(make_definition())
    (version,) = made["spec"]["versions"]
    version["subresources"] = {"status": {}}
    del version["additionalPrinterColumns"]
    schema = version["schema"]["openAPIV3Schema"]
    del schema["x-kubernetes-validations"]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema["properties"]["spec"]["properties"]["podTemplate"] = anything
    del schema["properties"]["status"]["properties"]["observedGeneration"]
    return made


STATUS = {
    "replicas": 1,
    "readyReplicas": 0,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "Waiting",
            "message": "Waiting for pods",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


def test_meshes_of_the_first_operators_stay(
    lab: Lab, meshes: Meshes, own_operator: Operating
) -> None:
    """They are read as they were written, can be changed, and get their hosts; bare pods' specs too."""
    own_operator.process.send_signal(
        signal.SIGSTOP
    )  # it would take them while the definition changes
    lab.kubectl("replace", "-f", "-", text=json.dumps(make_first_definition()))
    whole, bare = meshes.make(replicas=1), meshes.make("bare", replicas=1)
    bare["spec"]["podTemplate"] = bare["spec"]["podTemplate"]["spec"]
    for mesh in (whole, bare):
        meshes.apply(mesh)
        meshes.patch_status(mesh["metadata"]["name"], STATUS)
    before = [meshes.get(name) for name in ("trainers", "bare")]
    install(lab)
    assert [meshes.get(name) for name in ("trainers", "bare")] == before
    own_operator.process.send_signal(signal.SIGCONT)
    for name in ("trainers", "bare"):
        lab.kubectl("-n", meshes.namespace, "label", "monarchmesh", name, "touched=yes")
        assert meshes.wait_ready(name)["spec"]["podTemplate"] in (
            whole["spec"]["podTemplate"],
            bare["spec"]["podTemplate"],
        )


# Manifests


@pytest.mark.parametrize("all_namespaces", [True, False])
def test_the_manifests_are_taken(lab: Lab, namespace: str, all_namespaces: bool) -> None:
    """By the API server itself, strictly, without making anything."""
    only = () if all_namespaces else (namespace,)
    objects = make_install(Install(namespace=namespace, only=only, provision=True))
    argv = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    done = lab.kubectl(*argv, text=render_yaml(objects))
    assert len(done.stdout.splitlines()) == len(objects)
    assert done.stderr == "" or "missing the kubectl.kubernetes.io" in done.stderr


def test_what_is_made_of_a_mesh_is_taken(lab: Lab, meshes: Meshes) -> None:
    """By the API server itself, strictly, without making anything."""
    meshes.apply(meshes.make())
    mesh = meshes.get()
    text = render_yaml([make_service(mesh), make_stateful_set(mesh)])
    done = lab.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
    assert len(done.stdout.splitlines()) == 2
