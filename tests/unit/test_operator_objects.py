"""What a mesh becomes: manifests as other operators make them, so that meshes can change hands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from milkweed.kube.login import parse_yaml
from milkweed.operator.objects import (
    HASH,
    PASSED_ON,
    hash_template,
    is_of_earlier_mesh,
    is_of_mesh,
    make_owner,
    make_selector,
    make_service,
    make_stateful_set,
    parse_passed_on,
    service_name,
)
from milkweed.operator.reading import items, mapping, number, pick, text
from milkweed.operator.yaml import render_yaml
from unit.operator_runs import make_mesh, make_template

GOLDEN = Path(__file__).parents[1] / "golden" / "kubernetes"


def check_golden(name: str, written: str) -> None:
    path = GOLDEN / name
    if os.environ.get("MILKWEED_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written, "utf-8")
    assert written == path.read_text("utf-8")


def stored(**changes: Any) -> dict[str, Any]:
    """A mesh as the cluster gives it."""
    mesh = make_mesh(uid="uid-1", generation=1)
    mesh["metadata"] |= changes.pop("metadata", {})
    mesh["spec"] |= changes
    return mesh


def everything() -> dict[str, Any]:
    """A mesh with all that can be said of one."""
    template = {
        "metadata": {
            "labels": {"team": "vision", "app.kubernetes.io/name": "mine"},
            "annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"},
        },
        "spec": {
            "serviceAccountName": "trainer",
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
            "containers": [
                {
                    "name": "worker",
                    "image": "registry.example.com/worker:1",
                    "command": ["python", "-c", "print('yes: no')\n"],
                    "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}},
                    "volumeMounts": [{"name": "shm", "mountPath": "/shared"}],
                }
            ],
        },
    }
    metadata = {
        "labels": {"kueue.x-k8s.io/queue-name": "training"},
        "annotations": {
            "note": "ours",
            HASH: "bogus",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
    }
    return stored(metadata=metadata, replicas=4, port=12345, podTemplate=template)


CASES = {"small": stored(), "everything": everything()}


@pytest.mark.parametrize("name", CASES)
def test_the_objects_are_the_recorded_ones(name: str) -> None:
    """The Service and the StatefulSet of a small mesh, and of one with everything."""
    mesh = CASES[name]
    check_golden(f"mesh-{name}.yaml", render_yaml([make_service(mesh), make_stateful_set(mesh)]))


@pytest.mark.parametrize("name", CASES)
def test_what_is_recorded_is_what_is_sent(name: str) -> None:
    """Read as YAML, the record is the very data that goes to the API server."""
    mesh = CASES[name]
    documents = render_yaml([make_stateful_set(mesh)]).removeprefix("---\n")
    assert parse_yaml(documents) == json.loads(json.dumps(make_stateful_set(mesh)))


# The names that others rely on


def test_the_service_has_no_address_of_its_own() -> None:
    """Hosts are found by name, before they are ready too, on the port of the mesh."""
    spec = make_service(stored())["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == make_selector("trainers")
    assert [(port["name"], port["port"]) for port in spec["ports"]] == [("monarch", 26600)]


@pytest.mark.parametrize(("said", "port"), [(None, 26600), (0, 26600), (1234, 1234)])
def test_the_port_of_a_mesh(said: int | None, port: int) -> None:
    """A port that is not said is Monarch's own."""
    mesh = stored() if said is None else stored(port=said)
    assert make_service(mesh)["spec"]["ports"][0]["port"] == port


