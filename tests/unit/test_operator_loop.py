"""The operator on a cluster in memory: meshes become hosts, and nothing is written twice."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.kube.resources import MESHES, PODS, SERVICES, STATEFUL_SETS
from milkweed.operator.loop import Operator
from milkweed.operator.objects import HASH, PASSED_ON, make_service, make_stateful_set
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster
from unit.operator_runs import (
    add,
    condition,
    edit_mesh,
    events,
    get_mesh,
    get_set,
    make_mesh,
    make_operator,
    make_template,
    run,
    settled,
    sync,
    work,
    writes,
)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# From a mesh to hosts


def test_a_mesh_becomes_hosts(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """A Service, a StatefulSet, two pods, and a status that says so."""
    add(cluster)
    run(operator, cluster, clock)
    assert len(cluster.of_kind(PODS.plural)) == 2
    assert get_mesh(cluster)["status"]["readyReplicas"] == 2
    assert condition(cluster)["reason"] == "AllReady"


def test_few_writes_are_needed(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """Two objects, two statuses, and an event for each thing that people should know."""
    add(cluster)
    run(operator, cluster, clock)
    kinds = [(verb, plural) for verb, plural, _name in writes(cluster)]
    assert kinds.count(("create", "services")) == kinds.count(("create", "statefulsets")) == 1
    assert kinds.count(("patch status", "monarchmeshes")) == 2
    assert [reason for reason, _ in events(cluster)] == ["Created", "Created", "AllReady"]


def test_a_quiet_world_is_left_in_peace(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """For half an hour nothing is written but the lease, though everything is looked at now and then."""
    settled(cluster, operator, clock)
    looks = operator.counts.looks
    run(operator, cluster, clock, 1800)
    assert writes(cluster) == []
    assert 2 <= operator.counts.looks - looks <= 6


def test_a_new_operator_has_nothing_to_write(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Whoever comes after finds everything as it should be."""
    settled(cluster, operator, clock)
    run(make_operator(cluster, clock, "second"), cluster, clock, 60)
    assert writes(cluster) == []


