"""What is made in a cluster for a job, in which order, and what is left when that goes wrong in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.making import PLACE_FILE
from milkweed.backends.kubernetes.start import (
    HANDLE_NOTE,
    JOB_LABEL,
    NAME_NOTE,
    authority_name,
    secret_name,
)
from milkweed.errors import BackendError, ChangedError, UnreachableError
from milkweed.job import lifecycle
from milkweed.job.observing import observe
from milkweed.kube.resources import MESHES, PODS, SECRETS
from milkweed.state import StateFile
from unit.kubernetes_jobs import (
    APPLY_ID,
    FOUND,
    OTHER_ID,
    SPEC,
    Space,
    create,
    make_spec,
    mesh_name,
    read_secret,
    submit,
)

TWO = make_spec({"a": 1, "b": 2})
AUTHORITY, HOSTS = authority_name(APPLY_ID), secret_name(APPLY_ID)


# What is made


def test_secrets_come_before_meshes(space: Space) -> None:
    """No pod ever waits for a Secret; in the end the Secrets belong to the meshes."""
    submit(TWO)
    assert space.writes == [
        ("create", "secrets", AUTHORITY),
        ("create", "secrets", HOSTS),
        ("create", "monarchmeshes", mesh_name("a")),
        ("create", "monarchmeshes", mesh_name("b")),
        ("patch", "secrets", HOSTS),
        ("patch", "secrets", AUTHORITY),
    ]


def test_secrets_go_with_their_meshes(space: Space) -> None:
    """Whoever deletes all meshes of a job deletes its keys."""
    submit(TWO)
    for secret in space.of_kind(SECRETS.plural):
        uids = {owner["uid"] for owner in secret["metadata"]["ownerReferences"]}
        assert uids == {mesh["metadata"]["uid"] for mesh in space.of_kind(MESHES.plural)}
    for name in "ab":
        space.remove(MESHES.plural, "lab", mesh_name(name))
    space.settle()
    assert space.names(SECRETS) == []


def test_everything_carries_the_mark(space: Space) -> None:
    """Objects, and the pods that come of them: by it they are found again."""
    submit()
    [mesh] = space.of_kind(MESHES.plural)
    template = mesh["spec"]["podTemplate"]
    for each in (*space.of_kind(SECRETS.plural), mesh, template):
        assert each["metadata"]["labels"][JOB_LABEL] == APPLY_ID
    assert mesh["metadata"]["annotations"][NAME_NOTE] == "demo"
    assert (mesh["spec"]["replicas"], mesh["spec"]["port"]) == (2, 26600)


def test_the_handle_finds_it_again(space: Space, home: Path) -> None:
    """Plain data; on this machine before anything was asked, in the cluster for all other machines."""
    handle = submit(make_spec(kubeconfig="/k", client={"reach": "forward"}))
    assert json.loads((home / "jobs" / APPLY_ID / PLACE_FILE).read_text()) == handle
    assert (handle["context"], handle["kubeconfig"]) == ("here", "/k")
    assert handle["reach"] == "forward"
    [mesh] = space.of_kind(MESHES.plural)
    noted = json.loads(mesh["metadata"]["annotations"][HANDLE_NOTE])
    ways = ("context", "kubeconfig", "provision", "cluster")
    assert noted == {key: value for key, value in handle.items() if key not in ways}


def test_the_namespace_is_the_contexts_unless_one_is_said(space: Space) -> None:
    """As kubectl does it."""
    assert submit(make_spec(namespace=None))["namespace"] == "lab"
    assert submit(make_spec(namespace="other"), OTHER_ID)["namespace"] == "other"
    assert {mesh["metadata"]["namespace"] for mesh in space.of_kind(MESHES.plural)} == {
        "lab",
        "other",
    }


def test_nothing_secret_is_in_what_others_may_read(space: Space, home: Path) -> None:
    """Keys and values of variables are in Secrets alone; what makes certificates is in one that no pod sees."""
    submit(TWO)
    shown = json.dumps(space.of_kind(MESHES.plural)) + json.dumps(
        [each["metadata"] for each in space.of_kind(SECRETS.plural)]
    )
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown
    hosts = read_secret(space, HOSTS)
    assert b"s3cret" in hosts["part-0"]
    for value in read_secret(space, AUTHORITY).values():
        assert value.decode().splitlines()[1] not in shown
    assert read_secret(space, AUTHORITY)["ca.key"] not in hosts.values()
    assert AUTHORITY not in shown.partition('"type"')[0].replace(f'"name": "{AUTHORITY}"', "")
    assert "s3cret" not in (home / "jobs" / APPLY_ID / PLACE_FILE).read_text()


def test_pods_of_others_need_nothing(space: Space) -> None:
    """Where all pods exist already, nothing is made."""
    handle = submit(FOUND)
    assert space.writes == []
    assert handle["meshes"]["w"]["selector"] == "app=x"
    assert handle["meshes"]["w"]["rank_label"] == "rank"


def test_asking_twice_is_asking_once(space: Space) -> None:
    """What is there with the job's mark is brought up to date, and the authority is the same."""
    submit()
    before, [mesh] = read_secret(space, AUTHORITY), space.of_kind(MESHES.plural)
    submit(make_spec({"w": 3}))
    [again] = space.of_kind(MESHES.plural)
    assert read_secret(space, AUTHORITY) == before
    assert again["metadata"]["uid"] == mesh["metadata"]["uid"]
    assert again["spec"]["replicas"] == 3


