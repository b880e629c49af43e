"""The operator when something goes wrong, on a cluster in memory: it is told, and nothing else suffers."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from milkweed.kube.resources import MESHES, SERVICES, STATEFUL_SETS
from milkweed.operator.lease import ACTS_S, DURATION_S
from milkweed.operator.loop import SILENT_S, STUCK_S, Operator, Settings
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster, refuse
from unit.operator_runs import (
    add,
    condition,
    edit_mesh,
    get_mesh,
    get_set,
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
    """Once, in the cluster's own words, and those not in the log; the tries become rare."""

    def forbid(plural: str, _body: Any) -> None:
        if plural == STATEFUL_SETS.plural:
            raise refuse(422, "Invalid", 'spec.template: Invalid value: "x"')

    lines: list[str] = []
    operator._log = lines.append
    cluster.admit = forbid
    add(cluster)
    run(operator, cluster, clock, 600)
    assert condition(cluster)["reason"] == "Refused"
    assert any("a mesh is refused" in line for line in lines)
    assert "Invalid value" not in "".join(lines)
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
        MESHES.plural,
        "team",
        "strange",
        lambda mesh: mesh["metadata"].update(annotations={"set": {1, 2}}),
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


def test_one_that_waits_keeps_nothing_in_mind(cluster: Cluster, clock: FakeClock) -> None:
    """Meshes come and go for months while another operator acts."""
    first, second = make_operator(cluster, clock), make_operator(cluster, clock, "second")
    run(first, cluster, clock, 1)
    for index in range(5):
        add(cluster, f"mesh{index}")
        cluster.remove(MESHES.plural, "team", f"mesh{index}")
    run(second, cluster, clock, 4)
    second.lead()
    assert (len(second.queue), second.counts.terms) == (0, 0)


def test_one_that_lost_the_lease_forgets_what_it_did(cluster: Cluster, clock: FakeClock) -> None:
    """When it acts again, everything is looked at anew."""
    first = make_operator(cluster, clock)
    settled(cluster, first, clock)
    cluster.edit("leases", "system", "milkweed-operator", take_lease)
    run(first, cluster, clock, 4)
    assert not first.may_work()
    assert first.controller._memory._written == {}
    edit_mesh(cluster, replicas=3)
    run(first, cluster, clock, DURATION_S + 10)
    assert condition(cluster)["message"] == "3 of 3 hosts are ready"


def take_lease(lease: Any) -> None:
    lease["spec"]["holderIdentity"] = "somebody"


def test_trouble_with_the_lease_is_told_once(cluster: Cluster, clock: FakeClock) -> None:
    """Not every three seconds."""
    lines: list[str] = []
    operator = make_operator(cluster, clock)
    operator._log = lines.append
    cluster.down = True
    for _ in range(5):
        operator.lead()
    cluster.down = False
    operator.lead()
    cluster.down = True
    operator.lead()
    assert [line.partition(":")[0] for line in lines] == [
        "lease",
        "first acts from now on",
        "lease",
    ]


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


def test_a_thread_that_ends_is_noticed(operator: Operator) -> None:
    """Without one of them meshes would be left alone for ever."""
    gone = threading.Thread(target=lambda: None)
    gone.start()
    gone.join()
    operator.lead()
    operator._threads.append(gone)
    assert operator.find_ailment() == "a thread has ended"


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