def test_many_meshes(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """Each gets what it asked for."""
    names = [f"mesh{index}" for index in range(20)]
    for index, name in enumerate(names):
        add(cluster, name, replicas=1 + index % 3)
    run(operator, cluster, clock)
    assert {condition(cluster, name)["reason"] for name in names} == {"AllReady"}
    assert len(cluster.of_kind(PODS.plural)) == sum(1 + index % 3 for index in range(20))


def test_only_the_namespaces_that_are_served(cluster: Cluster, clock: FakeClock) -> None:
    """Meshes elsewhere are somebody else's."""
    operator = make_operator(cluster, clock, namespaces=("team", "other"))
    add(cluster)
    elsewhere = make_mesh("b")
    del elsewhere["metadata"]["namespace"]
    cluster.create(MESHES, "elsewhere", elsewhere)
    run(operator, cluster, clock)
    homes = {one["metadata"]["namespace"] for one in cluster.of_kind(STATEFUL_SETS.plural)}
    assert homes == {"team"}


# Changes


def test_scaling(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """Up and down; the status follows."""
    settled(cluster, operator, clock)
    for count in (5, 1):
        edit_mesh(cluster, replicas=count)
        run(operator, cluster, clock)
        assert len(cluster.of_kind(PODS.plural)) == count
        assert condition(cluster)["message"] == f"{count} of {count} hosts are ready"
    assert ("Scaled", "StatefulSet trainers goes from 2 to 5 hosts") in events(cluster)


def test_another_template(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """The hosts are made anew, once."""
    settled(cluster, operator, clock)
    before = {pod["metadata"]["uid"] for pod in cluster.of_kind(PODS.plural)}
    edit_mesh(cluster, podTemplate=make_template("worker:2"))
    run(operator, cluster, clock)
    after = {pod["metadata"]["uid"] for pod in cluster.of_kind(PODS.plural)}
    assert not before & after
    assert [one[:2] for one in writes(cluster)].count(("replace", "statefulsets")) == 1
    assert condition(cluster)["observedGeneration"] == 2
    assert "TemplateChanged" in dict(events(cluster))


def test_a_deleted_mesh_leaves_nothing(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """The cluster removes what belonged to it; the operator deletes nothing itself."""
    settled(cluster, operator, clock)
    cluster.remove(MESHES.plural, "team", "trainers")
    run(operator, cluster, clock)
    left = {plural for plural, _home, _name in cluster.objects}
    assert left <= {"events", "leases"}
    assert writes(cluster) == []
    assert len(operator.queue) == 0


def test_a_mesh_that_is_made_anew(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """The old hosts go before the new ones come."""
    settled(cluster, operator, clock)
    old = get_set(cluster)["metadata"]["uid"]
    cluster.remove(MESHES.plural, "team", "trainers")
    add(cluster, replicas=3)
    for _ in range(8):
        sync(operator)
        operator.lead()
        work(operator)
        clock.advance(0.5)
    assert get_set(cluster)["metadata"]["uid"] == old
    assert "still being removed" in condition(cluster)["message"]
    run(operator, cluster, clock)
    assert get_set(cluster)["metadata"]["uid"] != old
    assert condition(cluster)["message"] == "3 of 3 hosts are ready"


# Repairs


@pytest.mark.parametrize("kind", [STATEFUL_SETS, SERVICES])
def test_what_is_deleted_comes_back(
    cluster: Cluster, operator: Operator, clock: FakeClock, kind: Any
) -> None:
    """Somebody deleted what the mesh needs."""
    settled(cluster, operator, clock)
    name = "trainers" if kind is STATEFUL_SETS else "trainers-svc"
    cluster.remove(kind.plural, "team", name)
    run(operator, cluster, clock)
    assert (kind.plural, "team", name) in cluster.objects
    assert condition(cluster)["reason"] == "AllReady"


def test_what_is_changed_is_put_right(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Somebody else scaled the StatefulSet."""
    settled(cluster, operator, clock)
    place = STATEFUL_SETS.plural, "team", "trainers"
    cluster.edit(*place, lambda found: found["spec"].update(replicas=9))
    run(operator, cluster, clock)
    assert get_set(cluster)["spec"]["replicas"] == 2


def test_labels_that_were_taken_off_come_back(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Without them the operator does not even see its own object, so it asks for it by name."""
    settled(cluster, operator, clock)
    place = STATEFUL_SETS.plural, "team", "trainers"
    cluster.edit(*place, lambda found: found["metadata"].update(labels={}))
    run(operator, cluster, clock)
    assert get_set(cluster)["metadata"]["labels"]["monarch.pytorch.org/mesh-name"] == "trainers"
    assert [one[:2] for one in writes(cluster)].count(("replace", "statefulsets")) == 1


def test_a_fight_is_fought_ever_more_slowly(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Somebody undoes every repair: another operator, say. There are few rounds, and no end to neither."""
    settled(cluster, operator, clock)

    def undo(found: Any) -> None:
        found["metadata"]["annotations"][HASH] = "theirs"

    def replaces() -> int:
        return [one[:2] for one in writes(cluster)].count(("replace", "statefulsets"))

    for _ in range(600):
        if get_set(cluster)["metadata"]["annotations"][HASH] != "theirs":
            cluster.edit(STATEFUL_SETS.plural, "team", "trainers", undo)
        run(operator, cluster, clock, 1)
    assert 3 <= replaces() <= 12


def test_what_webhooks_bend_is_not_written_for_ever(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """An image that is rewritten on its way in stays as it is; one try shows that."""

    def rewrite(plural: str, body: dict[str, Any]) -> None:
        if plural == STATEFUL_SETS.plural:
            for container in body["spec"]["template"]["spec"]["containers"]:
                container["image"] = "mirror/" + container["image"].removeprefix("mirror/")

    cluster.admit = rewrite
    add(cluster)
    run(operator, cluster, clock, 1300)
    changes = [one for one in writes(cluster) if one[:2] == ("replace", "statefulsets")]
    assert len(changes) <= 1
    assert condition(cluster)["reason"] == "AllReady"
    edit_mesh(cluster, podTemplate=make_template("worker:2"))
    run(operator, cluster, clock)
    image = get_set(cluster)["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "mirror/worker:2"


def test_meshes_of_another_operator_change_hands(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Their pods stay the same."""
    mesh = cluster.create(MESHES, "team", make_mesh(annotations={"note": "x"}))
    found = make_stateful_set(mesh)
    found["metadata"]["annotations"] |= {HASH: "0123"}
    del found["metadata"]["annotations"][PASSED_ON]
    cluster.put(STATEFUL_SETS.plural, found)
    service = make_service(mesh)
    del service["spec"]["publishNotReadyAddresses"]
    cluster.put(SERVICES.plural, service)
    cluster.settle()
    before = {pod["metadata"]["uid"] for pod in cluster.of_kind(PODS.plural)}
    run(operator, cluster, clock)
    assert {pod["metadata"]["uid"] for pod in cluster.of_kind(PODS.plural)} == before
    assert condition(cluster)["reason"] == "AllReady"
    assert "Adopted" in dict(events(cluster))