# What others have made


def named() -> Any:
    return make_spec(meshes={"w": {"object_name": "w"}})


def test_an_object_of_another_job_is_never_taken(space: Space) -> None:
    """The error names that job, and nothing was made."""
    submit(named(), OTHER_ID)
    before = list(space.writes)
    with pytest.raises(ChangedError, match="'w' of another job") as caught:
        submit(named())
    assert OTHER_ID in caught.value.seen
    assert "another namespace" in caught.value.hint
    assert space.writes == before


def test_an_object_that_another_job_makes_meanwhile_is_not_taken(space: Space) -> None:
    """It was not there when we looked, and is when we come to make it."""
    theirs = {"metadata": {"name": "w", "labels": {JOB_LABEL: OTHER_ID}, "namespace": "lab"}}

    def admit(plural: str, _body: object) -> None:
        if plural == SECRETS.plural and "w" not in space.names(MESHES):
            space.put(MESHES.plural, theirs)

    space.admit = admit
    with pytest.raises(ChangedError, match="of another job"):
        submit(named())
    [mesh] = space.of_kind(MESHES.plural)
    assert mesh["metadata"]["labels"] == {JOB_LABEL: OTHER_ID}


def test_an_object_of_nobody_is_used(space: Space) -> None:
    """One that a person made without a job is what its name says, and gets the mark."""
    found = space.put(MESHES.plural, {"metadata": {"name": "w", "namespace": "lab"}, "spec": {}})
    submit(named())
    [mesh] = space.of_kind(MESHES.plural)
    assert mesh["metadata"]["uid"] == found["metadata"]["uid"]
    assert mesh["metadata"]["labels"][JOB_LABEL] == APPLY_ID


THEIRS: dict[str, Any] = {
    "metadata": {
        "name": "w", "namespace": "lab", "labels": {"team": "a"}, "annotations": {"note": "n"},
    },
    "spec": {
        "replicas": 7,
        "podTemplate": {
            "metadata": {"labels": {"old": "yes"}},
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "hostNetwork": True,
                "serviceAccountName": "theirs",
                "initContainers": [{"name": "init", "image": "old"}],
                "containers": [{"name": "worker", "image": "old", "args": ["x"]}],
            },
        },
    },
}  # fmt: skip


def test_nothing_of_an_earlier_template_stays(space: Space) -> None:
    """Pods are what is declared, as those of a new object are; what others wrote beside it stays."""
    submit(named())
    [fresh] = space.of_kind(MESHES.plural)
    space.remove(MESHES.plural, "lab", "w")
    space.put(MESHES.plural, THEIRS)
    submit(named())
    [mesh] = space.of_kind(MESHES.plural)
    assert mesh["spec"] == fresh["spec"]
    assert mesh["metadata"]["labels"]["team"] == "a"
    assert mesh["metadata"]["annotations"]["note"] == "n"
    KubernetesBackend().cancel(KubernetesBackend().find(APPLY_ID) or {})
    assert space.objects == {}


