"""Which pod is which host, and how it is reached: by its name, by its address, or through the API server."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes import attaching, cluster, places
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.places import ask_adopted, is_inside, make_door, pods_in
from milkweed.backends.kubernetes.ranks import rank_of
from milkweed.control import parse_door
from milkweed.errors import BackendError, SpecError, UnreachableError
from milkweed.kube.resources import PODS
from milkweed.status import HostState, Liveness
from unit.kubernetes_jobs import (
    APPLY_ID,
    FOUND,
    OTHER_ID,
    Space,
    make_pod,
    make_spec,
    mesh_name,
    submit,
)

BY_NAME = make_spec(image=None, meshes={"w": {"label_selector": "app=x", "pod_rank_label": ""}})
DELETED = "2024-01-01T00:00:00Z"


def add(space: Space, name: str, rank: object = None, **more: Any) -> None:
    """A pod that somebody else made."""
    labels = {"app": "x"} if rank is None else {"app": "x", "rank": str(rank)}
    space.add_pod(name, "", labels=labels, **more)


def names(handle: Any) -> list[str]:
    """The pods of a job's hosts, in the order of ranks."""
    pods = KubernetesBackend()._pods(handle)
    return [pod.view.name if pod.view else "" for pod in pods]


@pytest.fixture
def worker() -> Iterator[int]:
    """A port at which somebody takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# Ranks


def test_ranks_are_what_a_label_says(space: Space) -> None:
    """Whatever the pods are called."""
    handle = submit(FOUND)
    add(space, "b", 0)
    add(space, "a", 1)
    assert names(handle) == ["b", "a"]


def test_pods_without_ranks_are_ordered_by_name(space: Space) -> None:
    """As people count; those that are about to go, and those beyond the size, are passed over."""
    handle = submit(BY_NAME)
    for name in ("p-10", "p-9", "p-11"):
        add(space, name)
    add(space, "p-1", deletionTimestamp=DELETED)
    add(space, "p-2", phase="Failed")
    assert names(handle) == ["p-9", "p-10"]


def test_a_rank_that_is_missing_is_waited_for(space: Space) -> None:
    """The hosts that are there keep their places."""
    handle = submit(FOUND)
    add(space, "a", 1)
    assert names(handle) == ["", "a"]


def test_a_pod_that_goes_makes_way_for_its_successor(space: Space) -> None:
    """Both have the same rank for a while."""
    handle = submit(FOUND)
    add(space, "old", 0, deletionTimestamp=DELETED)
    add(space, "new", 0)
    add(space, "a", 1)
    assert names(handle) == ["new", "a"]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((0, 0), "both have rank 0"),
        ((0, 2), "has rank 2, but the mesh has 2 hosts"),
        ((0, "x"), "is not a rank"),
        ((0, None), "has no label 'rank'"),
    ],
)
def test_ranks_that_are_wrong_are_told(space: Space, ranks: tuple[Any, Any], words: str) -> None:
    """With the names of the pods, instead of waiting for what will never be right."""
    handle = submit(FOUND)
    for name, rank in zip("ab", ranks, strict=True):
        add(space, name, rank)
    with pytest.raises(SpecError, match=words):
        KubernetesBackend().glance(handle)


def test_old_clusters_number_pods_by_their_names_alone() -> None:
    """Before Kubernetes 1.28 a StatefulSet set no such label; whatever else made a pod, its name tells nothing."""
    owner = {"kind": "StatefulSet", "name": "w", "controller": True}
    pod = make_pod("w-3", labels={}, ownerReferences=[owner])
    assert rank_of(pod) == 3
    with pytest.raises(SpecError, match="has no label"):
        rank_of(pod, "rank")
    with pytest.raises(SpecError, match="has no label"):
        rank_of(make_pod("w-3", labels={}, ownerReferences=[{**owner, "kind": "ReplicaSet"}]))


def test_two_meshes_of_one_job_have_pods_of_their_own(space: Space) -> None:
    """They share the mark, and are told apart by a label."""
    handle = submit(make_spec({"a": 1, "b": 1}))
    for mesh in "ab":
        space.add_pod(f"{mesh_name(mesh)}-0", mesh)
    space.add_pod(f"{mesh_name('a', OTHER_ID)}-0", "a", apply_id=OTHER_ID)
    assert names(handle) == [f"{mesh_name('a')}-0", f"{mesh_name('b')}-0"]


# Pods of others


def test_pods_of_others_are_dialled_where_they_are(space: Space, worker: int) -> None:
    """At the port that their own variable names; by the name that they gave their worker."""
    handle = submit(FOUND)
    said = {"MONARCH_PORT": str(worker), "MONARCH_SERVICE_PROC_IDS": json.dumps(["one", "two"])}
    add(space, "b", 0, env=said)
    add(space, "a", 1, env={"MONARCH_PORT": str(worker)})
    backend = KubernetesBackend()
    assert backend.adopted_labels(handle) == ["w/0", "w/1"]
    hosts = backend.adopted(handle)
    assert [(each.name, each.address, each.via, each.control) for each in hosts] == [
        ("b", f"one@tcp://127.0.0.1:{worker}", "", ""),
        ("a", f"tcp://127.0.0.1:{worker}", "", ""),
    ]
    assert backend.hosts(handle) == hosts
    assert {each.state for each in backend.poll(handle).hosts} == {HostState.READY}
    assert backend.controls(handle) == []


@pytest.mark.parametrize("said", ["", "no JSON", "[]", "{}", "7", '["only one"]'])
def test_names_that_are_not_there_are_no_names(space: Space, worker: int, said: str) -> None:
    """A variable that cannot be read changes nothing."""
    handle = submit(FOUND)
    env = {"MONARCH_PORT": str(worker), "MONARCH_SERVICE_PROC_IDS": said}
    for rank, name in enumerate("ba"):
        add(space, name, rank, env=env)
    assert KubernetesBackend().adopted(handle)[1].address == f"tcp://127.0.0.1:{worker}"


def test_a_port_from_elsewhere_is_the_declared_one(space: Space) -> None:
    """A variable whose value comes from a field or a Secret is not in the pod."""
    handle = submit(FOUND)
    add(space, "a", 0, env={"MONARCH_PORT": None})
    add(space, "b", 1, env={"MONARCH_PORT": "many"})
    assert [pod.port for pod in KubernetesBackend()._pods(handle)] == [26600, 26600]


def test_a_pod_that_is_not_ready_is_waited_for(space: Space, worker: int) -> None:
    """Its worker may take connections before it can do anything with them."""
    handle = submit(FOUND)
    add(space, "a", 0, env={"MONARCH_PORT": str(worker)})
    add(space, "b", 1, ready=False)
    with pytest.raises(UnreachableError, match="w/1 does not answer"):
        KubernetesBackend().adopted(handle)
    status = KubernetesBackend().poll(handle)
    assert [each.state for each in status.hosts] == [HostState.READY, HostState.STARTING]


def test_a_port_where_nobody_listens_is_told(space: Space, worker: int) -> None:
    """The pod is well, and the worker is not there: the engine would wait a minute for it."""
    handle = submit(
        make_spec({"w": 1}, image=None, meshes=FOUND.options["meshes"], client={"reach": "direct"})
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    add(space, "a", 0, env={"MONARCH_PORT": str(port)})
    with pytest.raises(UnreachableError) as caught:
        KubernetesBackend().adopted(handle)
    assert f"nobody listens at port {port}" in caught.value.seen


class Dialled:
    """Connections through the API server: each is answered, left open, or closed at once."""

    def __init__(self, *, refused: bool = False) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.refused = refused
        self.ends: list[socket.socket] = []

    def __call__(self, _api: object, namespace: str, pod: str, port: int) -> socket.socket:
        """As `dial` does."""
        self.asked.append((namespace, pod, port))
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        if self.refused:
            theirs.close()
        return ours

    def close(self) -> None:
        """Let them go."""
        for each in self.ends:
            each.close()


def ask_through_server(space: Space, dialled: Dialled, **pod: Any) -> Any:
    """What a pod of somebody else says that only the API server reaches, or why it says nothing."""
    options = {"image": None, "meshes": FOUND.options["meshes"], "client": {"reach": "forward"}}
    handle = submit(make_spec({"w": 1}, **options))
    add(space, "a", 0, **pod)
    [found] = pods_in(space, handle)
    answer = ask_adopted(space, handle, found, dial=dialled, settle_s=0.01)
    dialled.close()
    assert dialled.asked == [("lab", "a", 26600)]
    return answer


def test_pods_that_cannot_be_dialled_are_reached_through_the_api_server(space: Space) -> None:
    """And so is everything that follows."""
    answer = ask_through_server(space, Dialled())
    assert (answer["address"], answer["via"]) == ("tcp://127.0.0.1:26600", "here||lab|a")


def test_a_pod_that_takes_no_connection_is_told(space: Space) -> None:
    """The API server takes one before the pod does, and closes it when the pod does not."""
    answer = ask_through_server(space, Dialled(refused=True))
    assert "nobody listens at port 26600" in answer
    assert "refused" in answer


def test_an_address_of_six_parts_has_brackets(space: Space) -> None:
    """Else its port could not be told from it."""
    answer = ask_through_server(space, Dialled(), ip="fd00::7")
    assert answer["address"] == "tcp://[fd00::7]:26600"


# Doors


@pytest.mark.parametrize(
    ("reach", "env", "known", "expected"),
    [
        ("direct", False, False, True),
        ("forward", True, True, False),
        ("auto", True, False, True),
        ("auto", False, True, True),
        ("auto", False, False, False),
    ],
)
def test_whether_pods_can_be_dialled(
    reach: str, env: bool, known: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said holds; else a pod can, and who knows the cluster's own name. It is found out once."""
    looks: list[str] = []

    def look_up(name: str, _port: object) -> list[object]:
        looks.append(name)
        if not known:
            raise OSError("no such name")
        return []

    monkeypatch.setattr(places.socket, "getaddrinfo", look_up)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if env:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    places._knows_names.cache_clear()
    assert [is_inside(reach), is_inside(reach)] == [expected] * 2
    assert looks == ([places.CLUSTER_NAME] if reach == "auto" and not env else [])
    places._knows_names.cache_clear()


