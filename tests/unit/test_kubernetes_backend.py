"""The Kubernetes backend and a cluster in memory: finding jobs, and changing their sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cryptography import x509

from milkweed.backends.kubernetes import cluster
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.start import HANDLE_NOTE, secret_name
from milkweed.bell import Bell
from milkweed.errors import BackendError, SpecError, UnreachableError
from milkweed.kube.api import ApiError
from milkweed.kube.resources import MESHES, PODS, SECRETS
from milkweed.status import Liveness
from programs import wait_until
from unit.kubernetes_jobs import (
    APPLY_ID,
    FOUND,
    OTHER_ID,
    Space,
    make_spec,
    mesh_name,
    read_secret,
    submit,
)


def lose_files(home: Path) -> None:
    """As on another machine."""
    shutil.rmtree(home)


# Checking


def test_where_a_job_was_asked_for_is_known_though_nobody_answered(space: Space) -> None:
    """Who looks for it later asks there: in the default context it would never be found."""
    space.down = True
    with pytest.raises(UnreachableError):
        submit(make_spec({"w": 1}, kubeconfig="/of/the/job"))
    space.down = False
    space.reached.clear()
    assert KubernetesBackend().find(APPLY_ID) is None
    assert space.reached
    assert {kubeconfig for _context, kubeconfig in space.reached} == {"/of/the/job"}


def test_what_is_wrong_by_itself_is_refused_without_asking(space: Space) -> None:
    """A malformed declaration needs no cluster to be refused."""
    for options in ({"namespace": "No"}, {"meshes": {"x": {}}}, {"meshes": {"w": {"port": "a"}}}):
        with pytest.raises(SpecError):
            KubernetesBackend().validate(make_spec(**options))
    assert space.reached == []
    KubernetesBackend().validate(make_spec())
    assert space.reached
    assert space.asked == []


# Finding


def test_a_job_is_found_by_its_mark(space: Space) -> None:
    """Where it was asked for; another one is not found in its stead."""
    handle = submit()
    assert KubernetesBackend().find(APPLY_ID) == handle
    assert KubernetesBackend().find(OTHER_ID) is None


def test_a_job_is_looked_for_where_it_was_asked_for(space: Space) -> None:
    """In its context and namespace, whatever the current ones are now."""
    submit(make_spec(context="there", kubeconfig="/k", namespace="other"))
    space.config.namespace = "elsewhere"
    space.reached.clear()
    found = KubernetesBackend().find(APPLY_ID)
    assert found is not None
    assert found["namespace"] == "other"
    assert space.reached == [("here", "/k")]


def test_a_job_is_found_with_all_files_gone(space: Space, home: Path) -> None:
    """What its objects carry is enough, but for how this client reaches the cluster."""
    handle = submit(make_spec({"a": 1, "b": 2}))
    lose_files(home)
    found = KubernetesBackend().find(APPLY_ID)
    assert found is not None
    own = ("kubeconfig", "provision")
    assert {key: value for key, value in found.items() if key not in own} == {
        key: value for key, value in handle.items() if key not in own
    }
    space.reached.clear()
    KubernetesBackend().cancel(found)
    assert space.objects == {}
    assert set(space.reached) == {("here", None)}


def test_a_job_without_files_is_found_in_ones_own_namespace(space: Space, home: Path) -> None:
    """Who may not look into all namespaces looks into the context's."""
    submit()
    lose_files(home)
    space.forbidden.add(("list all", MESHES.plural))
    assert KubernetesBackend().find(APPLY_ID) is not None
    space.forbidden.add(("list", MESHES.plural))
    with pytest.raises(ApiError):
        KubernetesBackend().find(APPLY_ID)


def test_what_is_gone_is_gone(space: Space) -> None:
    """A cluster that was read and has nothing of it is certain; so is one that knows no such objects."""
    submit()
    space.objects.clear()
    assert KubernetesBackend().find(APPLY_ID) is None
    space.unknown.add(MESHES.plural)
    assert KubernetesBackend().find(APPLY_ID) is None
    assert KubernetesBackend().find(OTHER_ID) is None