@pytest.mark.parametrize("times", [1, 4, 5])
def test_an_object_that_changes_meanwhile_is_read_again(
    space: Space, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Nobody's change is lost; and nobody is waited for without end."""
    space.put(MESHES.plural, THEIRS)
    others = iter(range(times))

    def replace(*words: Any) -> Any:
        for at in others:
            space.patch(MESHES, "lab", "w", {"metadata": {"annotations": {f"other-{at}": "x"}}})
            break
        return Space.replace(space, *words)

    monkeypatch.setattr(space, "replace", replace)
    if times == 5:
        with pytest.raises(UnreachableError, match="changed by others all the time"):
            submit(named())
        return
    submit(named())
    [mesh] = space.of_kind(MESHES.plural)
    assert mesh["metadata"]["labels"][JOB_LABEL] == APPLY_ID
    assert {f"other-{at}" for at in range(times)} <= mesh["metadata"]["annotations"].keys()


# What goes wrong


def test_a_cluster_without_the_operator(space: Space, folder: Path, home: Path) -> None:
    """The error says what installs it, and nothing is left."""
    space.unknown.add(MESHES.plural)
    with pytest.raises(BackendError, match="does not know MonarchMesh objects") as caught:
        create()
    assert "milkweed operator manifests" in caught.value.hint
    assert space.objects == {}
    assert not registry.folder_of(APPLY_ID).exists()
    assert list(folder.iterdir()) == []


def test_a_namespace_that_is_not_there(space: Space, folder: Path) -> None:
    """It is named; the operator has nothing to do with it."""
    with pytest.raises(BackendError, match="no namespace 'nosuch'") as caught:
        create(make_spec(namespace="nosuch"))
    assert "kubectl create namespace nosuch" in caught.value.hint
    assert "operator" not in caught.value.hint
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "resource", "words"),
    [
        ("get", MESHES, "look at MonarchMesh objects"),
        ("apply", SECRETS, "make Secrets"),
        ("create", MESHES, "make MonarchMesh objects"),
    ],
)
def test_what_is_forbidden_is_told_and_undone(
    space: Space, folder: Path, verb: str, resource: Any, words: str
) -> None:
    """In the API server's own words; what was made before goes again."""
    space.forbidden.add((verb, resource.plural))
    with pytest.raises(BackendError, match=words) as caught:
        create()
    assert f"User may not {verb} {resource.plural}" in caught.value.seen
    assert "namespace 'lab'" in caught.value.hint
    assert space.objects == {}
    assert not registry.folder_of(APPLY_ID).exists()


def test_who_may_not_give_secrets_away_has_a_job_all_the_same(space: Space) -> None:
    """Then kill() deletes them by their mark."""
    space.forbidden.add(("patch", SECRETS.plural))
    handle = submit()
    KubernetesBackend().cancel(handle)
    assert space.objects == {}


# A client that ends between two steps


def go_on(spec: Any = TWO) -> None:
    """What the next program does that declares the same."""
    file = StateFile("job.json")
    wish = lifecycle.Wish(spec=spec, backend=KubernetesBackend(), apply_id=OTHER_ID)
    record, observed = observe(wish.backend, file.load(), file)
    lifecycle.execute(lifecycle.plan_for(wish, observed), wish, record, file)


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("fault", ["before", "after"])
def test_what_a_crash_leaves_the_next_call_repairs(
    space: Space, folder: Path, step: int, fault: str
) -> None:
    """However far it came: in the end there is one allocation, whole, and nothing of another."""
    space.faults.extend([""] * step + [fault])
    with pytest.raises(UnreachableError):
        create(TWO)
    record = StateFile("job.json").load()
    assert record is not None
    assert (record.phase, record.apply_id) == ("intent", APPLY_ID)
    go_on()
    record = StateFile("job.json").load()
    assert record is not None
    assert record.handle is not None
    assert sorted(space.names(MESHES)) == sorted(
        mesh["name"] for mesh in record.handle["meshes"].values()
    )
    marks = {each["metadata"]["labels"][JOB_LABEL] for each in space.objects.values()}
    assert marks == {record.apply_id}
    assert len(space.names(SECRETS)) == 2


def test_half_of_a_job_that_runs_is_not_ended_unasked(space: Space, folder: Path) -> None:
    """A mesh that was never made, beside one whose pods run: a person says what becomes of them."""
    space.faults.extend(["", "", "", "before"])
    with pytest.raises(UnreachableError):
        create(TWO)
    space.add_pod(f"{mesh_name('a')}-0", "a")
    with pytest.raises(ChangedError, match="differs") as caught:
        go_on()
    assert "b/0" in caught.value.seen
    assert space.names(PODS) == [f"{mesh_name('a')}-0"]


def test_ending_what_a_crash_left(space: Space, folder: Path) -> None:
    """kill() finds Secrets alone, too."""
    space.faults.extend(["", "", "before"])
    with pytest.raises(UnreachableError):
        create(SPEC)
    file = StateFile("job.json")
    record = file.load()
    assert record is not None
    lifecycle.end(KubernetesBackend(), record, file)
    assert space.objects == {}
    assert list(folder.iterdir()) == []


def test_while_nobody_answers_an_intent_stays(space: Space, folder: Path) -> None:
    """It is not known whether the job was made, so nothing is made anew."""
    space.faults.extend(["", "", "", "after"])
    with pytest.raises(UnreachableError):
        create(TWO)
    before = list(space.writes)
    space.go_away()
    with pytest.raises(UnreachableError):
        go_on()
    assert space.writes == before
