"""Without a cluster to talk to: what is asked for is refused, and of what exists nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.errors import SpecError, UnreachableError
from milkweed.job.kubernetes import ImageSpec, KubernetesJob
from milkweed.kube.via import api_of
from milkweed.status import Liveness
from milkweed.worker.wire import STATE_ENV
from unit.kubernetes_jobs import APPLY_ID, make_spec


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubeconfig, and no pod."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    api_of.cache_clear()


@pytest.mark.usefixtures("nowhere")
def test_without_a_cluster_nothing_is_recorded(home: Path) -> None:
    """The error is told once, before anything is asked for, and leaves nothing to be killed."""
    job = KubernetesJob()
    job.add_mesh("w", 1, image_spec=ImageSpec("a"))
    with pytest.raises(SpecError, match="no Kubernetes cluster to talk to") as caught:
        job.state(cached_path=None)
    assert caught.value.__context__ is None
    assert not (home / "jobs").exists()


@pytest.mark.usefixtures("nowhere")
def test_without_a_cluster_nothing_is_known_of_what_is_there() -> None:
    """A kubeconfig that is gone ends no job: nobody can be asked, and what to do is told."""
    handle = {
        "apply_id": APPLY_ID,
        "namespace": "lab",
        "context": "",
        "client": False,
        "meshes": {},
    }
    status = KubernetesBackend().poll(handle)
    assert (status.liveness, status.reason[:10]) == (Liveness.UNKNOWN, "no file at")
    for look in (
        lambda: KubernetesBackend().find(APPLY_ID),
        KubernetesBackend().allocations,
        lambda: KubernetesBackend().cancel(handle),
    ):
        with pytest.raises(UnreachableError, match="no Kubernetes cluster") as caught:
            look()
        assert "KUBECONFIG" in caught.value.hint


@pytest.mark.usefixtures("nowhere")
def test_a_client_inside_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its hosts already, and no rights."""
    monkeypatch.setenv(STATE_ENV, "/record.json")
    KubernetesBackend().validate(make_spec())