def test_all_hosts_start_at_once() -> None:
    """The StatefulSet does not wait for one host before it starts the next."""
    spec = make_stateful_set(stored(replicas=3))["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["replicas"] == 3
    assert spec["serviceName"] == service_name("trainers") == "trainers-svc"


def test_the_labels_of_pods() -> None:
    """Pods carry the labels by which programs look for them, and the template's own."""
    labels = make_stateful_set(everything())["spec"]["template"]["metadata"]["labels"]
    assert labels == {
        "team": "vision",
        "app.kubernetes.io/name": "monarch-worker",
        "monarch.pytorch.org/mesh-name": "trainers",
    }


def test_a_template_is_passed_on_whole() -> None:
    """Fields that no version of milkweed knows reach the cluster as they are."""
    template = make_template() | {"future": {"deep": [1, None, "x"]}}
    template["spec"]["alsoNew"] = True
    made = make_stateful_set(stored(podTemplate=template))["spec"]["template"]
    assert made["future"] == {"deep": [1, None, "x"]}
    assert (
        made["spec"].pop("containers")[0].items() >= template["spec"].pop("containers")[0].items()
    )
    assert made["spec"] == template["spec"]


def test_making_objects_changes_no_mesh() -> None:
    """A mesh that was looked at is as it was before."""
    mesh = everything()
    before = json.dumps(mesh)
    made = make_stateful_set(mesh)
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    made["metadata"]["labels"]["x"] = "y"
    assert json.dumps(mesh) == before


# Labels and annotations of the mesh


def test_labels_and_annotations_are_passed_on() -> None:
    """Queues read them on the StatefulSet. Pods and Services do without: Kueue marks pods itself."""
    mesh = everything()
    made, service = make_stateful_set(mesh), make_service(mesh)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    assert made["metadata"]["annotations"]["note"] == "ours"
    assert "kueue.x-k8s.io/queue-name" not in made["spec"]["template"]["metadata"]["labels"]
    assert "kueue.x-k8s.io/queue-name" not in service["metadata"]["labels"]
    assert "annotations" not in service["metadata"]


def test_what_is_the_meshs_own_stays_there() -> None:
    """What kubectl notes of a mesh is no note of its StatefulSet, and nobody forges the hash."""
    annotations = make_stateful_set(everything())["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/last-applied-configuration" not in annotations
    assert annotations[HASH] == hash_template(everything()["spec"]["podTemplate"])


def test_labels_of_the_mesh_do_not_change_ours() -> None:
    """A label that would break the selector is not taken."""
    mesh = stored(metadata={"labels": {"app.kubernetes.io/name": "x", "a": "b"}})
    labels = make_stateful_set(mesh)["metadata"]["labels"]
    assert labels == {"a": "b", **make_selector("trainers")}


def test_what_was_passed_on_is_written_down() -> None:
    """So that it can be taken back when the mesh has it no more."""
    made = make_stateful_set(everything())
    assert parse_passed_on(made) == {
        "labels": {"kueue.x-k8s.io/queue-name"},
        "annotations": {"note"},
    }


@pytest.mark.parametrize("words", [None, "", "no JSON", "[1]", '{"labels": 1}', "null"])
def test_a_note_that_cannot_be_read_is_none(words: str | None) -> None:
    """Somebody else's StatefulSet, or a note that was tampered with."""
    annotations = {} if words is None else {PASSED_ON: words}
    found = {"metadata": {"name": "x", "annotations": annotations}}
    assert parse_passed_on(found) == {"labels": set(), "annotations": set()}


# The hash


def test_the_hash_tells_templates_apart() -> None:
    """Another value is another hash, another order of keys is not."""
    one = {"a": 1, "b": [1, 2]}
    assert hash_template(one) == hash_template({"b": [1, 2], "a": 1})
    assert hash_template(one) != hash_template({"a": 1, "b": [2, 1]})
    assert hash_template(one) != hash_template({"a": "1", "b": [1, 2]})


def test_the_hash_is_of_the_template_alone() -> None:
    """More hosts, or another label of the mesh, restart nobody."""
    hashes = {
        make_stateful_set(mesh)["metadata"]["annotations"][HASH]
        for mesh in (stored(), stored(replicas=9), stored(metadata={"labels": {"a": "b"}}))
    }
    assert len(hashes) == 1


# Whose is it?


def test_objects_belong_to_their_mesh() -> None:
    """They say so, and the cluster removes them with it."""
    mesh = stored()
    for made in (make_service(mesh), make_stateful_set(mesh)):
        assert made["metadata"]["ownerReferences"] == [make_owner(mesh)]
        assert is_of_mesh(made, mesh)
    owner = make_owner(mesh)
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)


def test_an_earlier_mesh_of_the_same_name() -> None:
    """Its objects are not this one's, and will be gone soon."""
    mesh = stored()
    found = make_service(stored(metadata={"uid": "uid-0"}))
    assert not is_of_mesh(found, mesh)
    assert is_of_earlier_mesh(found, mesh)
    assert not is_of_earlier_mesh(make_service(mesh), mesh)


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [],
        [{"kind": "MonarchMesh", "name": "trainers", "uid": "uid-1"}],
        [{"kind": "Job", "name": "trainers", "uid": "uid-9", "controller": True}],
    ],
    ids=["missing", "none", "no controller", "a job"],
)
def test_objects_of_others(owners: Any) -> None:
    """What does not name the mesh as its controller is somebody else's."""
    found = {"metadata": {"name": "trainers", "ownerReferences": owners}}
    assert not is_of_mesh(found, stored())
    assert not is_of_earlier_mesh(found, stored())


# Reading


def test_reading_what_is_not_there() -> None:
    """What is missing, null or of another kind is empty."""
    found = {"a": {"b": None, "c": [1], "d": "x", "e": 3}}
    assert pick(found, "a", "b", "c") is None
    assert mapping(found, "a", "c") == {}
    assert items(found, "a", "d") == []
    assert text(found, "a", "b") == ""
    assert (text(found, "a", "e"), number(found, "a", "e"), number(found, "a", "d")) == ("3", 3, 0)
    assert items(found, "a", "c") == [1]


def test_what_is_read_may_be_changed() -> None:
    """A mapping that was read is a copy."""
    found = {"a": {"b": 1}}
    mapping(found, "a")["b"] = 2
    assert found == {"a": {"b": 1}}


def test_a_template_that_is_a_pods_spec() -> None:
    """The first operators took that; such a mesh becomes the same hosts."""
    bare = stored(podTemplate=make_template()["spec"])
    assert make_stateful_set(bare)["spec"] == make_stateful_set(stored())["spec"]


def test_a_template_that_is_both_is_a_template() -> None:
    """What lies beside its spec is no part of a pod."""
    both = stored(podTemplate={**make_template(), "containers": [{"name": "other"}]})
    names = [
        one["name"] for one in make_stateful_set(both)["spec"]["template"]["spec"]["containers"]
    ]
    assert names == ["worker"]
