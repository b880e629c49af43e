"""What objects in a cluster say of a job, and which cluster that is: neither is believed without a check."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes import which
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.finding import provision_of
from milkweed.backends.kubernetes.notes import MAX_HOSTS, read_handle
from milkweed.backends.kubernetes.start import HANDLE_NOTE, JOB_LABEL
from milkweed.errors import AccessError, BackendError
from milkweed.job.kubernetes import KubernetesJob
from milkweed.job.observing import observe
from milkweed.kube.config import Cluster
from milkweed.kube.resources import MESHES, NAMESPACES
from milkweed.status import Liveness
from unit.kubernetes_jobs import (
    APPLY_ID,
    FOUND,
    OTHER_ID,
    Space,
    create,
    make_spec,
    mesh_name,
    submit,
)


def write_note(space: Space, note: Any, mesh: str = "w") -> None:
    """Somebody writes something else into the note of a mesh."""
    text = note if note is None or isinstance(note, str) else json.dumps(note)
    change = {"metadata": {"annotations": {HANDLE_NOTE: text}}}
    space.patch(MESHES, "lab", mesh_name(mesh), change)


def find_anew(home: Path) -> dict[str, Any]:
    """The job as another machine finds it."""
    shutil.rmtree(home, ignore_errors=True)
    found = KubernetesBackend().find(APPLY_ID)
    assert found is not None
    return dict(found)


def note_of(handle: Mapping[str, Any], **change: Any) -> dict[str, Any]:
    """A note as milkweed writes it, with something else in its mesh."""
    meshes = {name: {**mesh, **change} for name, mesh in handle["meshes"].items()}
    return {**handle, "meshes": meshes}


# Notes

EVIL: Mapping[str, Any] = {
    "kubeconfig": "/tmp/theirs",  # noqa: S108  never opened
    "provision": {"url": "https://theirs", "token_file": "/etc/hostname"},
    "context": "theirs",
    "namespace": "theirs",
    "blind": True,
    "cluster": {"server": "https://theirs", "ca": "", "uid": ""},
    "more": 1,
}


def test_a_note_does_not_say_how_the_cluster_is_reached(space: Space, home: Path) -> None:
    """Else whoever may make a mesh could run a program here, or be sent a file as a token."""
    handle = submit()
    write_note(space, {**handle, **EVIL})
    found = find_anew(home)
    assert found == {**handle, "kubeconfig": None, "provision": None}
    space.reached.clear()
    assert KubernetesBackend().glance(found).liveness is Liveness.PENDING
    assert set(space.reached) == {("here", None)}


@pytest.mark.parametrize("note", ["", "no JSON", "[]", "{}", None, "[" * 100_000, '{"a":' * 9])
def test_a_job_whose_note_cannot_be_read_can_be_ended(
    space: Space, home: Path, note: str | None
) -> None:
    """Whoever may change objects may write anything; what they are is enough to end them."""
    handle = submit(make_spec({"a": 1, "b": 2}))
    for mesh in ("a", "b"):
        write_note(space, note, mesh)
    found = find_anew(home)
    assert found == {**handle, "kubeconfig": None}
    assert KubernetesBackend().allocations() == {APPLY_ID: "demo"}
    KubernetesBackend().cancel(found)
    assert space.objects == {}


@pytest.mark.parametrize(
    "change",
    [
        {"hosts": True},
        {"hosts": 0},
        {"hosts": MAX_HOSTS + 1},
        {"hosts": "2"},
        {"name": "a.example.com/"},
        {"name": 1},
        {"port": 70000},
        {"port": None},
        {"selector": "=="},
        {"selector": {"a": 1}},
        {"rank_label": "no label"},
        {"rank_label": 3},
    ],
)
def test_a_note_of_the_wrong_kind_is_no_note(
    space: Space, home: Path, change: Mapping[str, Any]
) -> None:
    """Nothing of it is taken: the job is as its objects are."""
    handle = submit()
    write_note(space, note_of({**handle, "reach": "direct"}, **change))
    assert find_anew(home) == {**handle, "kubeconfig": None}


def test_a_note_of_another_job_is_no_note(space: Space, home: Path) -> None:
    """A job's mark is its label, which the note must agree with."""
    handle = submit()
    write_note(space, {**note_of(handle, name="another"), "apply_id": OTHER_ID})
    assert find_anew(home)["meshes"] == handle["meshes"]
    assert KubernetesBackend().find(OTHER_ID) is None


def test_one_good_note_is_enough(space: Space, home: Path) -> None:
    """Every object has the whole."""
    handle = submit(make_spec({"a": 1, "b": 2}, client={"reach": "forward"}))
    write_note(space, "", "a")
    assert find_anew(home) == {**handle, "kubeconfig": None}


@pytest.mark.parametrize(
    ("said", "expected"), [("forward", "forward"), ("x", "auto"), ([], "auto")]
)
def test_a_way_that_is_none_is_not_taken(said: object, expected: str) -> None:
    """Neither is what is no word at all."""
    note = json.dumps({"apply_id": "a", "meshes": {}, "reach": said, "client": "yes"})
    meta = {"name": "m", "namespace": "n", "labels": {JOB_LABEL: "a"}}
    mesh = {"metadata": {**meta, "annotations": {HANDLE_NOTE: note}}, "spec": {"replicas": 3}}
    found = read_handle("a", [mesh])
    assert found is not None
    assert (found["reach"], found["client"]) == (expected, False)
    assert found["meshes"]["m"]["hosts"] == 3
    assert not found["meshes"]["m"]["kept"]