def door_of(space: Space, handle: Any, **how: Any) -> Any:
    """Where the keeper of the first host takes orders."""
    pod = KubernetesBackend()._pods(handle)[0]
    return make_door(space, handle, pod, **how)


def test_a_door_outside_leads_through_the_api_server(space: Space, home: Path) -> None:
    """To the pod, with a certificate of this client."""
    handle = submit(make_spec({"w": 1}, client={"reach": "forward"}))
    space.add_pod(f"{mesh_name()}-0")
    door = door_of(space, handle)
    assert door.machine == f"{mesh_name()}-0.{mesh_name()}-svc.lab.svc"
    assert (door.port, door.host, door.job) == (26600, "w/0", APPLY_ID)
    assert door.via == f"here||lab|{mesh_name()}-0"
    assert Path(door.credentials) == home / "jobs" / APPLY_ID / "tls" / "client-127.0.0.1"
    assert parse_door(str(door)) == door
    assert KubernetesBackend().controls(handle) == [str(door)]


def test_a_door_inside_is_dialled(space: Space, home: Path) -> None:
    """By the name that stays; the certificate has the address that the pod sees."""
    handle = submit(make_spec({"w": 1}, client={"reach": "direct"}))
    space.add_pod(f"{mesh_name()}-0")
    door = door_of(space, handle, address=lambda _machine: "10.1.2.3")
    assert door.via == ""
    assert Path(door.credentials).name == "client-10.1.2.3"