@pytest.mark.parametrize("files", [True, False])
def test_what_nobody_knows_is_not_taken_for_gone(space: Space, home: Path, files: bool) -> None:
    """While the API server does not answer nobody says that a job does not exist."""
    submit()
    if not files:
        lose_files(home)
    space.go_away()
    with pytest.raises(UnreachableError):
        KubernetesBackend().find(APPLY_ID)


def test_pods_of_others_are_found_without_asking(space: Space) -> None:
    """Nothing of such a job is in the cluster, so there is nothing to look for."""
    handle = submit(FOUND)
    space.go_away()
    assert KubernetesBackend().find(APPLY_ID) == handle


# Listing


def test_every_job_is_listed_once(space: Space) -> None:
    """With its name, in all namespaces; what others made has no mark."""
    submit(make_spec({"a": 1, "b": 1}))
    submit(make_spec(namespace="other"), OTHER_ID)
    space.put(MESHES.plural, {"metadata": {"name": "x", "namespace": "lab"}})
    assert KubernetesBackend().allocations() == {APPLY_ID: "demo", OTHER_ID: "demo"}


def test_who_may_not_look_everywhere_lists_ones_own_namespace(space: Space) -> None:
    """That of the context."""
    submit()
    submit(make_spec(namespace="other"), OTHER_ID)
    space.forbidden.add(("list all", MESHES.plural))
    assert KubernetesBackend().allocations() == {APPLY_ID: "demo"}


def test_a_list_that_cannot_be_had_is_an_error(space: Space) -> None:
    """An empty list would be a lie."""
    space.forbidden |= {("list all", MESHES.plural), ("list", MESHES.plural)}
    with pytest.raises(BackendError):
        KubernetesBackend().allocations()
    space.go_away()
    with pytest.raises(UnreachableError):
        KubernetesBackend().allocations()


def test_a_cluster_without_such_objects_has_no_jobs(space: Space) -> None:
    """Nobody installed the operator there."""
    space.unknown.add(MESHES.plural)
    assert KubernetesBackend().allocations() == {}


# Sizes


def names_in_certificates(space: Space) -> set[str]:
    """Every name that hosts can show."""
    data = read_secret(space, secret_name(APPLY_ID))
    found: set[str] = set()
    for key in data:
        if key.startswith("cert-"):
            leaf = x509.load_pem_x509_certificate(data[key])
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found.update(names.get_values_for_type(x509.DNSName))
    return found


def test_certificates_come_before_sizes(space: Space) -> None:
    """A host that comes finds itself in what it is told."""
    handle = submit()
    space.writes.clear()
    resized = KubernetesBackend().resize(handle, make_spec({"w": 30}))
    assert [plural for _verb, plural, _name in space.writes] == [
        "secrets",
        "secrets",
        "monarchmeshes",
    ]
    assert resized["meshes"]["w"]["hosts"] == 30
    part = json.loads(read_secret(space, secret_name(APPLY_ID))["part-0"])
    assert [host["rank"] for host in part["hosts"]] == list(range(30))
    last = f"{mesh_name()}-29.{mesh_name()}-svc.lab.svc"
    assert last in names_in_certificates(space)


def test_pods_that_stay_are_not_touched(space: Space) -> None:
    """Only the number changes, not the template: whatever differs there would have every pod replaced."""
    handle = submit()
    space.edit(
        MESHES.plural, "lab", mesh_name(), lambda mesh: mesh["spec"]["podTemplate"].update(x="y")
    )
    before = space.objects[MESHES.plural, "lab", mesh_name()]["spec"]["podTemplate"]
    resized = KubernetesBackend().resize(handle, make_spec({"w": 5}))
    [mesh] = space.of_kind(MESHES.plural)
    assert mesh["spec"] == {"replicas": 5, "port": 26600, "podTemplate": before}
    noted = json.loads(mesh["metadata"]["annotations"][HANDLE_NOTE])
    assert noted["meshes"] == resized["meshes"]


