"""KubernetesJob: what is declared, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.job.kubernetes import ImageSpec, KubernetesJob


def test_a_mesh_of_pods_that_exist() -> None:
    """Their labels are kept; nothing is made."""
    job = KubernetesJob("training", timeout=5)
    job.add_mesh("workers", 2, "app=mine", "rank")
    options = job.spec.options["meshes"]["workers"]
    assert options["label_selector"] == "app=mine"
    assert options["pod_rank_label"] == "rank"
    assert job.spec.options["namespace"] == "training"
    assert job.spec.client["start_timeout"] == 5
    assert job.spec.sizes == {"workers": 2}


def test_a_mesh_that_is_made() -> None:
    """From an image, from a pod's spec, or from a whole template."""
    job = KubernetesJob()
    job.add_mesh("a", 1, image_spec=ImageSpec("python:3.11", {"cpu": "1"}))
    job.add_mesh("b", 1, pod_spec={"containers": [{"name": "worker", "image": "x"}]})
    job.add_mesh("c", 1, pod_template={"spec": {"containers": [{"name": "worker", "image": "y"}]}})
    images = [
        mesh["pod_template"]["spec"]["containers"][0]["image"]
        for mesh in job.spec.options["meshes"].values()
    ]
    assert images == ["python:3.11", "x", "y"]


def test_without_a_mesh_there_is_no_declaration() -> None:
    """And that is said, instead of something about classes."""
    with pytest.raises(SpecError, match="no mesh yet"):
        _ = KubernetesJob().spec


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "Workers"}, "Workers"),
        ({"name": "1a"}, "1a"),
        ({"name": "a" * 64}, "63"),
        ({"num_replicas": 0}, "0"),
        ({"image_spec": ImageSpec("a"), "pod_spec": {}}, "ways to say one thing"),
        ({"image_spec": ImageSpec("a"), "label_selector": "a=b"}, "label_selector"),
        ({"image_spec": ImageSpec("a"), "pod_rank_label": "x"}, "pod_rank_label"),
        ({"labels": {"a": "b"}}, "labels"),
        ({"annotations": {"a": "b"}}, "annotations"),
        ({"port": 99999}, "port"),
    ],
)
def test_what_is_refused_is_a_value_error(arguments: dict[str, Any], words: str) -> None:
    """Names and conflicts: the rule is named, and the mesh is not added."""
    job = KubernetesJob()
    with pytest.raises(ValueError, match=words):
        job.add_mesh(**{"name": "workers", "num_replicas": 1, **arguments})
    with pytest.raises(SpecError):
        _ = job.spec
