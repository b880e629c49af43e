"""What is agreed on MonarchMesh objects: words that stand in clusters already, and must not change."""

from __future__ import annotations

from milkweed.kube.meshes import (
    API_VERSION,
    DEFAULT_PORT,
    KIND,
    make_selector,
    mesh_of_service,
    render_labels,
    service_name,
)


def test_the_words_are_those_of_other_operators() -> None:
    """Meshes that others asked for are meshes to us, and ours to them."""
    assert (API_VERSION, KIND) == ("monarch.pytorch.org/v1alpha1", "MonarchMesh")
    assert DEFAULT_PORT == 26600


def test_the_pods_of_a_mesh_are_found_by_their_labels() -> None:
    """By two of them, as the API server is asked."""
    found = render_labels(make_selector("w"))
    assert found == "app.kubernetes.io/name=monarch-worker,monarch.pytorch.org/mesh-name=w"


def test_a_service_tells_its_mesh() -> None:
    """And one that is not named so is for nobody but a mesh of its own name."""
    assert mesh_of_service(service_name("w")) == "w"
    assert mesh_of_service("other") == "other"