def test_a_mark_in_two_namespaces_is_nobodys(space: Space, home: Path) -> None:
    """Whoever copies a job's mark must not have its owner end the copy, and think that the job has ended."""
    submit()
    copied = space.get(MESHES, "lab", mesh_name())
    space.create(MESHES, "other", copied)
    assert find_anew(home)["namespace"] == "lab"
    space.config.namespace = "third"
    with pytest.raises(AccessError, match="several namespaces") as caught:
        KubernetesBackend().find(APPLY_ID)
    assert caught.value.seen == "lab, other"


# Clusters


def elsewhere(space: Space, server: str = "https://there:6443", ca_pem: str | None = None) -> None:
    """The same context leads somewhere else now, where there is nothing."""
    space.config.cluster = Cluster(server=server, ca_pem=ca_pem)
    space.objects.clear()
    which._read_uid.cache_clear()


def name_cluster(space: Space, uid: str) -> None:
    """A cluster that shows its id."""
    meta = {"name": "kube-system", "namespace": "", "uid": uid}
    space.objects[NAMESPACES.plural, "", "kube-system"] = {"metadata": meta}
    which._read_uid.cache_clear()


@pytest.mark.parametrize(
    ("server", "ca_pem"), [("https://there:6443", None), ("https://here:6443", "another")]
)
def test_another_cluster_of_the_same_name_is_not_asked(
    space: Space, folder: Path, server: str, ca_pem: str | None
) -> None:
    """What it has nothing of is not gone: an error says so, and no second allocation is made."""
    record = create()
    elsewhere(space, server, ca_pem)
    backend = KubernetesBackend()
    assert record.handle is not None
    for act in (backend.poll, backend.glance, backend.cancel, backend.hosts):
        with pytest.raises(BackendError, match="another cluster") as caught:
            act(record.handle)
        assert not caught.value.transient
        assert "asked for at https://here:6443" in caught.value.seen
        assert server in caught.value.seen
        wanted = f"kubectl -n lab delete jobs,monarchmeshes,secrets -l {JOB_LABEL}={APPLY_ID}"
        assert wanted in caught.value.hint
    with pytest.raises(BackendError, match="another cluster"):
        backend.find(APPLY_ID)
    with pytest.raises(BackendError, match="another cluster"):
        observe(backend, record, None)
    assert space.objects == {}


def test_pods_of_others_are_not_looked_for_in_another_cluster(space: Space) -> None:
    """Whose labels may mean other pods there."""
    handle = submit(FOUND)
    elsewhere(space)
    with pytest.raises(BackendError, match="another cluster"):
        KubernetesBackend().poll(handle)


def test_a_cluster_at_another_address_is_the_same(space: Space) -> None:
    """Its own id tells, where this user may see it: an address may change, as that of a tunnel does."""
    name_cluster(space, "one")
    handle = submit()
    space.config.cluster = Cluster(server="https://127.0.0.1:9999")
    assert KubernetesBackend().poll(handle).liveness is Liveness.PENDING
    elsewhere(space)
    name_cluster(space, "two")
    with pytest.raises(BackendError, match="another cluster"):
        KubernetesBackend().poll(handle)


def test_a_resize_forgets_no_cluster(space: Space) -> None:
    """Whose id is not shown for a moment: without it another address would be another cluster."""
    name_cluster(space, "one")
    handle = submit()
    space.forbidden.add(("get", NAMESPACES.plural))
    which._read_uid.cache_clear()
    resized = KubernetesBackend().resize(handle, make_spec({"w": 3}))
    assert resized["cluster"] == handle["cluster"]
    assert resized["cluster"]["uid"] == "one"


def test_an_authority_is_the_same_however_it_is_written(space: Space) -> None:
    """Line ends differ between files and embedded data."""
    space.config.cluster = Cluster(server="https://here:6443", ca_pem="a\nb\n")
    handle = submit()
    space.config.cluster = Cluster(server="https://here:6443", ca_pem="a\r\nb")
    assert KubernetesBackend().poll(handle).liveness is Liveness.PENDING


def test_a_handle_of_an_older_milkweed_is_believed(space: Space) -> None:
    """It does not say which cluster it means."""
    handle = submit()
    del handle["cluster"]
    elsewhere(space)
    assert KubernetesBackend().poll(handle).liveness is Liveness.ENDED


def test_which_cluster_it_is_is_nothing_to_others(space: Space) -> None:
    """Objects do not carry how one client reaches the cluster."""
    submit()
    [mesh] = space.of_kind(MESHES.plural)
    assert "here:6443" not in json.dumps(mesh["metadata"])


def test_files_are_found_from_another_folder(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that was said relative to one folder means the same file in another."""
    monkeypatch.chdir(tmp_path)
    handle = submit(make_spec(kubeconfig="k/config"))
    assert handle["kubeconfig"] == str(tmp_path / "k/config")
    assert submit(make_spec(kubeconfig="~/c"))["kubeconfig"] == os.path.expanduser("~/c")
    for said, expected in (("k/config", str(tmp_path / "k/config")), ("~/c", "~/c")):
        job = KubernetesJob(kubeconfig=said)
        job.add_mesh("w", 1)
        assert job.spec.options["kubeconfig"] == expected
    asked = make_spec(client={"provision": {"url": "https://a", "token_file": "t", "ca": "/c"}})
    token = str(tmp_path / "t")
    assert provision_of(asked) == {"url": "https://a", "token_file": token, "ca": "/c"}
    assert provision_of(make_spec()) is None
