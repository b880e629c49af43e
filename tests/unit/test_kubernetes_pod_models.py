"""Pods as people have them: models of three generations, and mappings in either spelling."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from milkweed.backends.kubernetes.pod_models import parse_model, spell
from milkweed.backends.kubernetes.pod_template import make_from_pod_spec, make_from_pod_template
from milkweed.errors import SpecError


class Model:
    """As swagger-codegen and openapi-generator write them: attributes, and a map of their JSON names."""

    openapi_types: ClassVar[dict[str, str]] = {}
    attribute_map: ClassVar[dict[str, str]] = {}

    def __init__(self, **said: Any) -> None:
        for name in self.attribute_map:
            setattr(self, name, said.get(name))

    def to_dict(self) -> dict[str, Any]:
        """In Python's spelling."""
        return {name: getattr(self, name) for name in self.attribute_map}


class V1Port(Model):
    """Its address is an abbreviation."""

    attribute_map: ClassVar[dict[str, str]] = {
        "container_port": "containerPort",
        "host_ip": "hostIP",
    }


class V1Probe(Model):
    """One of its attributes is a word of Python."""

    attribute_map: ClassVar[dict[str, str]] = {"_exec": "exec", "period_seconds": "periodSeconds"}


class V1Container(Model):
    """A container."""

    attribute_map: ClassVar[dict[str, str]] = {
        "name": "name",
        "image": "image",
        "ports": "ports",
        "resources": "resources",
        "readiness_probe": "readinessProbe",
    }


class V1PodSpec(Model):
    """A pod."""

    attribute_map: ClassVar[dict[str, str]] = {
        "containers": "containers",
        "node_selector": "nodeSelector",
        "host_ipc": "hostIPC",
    }


class V1PodTemplateSpec(Model):
    """A template of pods."""

    attribute_map: ClassVar[dict[str, str]] = {"metadata": "metadata", "spec": "spec"}


@dataclass
class Dumped:
    """A model that only pydantic knows how to write."""

    said: dict[str, Any]

    def model_dump(self, *, by_alias: bool) -> dict[str, Any]:
        """In JSON's spelling."""
        assert by_alias
        return self.said


class Plain:
    """A model that only has `to_dict`, in Python's spelling."""

    def to_dict(self) -> dict[str, Any]:
        """In Python's spelling."""
        return {"container_port": 1, "host_ip": None}


POD = V1PodSpec(
    containers=[
        V1Container(
            name="worker",
            image="busybox",
            ports=[V1Port(container_port=26600, host_ip="10.0.0.1")],
            resources={"limits": {"my_company.com/gpu": 1}},
            readiness_probe=V1Probe(_exec={"command": ["true"]}, period_seconds=5),
        )
    ],
    node_selector={"my_label": "x_y"},
    host_ipc=True,
)
JSON = {
    "containers": [
        {
            "name": "worker",
            "image": "busybox",
            "ports": [{"containerPort": 26600, "hostIP": "10.0.0.1"}],
            "resources": {"limits": {"my_company.com/gpu": 1}},
            "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5},
        }
    ],
    "nodeSelector": {"my_label": "x_y"},
    "hostIPC": True,
}


def test_a_model_is_read_by_its_own_map() -> None:
    """What is None is left out, and a person's own keys stay as they are."""
    assert parse_model(POD, field="pod_spec") == JSON


def test_both_spellings_mean_the_same() -> None:
    """`to_dict` gives Python's, manifests have JSON's, and JSON stays what it is."""
    snake = {
        "containers": [
            {
                "name": "worker",
                "image": "busybox",
                "ports": [{"container_port": 26600, "host_ip": "10.0.0.1", "protocol": None}],
                "resources": {"limits": {"my_company.com/gpu": 1}},
                "readiness_probe": {"_exec": {"command": ["true"]}, "period_seconds": 5},
            }
        ],
        "node_selector": {"my_label": "x_y"},
        "host_ipc": True,
        "init_containers": None,
    }
    assert parse_model(snake, field="x") == JSON
    assert parse_model(JSON, field="x") == JSON


def test_other_ways_of_writing_a_model() -> None:
    """Pydantic's own, and `to_dict` where there is nothing else."""
    assert parse_model(Dumped(JSON), field="x") == JSON
    assert parse_model({"ports": [Plain()]}, field="x") == {"ports": [{"containerPort": 1}]}


@pytest.mark.parametrize(
    ("name", "json_name"),
    [
        ("termination_grace_period_seconds", "terminationGracePeriodSeconds"),
        ("_exec", "exec"),
        ("host_pid", "hostPID"),
        ("set_hostname_as_fqdn", "setHostnameAsFQDN"),
        ("downward_api", "downwardAPI"),
        ("target_wwns", "targetWWNs"),
        ("nodeSelector", "nodeSelector"),
        ("name", "name"),
        ("fs_type", "fsType"),
        ("", ""),
    ],
)
def test_names_are_spelled_as_the_api_spells_them(name: str, json_name: str) -> None:
    """Also where abbreviations do not follow the rule."""
    assert spell(name) == json_name


