"""The operator on a cluster in memory: meshes become hosts, and nothing is written twice."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from milkweed.kube.resources import MESHES, PODS, SERVICES, STATEFUL_SETS
from milkweed.operator.lease import ACTS_S, DURATION_S
from milkweed.operator.loop import SILENT_S, STUCK_S, Operator, Settings
from milkweed.operator.objects import HASH, PASSED_ON, make_service, make_stateful_set
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster, refuse
from unit.operator_runs import (
    condition,
    events,
    get_mesh,
    get_set,
    make_mesh,
    make_operator,
    make_template,
    run,
    sync,
    work,
    writes,
)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def operator(cluster: Cluster, clock: FakeClock) -> Operator:
    return make_operator(cluster, clock)


def add(cluster: Cluster, name: str = "trainers", **more: Any) -> None:
    cluster.create(MESHES, "team", make_mesh(name, **more))
    cluster.writes.clear()


def settled(cluster: Cluster, operator: Operator, clock: FakeClock, **more: Any) -> None:
    """A mesh whose hosts are all ready, and nothing written yet."""
    add(cluster, **more)
    run(operator, cluster, clock)
    assert condition(cluster)["reason"] == "AllReady"
    cluster.writes.clear()


def edit_mesh(cluster: Cluster, **spec: Any) -> None:
    cluster.edit(MESHES.plural, "team", "trainers", lambda mesh: mesh["spec"].update(spec))


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


# What goes wrong


def test_a_foreign_stateful_set_is_never_touched(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """The mesh says so, and gets its hosts when it is gone."""
    theirs = {"kind": "StatefulSet", "metadata": {"name": "trainers"}, "spec": {"replicas": 0}}
    theirs["spec"]["template"] = {"metadata": {"labels": {}}}
    cluster.put(STATEFUL_SETS.plural, theirs)
    before = copy.deepcopy(get_set(cluster)["spec"])
    add(cluster)
    run(operator, cluster, clock, 120)
    assert condition(cluster)["reason"] == "Conflict"
    assert get_set(cluster)["spec"] == before
    kinds = [one[1] for one in writes(cluster)]
    assert kinds == ["monarchmeshes", "events"]
    cluster.remove(STATEFUL_SETS.plural, "team", "trainers")
    run(operator, cluster, clock, 90)
    assert condition(cluster)["reason"] == "AllReady"


def test_what_the_cluster_refuses_is_told(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Once, in the cluster's own words; the tries become rare."""

    def forbid(plural: str, _body: Any) -> None:
        if plural == STATEFUL_SETS.plural:
            raise refuse(422, "Invalid", 'spec.template: Invalid value: "x"')

    cluster.admit = forbid
    add(cluster)
    run(operator, cluster, clock, 600)
    assert condition(cluster)["reason"] == "Refused"
    assert 'spec.template: Invalid value: "x"' in condition(cluster)["message"]
    statuses = [one for one in writes(cluster) if one[0] == "patch status"]
    tries = [one for one in writes(cluster) if one[:2] == ("create", "statefulsets")]
    assert len(statuses) == 1
    assert len(tries) <= 11
    assert operator.counts.refusals == len(tries)


