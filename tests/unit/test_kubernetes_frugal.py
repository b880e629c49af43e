"""What a client of a cluster does not ask for, and does not keep."""

from __future__ import annotations

import pytest

from milkweed.backends.kubernetes import cluster
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.errors import BackendError
from milkweed.kube.resources import MESHES, SECRETS
from milkweed.status import Liveness
from unit.kubernetes_jobs import APPLY_ID, Space, make_spec, mesh_name, submit

OTHER_ID = "9f9f9f9f-0000-4000-8000-000000000000"


def test_nobody_lists_secrets(space: Space) -> None:
    """A job is found and ended by a client that may read the Secrets of jobs it knows, and list none."""
    space.forbidden |= {("list", SECRETS.plural), ("list all", SECRETS.plural)}
    handle, backend = submit(), KubernetesBackend()
    other = submit(make_spec({"x": 1}), OTHER_ID)
    space.remove(MESHES.plural, "lab", mesh_name())
    assert backend.find(APPLY_ID) == handle
    backend.cancel(handle)
    assert {name.split("-")[1] for name in space.names(SECRETS)} == {OTHER_ID[:8]}
    assert backend.find(APPLY_ID) is None
    assert backend.find(OTHER_ID) == other


def test_a_secret_of_that_name_without_our_mark_stays(space: Space) -> None:
    """Names are short: what somebody else called so is not ours."""
    handle = submit()
    space.patch(SECRETS, "lab", f"milkweed-{APPLY_ID[:8]}-hosts", {"metadata": {"labels": None}})
    KubernetesBackend().cancel(handle)
    assert space.names(SECRETS) == [f"milkweed-{APPLY_ID[:8]}-hosts"]


def test_a_job_that_ended_by_itself_is_watched_no_longer(space: Space) -> None:
    """A program that lives on does not look after jobs that are over."""
    handle, backend = submit(), KubernetesBackend()
    assert backend.glance(handle).liveness is Liveness.PENDING
    assert len(cluster._watches) == 2
    space.remove(MESHES.plural, "lab", mesh_name())
    space.wait_seen()
    assert backend.glance(handle).liveness is Liveness.ENDED
    assert cluster._watches == {}
    assert backend.glance(handle).liveness is Liveness.ENDED
    assert cluster._watches == {}


@pytest.mark.parametrize(
    "words", ["the server could not find the requested resource", "404 page not found"]
)
def test_nothing_is_made_where_meshes_are_unknown(
    space: Space, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """In the words of a server that knows the group, and of one that does not; what installs them is told."""
    monkeypatch.setattr("unit.kubernetes_jobs.NO_KIND", words)
    space.unknown.add(MESHES.plural)
    with pytest.raises(BackendError, match="does not know MonarchMesh objects") as caught:
        submit()
    assert "milkweed operator manifests" in caught.value.hint
    assert space.writes == []