@pytest.mark.parametrize(
    "key",
    [
        "annotations",
        "labels",
        "limits",
        "requests",
        "matchLabels",
        "nodeSelector",
        "overhead",
        "volumeAttributes",
    ],
)
def test_keys_that_are_a_persons_own_words_stay(key: str) -> None:
    """However they are spelled."""
    assert parse_model({"a": {key: {"my_key": "1"}}}, field="x") == {"a": {key: {"my_key": "1"}}}


def test_options_of_two_kinds() -> None:
    """Those of a volume are free words, those of DNS are fields in a list."""
    pod = {"dns_config": {"options": [{"name": "ndots"}]}, "flex_volume": {"options": {"a_b": "c"}}}
    assert parse_model(pod, field="x") == {
        "dnsConfig": {"options": [{"name": "ndots"}]},
        "flexVolume": {"options": {"a_b": "c"}},
    }


def test_times_are_text() -> None:
    """As JSON has them."""
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert parse_model({"at": when}, field="x") == {"at": "2026-01-02T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nginx", "pod_spec: str is not a part of a pod"),
        (None, "pod_spec: NoneType is not a part"),
        ([POD], "pod_spec: list is not a part"),
        ({"containers": [{"name": object()}]}, "pod_spec.containers[0].name: object is not plain"),
        ({1: 2}, "pod_spec: the key 1 is not text"),
        ({"host_ipc": True, "hostIPC": False}, "pod_spec.hostIPC: it is there twice"),
    ],
)
def test_what_is_no_pod(value: Any, message: str) -> None:
    """The place is named."""
    with pytest.raises(SpecError) as caught:
        parse_model(value, field="pod_spec")
    assert caught.value.what.startswith(message)


# Templates


def test_a_pod_spec_is_taken_as_it_is() -> None:
    """Nothing is added to what a person wrote out."""
    assert make_from_pod_spec(POD) == {"metadata": {}, "spec": JSON}


def test_a_pod_template_keeps_its_labels() -> None:
    """As a model and as a mapping."""
    metadata = {"labels": {"my_team": "ml"}}
    expected = {"metadata": metadata, "spec": JSON}
    assert make_from_pod_template(V1PodTemplateSpec(metadata=metadata, spec=POD)) == expected
    assert make_from_pod_template(expected) == expected
    assert make_from_pod_template({"spec": JSON}) == {"metadata": {}, "spec": JSON}


def one(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "a", "image": "b", **more}]}


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({}, "pod_spec.containers: a pod has at least one container"),
        ({"containers": []}, "pod_spec.containers: a pod has at least one container"),
        ({"containers": {"a": "b"}}, "pod_spec.containers: it is not a list of mappings"),
        ({"containers": ["a"]}, "pod_spec.containers: it is not a list of mappings"),
        ({"containers": [{"image": "b"}]}, "pod_spec.containers[0].name: None is not"),
        ({"containers": [{"name": "A", "image": "b"}]}, "pod_spec.containers[0].name: 'A'"),
        ({"containers": [{"name": "a"}]}, "pod_spec.containers[0].image: the container 'a'"),
        ({"containers": one()["containers"] * 2}, "pod_spec.containers[1].name: 'a' is there"),
        (one(env={"A": "1"}), "pod_spec.containers[0].env: it is not a list of mappings"),
        ({**one(), "volumes": ["a"]}, "pod_spec.volumes: it is not a list of mappings"),
        ({"spec": one()}, "pod_spec: it is a pod template"),
    ],
)
def test_a_pod_spec_that_no_cluster_takes(pod: Any, message: str) -> None:
    """Found before anything is made."""
    with pytest.raises(SpecError) as caught:
        make_from_pod_spec(pod)
    assert caught.value.what.startswith(message)


def test_a_pod_spec_is_no_pod_template() -> None:
    """Each is told where it belongs."""
    for wrong, hint in ((one(), "give it as pod_spec"), ({"metadata": {}}, "write {spec: ")):
        with pytest.raises(SpecError) as caught:
            make_from_pod_template(wrong)
        assert caught.value.hint.startswith(hint)
    with pytest.raises(SpecError, match=r"pod_template\.spec\.containers\[0\]\.image"):
        make_from_pod_template({"spec": {"containers": [{"name": "a"}]}})
    with pytest.raises(SpecError, match=r"pod_template\.spec: str is not a part"):
        make_from_pod_template({"spec": "x"})