def test_a_corrected_mesh_is_tried_at_once(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Whoever mends what was refused does not wait for the next rare try."""

    def forbid(plural: str, body: Any) -> None:
        if plural == STATEFUL_SETS.plural and "bad" in str(body):
            raise refuse(422, "Invalid", "bad")

    cluster.admit = forbid
    add(cluster, image="bad")
    run(operator, cluster, clock, 600)
    edit_mesh(cluster, podTemplate=make_template("good"))
    run(operator, cluster, clock, 3)
    assert condition(cluster)["reason"] == "AllReady"


def test_a_namespace_that_goes_takes_no_events(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """What cannot be told in an event is still told in the status."""

    def forbid(plural: str, _body: Any) -> None:
        if plural in {"events", SERVICES.plural}:
            raise refuse(403, "Forbidden", "namespace is being terminated")

    cluster.admit = forbid
    add(cluster)
    run(operator, cluster, clock)
    assert "being terminated" in condition(cluster)["message"]


def test_a_webhook_that_is_down_is_told_in_the_end(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """The server cannot answer for that reason again and again, while it answers everything else."""
    real = cluster.create

    def create(resource: Any, namespace: str, body: Any, **query: str) -> Any:
        if resource is STATEFUL_SETS:
            cluster.faults.append("before")
        return real(resource, namespace, body, **query)

    cluster.create = create  # type: ignore[method-assign]
    add(cluster)
    run(operator, cluster, clock, 30)
    assert condition(cluster)["reason"] == "Refused"


def test_one_strange_mesh_does_not_stop_the_others(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """What nobody thought of is a failure of that mesh alone."""
    add(cluster, "strange")
    cluster.edit(
        MESHES.plural, "team", "strange", lambda mesh: mesh.update(spec={"podTemplate": {1, 2}})
    )
    add(cluster)
    run(operator, cluster, clock)
    assert condition(cluster)["reason"] == "AllReady"
    assert operator.counts.failures > 0


def test_warnings_of_the_cluster_are_asked_for(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """No pod can be made: after a while the events of the StatefulSet are read."""
    add(cluster)
    sync(operator)
    operator.lead()
    clock.advance(1)
    work(operator)
    found = get_set(cluster)
    about = {"kind": "StatefulSet", "name": "trainers", "uid": found["metadata"]["uid"]}
    event = {
        "metadata": {"name": "x"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": "exceeded quota",
        "involvedObject": about,
        "lastTimestamp": "2024-01-01T00:00:00Z",
    }
    cluster.put("events", event)
    for _ in range(60):
        sync(operator)
        operator.lead()
        work(operator)
        clock.advance(0.5)
    assert condition(cluster)["reason"] == "FailedCreate"
    assert "exceeded quota" in condition(cluster)["message"]


def test_a_server_that_is_away(cluster: Cluster, operator: Operator, clock: FakeClock) -> None:
    """What changed meanwhile is done when it is back, also when it has forgotten what happened."""
    settled(cluster, operator, clock)
    cluster.down = True
    run(operator, cluster, clock, 60)
    assert not operator.may_work()
    cluster.down = False
    edit_mesh(cluster, replicas=4)
    cluster.down = True
    run(operator, cluster, clock, 5)
    cluster.restart()
    run(operator, cluster, clock, 30)
    assert condition(cluster)["message"] == "4 of 4 hosts are ready"


# Who acts


def test_of_two_operators_one_acts(cluster: Cluster, clock: FakeClock) -> None:
    """The other one sees everything and writes nothing."""
    first, second = make_operator(cluster, clock), make_operator(cluster, clock, "second")
    run(first, cluster, clock, 1)
    add(cluster)
    for _ in range(40):
        for one in (first, second):
            sync(one)
            one.lead()
            work(one)
        cluster.settle()
        clock.advance(0.25)
    assert condition(cluster)["reason"] == "AllReady"
    assert (first.hands.writes > 0, second.hands.writes) == (True, 0)
    assert second.is_synced()
    assert not second.may_work()


def test_the_second_takes_over(cluster: Cluster, clock: FakeClock) -> None:
    """When the first one is gone, what it left undone is done."""
    first, second = make_operator(cluster, clock), make_operator(cluster, clock, "second")
    run(first, cluster, clock, 1)
    run(second, cluster, clock, 1)
    add(cluster)
    run(second, cluster, clock, DURATION_S - 5)
    assert "status" not in get_mesh(cluster)
    run(second, cluster, clock, 15)
    assert condition(cluster)["reason"] == "AllReady"
    assert second.counts.terms == 1


def test_an_operator_that_stops_lets_go(cluster: Cluster, clock: FakeClock) -> None:
    """The next one acts within seconds."""
    first, second = make_operator(cluster, clock), make_operator(cluster, clock, "second")
    run(first, cluster, clock, 1)
    first.stop()
    add(cluster)
    run(second, cluster, clock, 3)
    assert condition(cluster)["reason"] == "AllReady"
    assert not first.may_work()


def test_a_write_needs_the_lease_at_that_moment(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """An operator that was asleep for too long does nothing when it wakes up."""
    add(cluster)
    sync(operator)
    operator.lead()
    clock.advance(1)
    key = operator.queue.take()
    assert key is not None
    clock.advance(ACTS_S)
    operator.work(key)
    assert writes(cluster) == []
    run(operator, cluster, clock)
    assert condition(cluster)["reason"] == "AllReady"


def test_nobody_acts_before_everything_was_seen(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """What was not listed yet is not taken for missing."""
    add(cluster)
    operator.lead()
    assert operator.leadership.holds()
    assert not operator.may_work()
    for follower in operator.followers[:-1]:
        follower.step()
    assert not operator.may_work()
    operator.followers[-1].step()
    assert operator.may_work()


# Is it alive?


def test_a_program_that_hangs_is_noticed(
    cluster: Cluster, operator: Operator, clock: FakeClock
) -> None:
    """Whoever restarts programs learns of it; a server that is away is no reason."""
    cluster.down = True
    operator.lead()
    assert operator.find_ailment() == ""
    clock.advance(SILENT_S + 1)
    assert "lease was not looked at" in operator.find_ailment()
    operator.lead()
    operator._working["team", "x"] = clock()
    clock.advance(STUCK_S + 1)
    operator.lead()
    assert "stuck" in operator.find_ailment()


def test_running_by_threads(cluster: Cluster) -> None:
    """As in a pod: the same, by itself, until it is told to stop."""
    lock = threading.RLock()
    for name in ("get", "create", "replace", "patch"):
        setattr(cluster, name, locked(lock, getattr(cluster, name)))
    add(cluster)
    settings = Settings(identity="first", lease_namespace="system")
    operator = Operator(cluster, settings)  # type: ignore[arg-type]
    operator.start()
    done = threading.Event()
    for _ in range(400):
        with lock:
            cluster.settle()
            if get_mesh(cluster).get("status", {}).get("readyReplicas") == 2:
                break
        done.wait(0.05)
    operator.stop()
    assert condition(cluster)["reason"] == "AllReady"
    assert cluster.of_kind("leases")[0]["spec"]["holderIdentity"] == ""


def locked(lock: Any, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return call
