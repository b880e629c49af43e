"""A mesh whose hosts all say that their lease is over is ended, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.kube.resources import MESHES, PODS, STATEFUL_SETS
from milkweed.operator.ending import SPREAD_S, is_over
from milkweed.operator.loop import Operator
from milkweed.operator.reconcile import World
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster
from unit.operator_farewell import JOB, farewell, mark_as_job, moment, say_farewell
from unit.operator_runs import (
    condition,
    edit_mesh,
    events,
    get_set,
    make_mesh,
    make_operator,
    run,
    settled,
    sync,
    work,
    writes,
)

LABELS = {"milkweed.dev/job": JOB}


def make_world(*statuses: dict[str, Any], **changes: Any) -> World:
    """A mesh of a job, and its pods."""
    mesh = make_mesh(replicas=len(statuses), labels=LABELS, uid="mesh")
    owner = {"kind": "MonarchMesh", "name": "trainers", "uid": "mesh", "controller": True}
    found = {"kind": "StatefulSet", "metadata": {"name": "trainers", "ownerReferences": [owner]}}
    pods = [
        {
            "metadata": {"name": f"trainers-{index}"},
            "spec": {"containers": [{"name": "worker"}]},
            "status": status,
        }
        for index, status in enumerate(statuses)
    ]
    parts: dict[str, Any] = {"mesh": mesh, "stateful_set": found, "pods": pods}
    return World(**{**parts, **changes})


# The rule

OVER = {
    "all have just ended": [farewell(0), farewell(1)],
    "the first is up again": [farewell(0, up=2, ready=3), farewell(8)],
    "the last is up and was not ready since": [farewell(0, up=2, ready=3), farewell(8, up=9)],
    "its node noticed a bit late": [farewell(0, up=1, unready=2)],
    "one notices the lost client later": [farewell(0, up=2, ready=3), farewell(75)],
    "one waits to be started again for long": [farewell(0), farewell(600)],
    "with more words": [farewell(0, words="milkweed: the lease is over: its owner is gone")],
}
NOT_OVER = {
    "nobody said anything": [farewell(words=""), farewell(words="")],
    "other words": [farewell(0), farewell(0, words="out of memory")],
    "one runs on": [farewell(0), {"phase": "Running"}],
    "all are ready again": [farewell(0, up=1, ready=2), farewell(4, up=5, ready=6)],
    "one was ready since": [farewell(0, up=1, ready=2), farewell(4, up=5, ready=6, unready=99)],
    "one is used again": [farewell(0, up=1, ready=2), farewell(SPREAD_S + 2)],
    "nothing tells when": [farewell(0) | {"containerStatuses": [{"name": "worker"}]}],
}


@pytest.mark.parametrize("name", OVER)
def test_meshes_that_are_over(name: str) -> None:
    """Every host said so, and nobody can have come since."""
    assert is_over(make_world(*OVER[name]))


@pytest.mark.parametrize("name", NOT_OVER)
def test_meshes_that_are_not(name: str) -> None:
    """Somebody may use them."""
    assert not is_over(make_world(*NOT_OVER[name]))


def test_what_a_host_said_before_it_failed_is_not_its_last_word() -> None:
    """It was started again, and then something else became of it."""
    status = farewell(5, words="killed")
    status["containerStatuses"][0]["lastState"] = farewell(0)["containerStatuses"][0]["state"]
    assert not is_over(make_world(status))


def test_only_meshes_of_jobs_are_ended() -> None:
    """Whatever the pods of others say."""
    plain = make_mesh(replicas=1, uid="mesh")
    assert not is_over(make_world(farewell(0), mesh=plain))


def test_all_hosts_must_be_there() -> None:
    """One that is missing, leaves, or belongs to somebody else has said nothing."""
    two = make_world(farewell(0), farewell(0))
    assert not is_over(make_world(mesh=two.mesh, pods=two.pods[:1]))
    leaving = {**two.pods[1]["metadata"], "deletionTimestamp": moment(3)}
    gone = [two.pods[0], {**two.pods[1], "metadata": leaving}]
    assert not is_over(make_world(mesh=two.mesh, pods=gone))
    assert not is_over(make_world(mesh=two.mesh, pods=two.pods, stateful_set=None))
    foreign = {"kind": "StatefulSet", "metadata": {"name": "trainers"}}
    assert not is_over(make_world(mesh=two.mesh, pods=two.pods, stateful_set=foreign))


def test_the_words_of_another_container_are_not_the_workers() -> None:
    """A container beside it may end when it likes."""
    status = farewell(0)
    status["containerStatuses"][0]["name"] = "beside"
    assert not is_over(make_world(status))


# What is done


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def operator(cluster: Cluster, clock: FakeClock) -> Operator:
    return make_operator(cluster, clock)


def test_it_is_told_and_deleted(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """This very mesh, with all that belongs to it."""
    settled(cluster, operator, clock, labels=LABELS)
    say_farewell(cluster, 0)
    say_farewell(cluster, 1, at=3)
    run(operator, cluster, clock, 5)
    assert events(cluster)[-1] == (
        "LeaseOver",
        "milkweed: the lease is over, said 2 of 2 hosts; the mesh is deleted",
    )
    assert {plural for plural, _home, _name in cluster.objects} == {"events", "leases"}
    assert [one for one in writes(cluster) if one[0] == "delete"] == [
        ("delete", MESHES.plural, "trainers")
    ]


def test_one_of_two_is_not_enough(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """The mesh stays; when the host is back its condition tells."""
    settled(cluster, operator, clock, labels=LABELS)
    say_farewell(cluster, 0)
    run(operator, cluster, clock, 5)
    assert "delete" not in {one[0] for one in writes(cluster)}
    say_farewell(cluster, 0, up=2, ready=3)
    run(operator, cluster, clock, 20)
    assert condition(cluster)["message"] == "2 of 2 hosts are ready; the lease of 1 was over before"


def test_an_operator_that_comes_too_late_ends_nothing(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """All hosts are up again when it looks, and a client may have come."""
    settled(cluster, operator, clock, labels=LABELS)
    for index in range(2):
        say_farewell(cluster, index, up=2, ready=3)
    later = make_operator(cluster, clock, "second")
    operator.leadership.release()
    run(later, cluster, clock, 60)
    assert later.counts.looks
    assert "delete" not in {one[0] for one in writes(cluster)}


def test_another_mesh_of_the_same_name_is_left(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """It was made anew after the operator looked; what it says of the old one is nothing to the new."""
    settled(cluster, operator, clock, labels=LABELS)
    for index in range(2):
        say_farewell(cluster, index)
    sync(operator)
    cluster.remove(MESHES.plural, "team", "trainers")
    anew = make_mesh()
    mark_as_job(anew)
    cluster.put(MESHES.plural, anew)
    clock.advance(1)
    work(operator)
    assert [one["metadata"]["uid"] for one in cluster.of_kind(MESHES.plural)] != ["uid-1"]
    run(operator, cluster, clock)
    assert condition(cluster)["reason"] == "AllReady"


def test_without_the_lease_nothing_is_ended(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Another operator acts by now."""
    settled(cluster, operator, clock, labels=LABELS)
    for index in range(2):
        say_farewell(cluster, index)
    sync(operator)
    operator.leadership.release()
    clock.advance(1)
    operator.queue.urge(("team", "trainers"))
    clock.advance(1)
    operator.work(operator.queue.take() or ("", ""))
    assert "delete" not in {one[0] for one in writes(cluster)}


def test_a_deletion_that_fails_is_tried_again(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """As long as nobody can have come."""
    settled(cluster, operator, clock, labels=LABELS)
    for index in range(2):
        say_farewell(cluster, index)
    cluster.faults.extend(["", "before"])
    run(operator, cluster, clock, 10)
    assert cluster.of_kind(MESHES.plural) == []


def test_a_mesh_that_grows_is_in_use(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """The new host has said nothing."""
    settled(cluster, operator, clock, labels=LABELS)
    edit_mesh(cluster, replicas=3)
    for index in range(2):
        say_farewell(cluster, index)
    run(operator, cluster, clock)
    assert get_set(cluster)["spec"]["replicas"] == 3
    assert len(cluster.of_kind(PODS.plural)) == 3
    assert len(cluster.of_kind(STATEFUL_SETS.plural)) == 1