def test_a_very_large_mesh_gets_another_certificate(space: Space) -> None:
    """Which must stand in the template."""
    handle = submit(make_spec({"w": 100}))
    KubernetesBackend().resize(handle, make_spec({"w": 200}))
    [mesh] = space.of_kind(MESHES.plural)
    volume, *_others = mesh["spec"]["podTemplate"]["spec"]["volumes"]
    assert "tls-1/tls.crt" in {item["path"] for item in volume["secret"]["items"]}


def test_the_authority_stays_the_same_on_another_machine(space: Space, home: Path) -> None:
    """Hosts that stay must trust those that come, whoever asks for them."""
    submit()
    before = read_secret(space, secret_name(APPLY_ID))["ca.crt"]
    lose_files(home)
    found = KubernetesBackend().find(APPLY_ID)
    assert found is not None
    KubernetesBackend().resize(found, make_spec({"w": 3}))
    assert read_secret(space, secret_name(APPLY_ID))["ca.crt"] == before


def test_sizes_of_what_is_gone(space: Space) -> None:
    """Told, and nothing is made anew."""
    handle = submit()
    space.remove(MESHES.plural, "lab", mesh_name())
    with pytest.raises(BackendError, match="change the size"):
        KubernetesBackend().resize(handle, make_spec({"w": 3}))
    assert space.names(MESHES) == []


def test_waiting_costs_no_requests(space: Space) -> None:
    """However often somebody looks: pods and meshes are listed once, and then watched."""
    handle = submit()
    space.asked.clear()
    for _ in range(20):
        assert KubernetesBackend().glance(handle).liveness is Liveness.PENDING
    wait_until(lambda: space.asked.count(("watch", MESHES.plural)) == 1)
    wait_until(lambda: space.asked.count(("watch", PODS.plural)) == 1)
    asked = [each for each in space.asked if each[0] in {"list", "watch"}]
    assert sorted(asked) == sorted(
        (verb, kind.plural) for verb in ("list", "watch") for kind in (PODS, MESHES)
    )


def test_a_pod_in_another_phase_rings() -> None:
    """Whoever waits looks at once; what changes otherwise is nothing to wake up for."""
    bell = Bell()
    pending, running = {"status": {"phase": "Pending"}}, {"status": {"phase": "Running"}}
    leaving = {**running, "metadata": {"deletionTimestamp": "now"}}
    for before, after in ((pending, running), (None, pending), (running, None), (running, leaving)):
        cluster.ring(before, after, bell)
        assert bell.wait(0)
    cluster.ring(running, {**running, "metadata": {"labels": {"a": "b"}}}, bell)
    assert not bell.wait(0)


def test_pods_of_others_are_left_in_peace(space: Space) -> None:
    """Nothing is deleted, and nothing asked that such a user may not."""
    handle = submit(FOUND)
    space.add_pod("x-0", "", labels={"app": "x", "rank": "0"})
    space.forbidden |= {("list", MESHES.plural), ("get", SECRETS.plural)}
    KubernetesBackend().glance(handle)
    assert len(cluster._watches) == 1
    KubernetesBackend().cancel(handle)
    assert space.names(PODS) == ["x-0"]
    assert space.writes == []
    assert cluster._watches == {}


def test_the_authority_is_found_in_the_cluster(space: Space, home: Path) -> None:
    """By clients on other machines; only whoever may read the Secret can be one."""
    from milkweed.backends.kubernetes.credentials import ensure_authority

    handle = submit()
    first = ensure_authority(APPLY_ID)
    lose_files(home)
    found = ensure_authority(APPLY_ID, space, handle)
    assert (found.cert_pem, found.key_pem) == (first.cert_pem, first.key_pem)
    kept = home / "jobs" / APPLY_ID / "tls"
    assert {path.stat().st_mode & 0o077 for path in kept.iterdir()} == {0}
    lose_files(home)
    space.forbidden.add(("get", SECRETS.plural))
    with pytest.raises(ApiError):
        ensure_authority(APPLY_ID, space, handle)
    assert not home.exists()