def test_a_name_that_leads_nowhere_is_told(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason; the host is not lost for that."""

    def look_up(*_args: object, **_more: object) -> list[object]:
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    handle = submit(make_spec({"w": 1}, client={"reach": "direct"}))
    space.add_pod(f"{mesh_name()}-0")
    with pytest.raises(UnreachableError, match="there is no way to"):
        KubernetesBackend().controls(handle)
    [host] = KubernetesBackend().poll(handle).hosts
    assert (host.state, host.reason) == (HostState.STARTING, "no such name")


def test_a_door_on_another_machine(space: Space, home: Path) -> None:
    """What is needed to open it is in the cluster."""
    submit(make_spec({"w": 1}, client={"reach": "forward"}))
    space.add_pod(f"{mesh_name()}-0")
    shutil.rmtree(home)
    found = KubernetesBackend().find(APPLY_ID)
    door = door_of(space, found)
    assert Path(door.credentials, "tls.key").is_file()
    assert door.via == f"here||lab|{mesh_name()}-0"


# The picture of the pods


def test_pods_are_listed_once_and_watched(space: Space) -> None:
    """However often somebody looks, and for however many meshes."""
    handle = submit(make_spec({"a": 1, "b": 1}))
    for _ in range(3):
        KubernetesBackend().glance(handle)
    assert space.asked.count(("list", PODS.plural)) == 1
    space.add_pod(f"{mesh_name('a')}-0", "a")
    space.wait_seen()
    assert KubernetesBackend().glance(handle).liveness is Liveness.RUNNING


def test_only_what_is_looked_at_is_kept_of_a_pod() -> None:
    """Thousands of pods are many megabytes."""
    pod = make_pod("a", labels={"x": "y"}, managedFields=["long"], uid="1")
    pod["spec"] |= {"volumes": ["long"], "tolerations": ["long"]}
    pod["spec"]["containers"][0]["command"] = ["long"]
    kept = cluster.trim(pod)
    assert "long" not in json.dumps(kept)
    assert places.describe_pod(kept) == places.describe_pod(pod)
    assert cluster.trim({"metadata": {"name": "a"}, "spec": {}})["status"] == {}


# How many pods there are


def test_pods_are_counted_that_stay(space: Space) -> None:
    """In the namespace that was said, else in that of the context."""
    add(space, "a")
    add(space, "b")
    add(space, "gone", deletionTimestamp=DELETED)
    assert attaching.count_found({"namespace": "lab"}, "app=x") == 2
    assert attaching.count_found({}, "app=x") == 2


def test_no_pod_at_all_is_an_error(space: Space) -> None:
    """A mesh without hosts is none; the hint shows what labels there are."""
    with pytest.raises(BackendError, match="app=x") as caught:
        attaching.count_found({"namespace": "other", "context": "c"}, "app=x")
    assert "kubectl get pods -n other --show-labels" in caught.value.hint
    assert space.reached == [("c", None)]
