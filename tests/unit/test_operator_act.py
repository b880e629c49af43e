"""The operator's hands and its memory: every write is allowed at that moment, and none is in vain."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.kube.api import ApiError
from milkweed.kube.resources import EVENTS, MESHES, SERVICES, STATEFUL_SETS
from milkweed.operator.act import Hands, NotLeadingError
from milkweed.operator.lease import utc_now
from milkweed.operator.memory import FIRST_PAUSE_S, QUIET_S, SLOWEST_PAUSE_S, Memory
from milkweed.operator.reconcile import Action
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster, refuse
from unit.operator_runs import START, make_mesh


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def mesh(cluster: Cluster) -> dict[str, Any]:
    made = cluster.create(MESHES, "team", make_mesh())
    cluster.writes.clear()
    return made


def make_hands(cluster: Cluster, *, may_act: bool = True) -> Hands:
    return Hands(cluster, lambda: may_act, lambda: START)  # type: ignore[arg-type]


def make_action(reason: str = "Created", wanted: str = "w", seen: str = "", **meta: Any) -> Action:
    body = {
        "kind": "Service",
        "metadata": {"name": "x-svc", "namespace": "team", **meta},
        "spec": {},
    }
    return Action(SERVICES, body, reason, "words", wanted, seen)


# Writing


def test_objects_are_made_and_changed(cluster: Cluster) -> None:
    """What comes back is what the cluster has then."""
    hands = make_hands(cluster)
    made = hands.write(make_action())
    assert made["metadata"]["uid"]
    changed = hands.write(make_action("Repaired", **made["metadata"] | {"labels": {"a": "b"}}))
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert hands.writes == 2


def test_a_change_of_something_that_changed_meanwhile_is_refused(cluster: Cluster) -> None:
    """What was seen is not what is there: look again."""
    hands = make_hands(cluster)
    made = hands.write(make_action())
    cluster.edit("services", "team", "x-svc", lambda found: found["spec"].update(a=1))
    with pytest.raises(ApiError) as caught:
        hands.write(make_action("Repaired", **made["metadata"]))
    assert caught.value.status == 409


def test_without_the_lease_nothing_is_written(cluster: Cluster, mesh: Any) -> None:
    """Neither objects nor statuses nor events."""
    hands = make_hands(cluster, may_act=False)
    writes = (
        lambda: hands.write(make_action()),
        lambda: hands.tell(mesh, {"replicas": 1}),
        lambda: hands.note(mesh, "A", "b"),
    )
    for write in writes:
        with pytest.raises(NotLeadingError):
            write()
    assert cluster.writes == []
    assert hands.writes == 0


def test_the_status_is_all_that_is_told(cluster: Cluster, mesh: Any) -> None:
    """The spec is people's own."""
    told = make_hands(cluster).tell(mesh, {"replicas": 1})
    assert told["status"] == {"replicas": 1}
    assert told["spec"] == mesh["spec"]
    assert cluster.writes == [("patch status", "monarchmeshes", "trainers")]


# Events


def test_an_event_is_about_its_mesh(cluster: Cluster, mesh: Any) -> None:
    """So that `kubectl describe` shows it."""
    make_hands(cluster).note(mesh, "Conflict", "there is another", warning=True)
    (event,) = cluster.of_kind("events")
    assert event["involvedObject"]["uid"] == mesh["metadata"]["uid"]
    assert event["involvedObject"]["kind"] == "MonarchMesh"
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "Conflict", 1)
    assert event["source"] == {"component": "milkweed-operator"}


def test_the_same_event_is_counted(cluster: Cluster, mesh: Any) -> None:
    """A mesh that goes back and forth fills nobody's list."""
    hands = make_hands(cluster)
    for _ in range(3):
        hands.note(mesh, "A", "same")
    hands.note(mesh, "A", "other")
    counts = sorted(event["count"] for event in cluster.of_kind("events"))
    assert counts == [1, 3]


def test_an_event_that_is_not_taken_is_told(cluster: Cluster, mesh: Any) -> None:
    """Whoever calls decides whether that matters."""

    def forbid(_plural: str, _body: Any) -> None:
        raise refuse(403, "Forbidden")

    cluster.admit = forbid
    with pytest.raises(ApiError):
        make_hands(cluster).note(mesh, "A", "b")


def test_a_long_message_is_cut(cluster: Cluster, mesh: Any) -> None:
    """The cluster takes a thousand characters."""
    make_hands(cluster).note(mesh, "A", "x" * 5000)
    assert len(cluster.of_kind("events")[0]["message"]) == 1000


# Looking


def test_looking_for_what_is_not_there(cluster: Cluster) -> None:
    """None is an answer; other errors are not."""
    hands = make_hands(cluster)
    assert hands.look(SERVICES, "team", "x") is None
    cluster.down = True
    with pytest.raises(Exception, match="does not answer"):
        hands.look(SERVICES, "team", "x")


def test_rights_that_are_missing_are_no_absence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may not be seen is not taken for missing."""

    def forbid(*_args: object) -> None:
        raise refuse(403, "Forbidden")

    monkeypatch.setattr(cluster, "get", forbid)
    with pytest.raises(ApiError):
        make_hands(cluster).look(SERVICES, "team", "x")


def put_event(cluster: Cluster, name: str, uid: str, **times: Any) -> None:
    about = {"kind": "Pod", "name": "p-0", "uid": uid}
    cluster.put(
        EVENTS.plural,
        {"metadata": {"name": name}, "type": "Warning", "involvedObject": about, **times},
    )


def test_warnings_come_in_order(cluster: Cluster) -> None:
    """The newest last, however its time is written; those of an earlier pod of the name are left out."""
    put_event(cluster, "b", "u", lastTimestamp="2024-01-01T00:00:05Z")
    put_event(cluster, "a", "u", eventTime="2024-01-01T00:00:07.123456Z")
    put_event(
        cluster,
        "c",
        "u",
        eventTime="2024-01-01T00:00:01.000000Z",
        series={"lastObservedTime": "2024-01-01T00:00:09.000000Z"},
    )
    put_event(cluster, "d", "earlier", lastTimestamp="2024-01-01T00:00:59Z")
    found = make_hands(cluster).look_for_warnings("team", "Pod", "p-0", "u")
    assert [event["metadata"]["name"] for event in found] == ["b", "a", "c"]


# Memory


@pytest.fixture
def memory(clock: FakeClock) -> Memory:
    return Memory(clock)


def test_the_first_write_needs_no_pause(memory: Memory) -> None:
    """Nor is it in vain."""
    assert memory.wait_s(make_action()) == 0
    assert not memory.is_futile(make_action("Repaired", seen="s"))


def test_what_is_undone_is_done_again_ever_later(memory: Memory, clock: FakeClock) -> None:
    """Twice as long each time, up to a limit."""
    pauses = []
    for _ in range(12):
        memory.remember(make_action(), changed=True)
        pauses.append(memory.wait_s(make_action()))
        clock.advance(pauses[-1])
        assert memory.wait_s(make_action()) == 0
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == SLOWEST_PAUSE_S


def test_another_wish_is_no_repair(memory: Memory) -> None:
    """People may change their minds as fast as they like."""
    for wanted in ("a", "b", "a", "b"):
        assert memory.wait_s(make_action(wanted=wanted)) == 0
        memory.remember(make_action(wanted=wanted), changed=True)


def test_after_some_quiet_the_next_repair_is_a_first_one(memory: Memory, clock: FakeClock) -> None:
    """Whoever meddled has stopped."""
    for _ in range(5):
        memory.remember(make_action(), changed=True)
    clock.advance(QUIET_S)
    memory.remember(make_action(), changed=True)
    assert memory.wait_s(make_action()) == FIRST_PAUSE_S


def test_a_write_that_changed_nothing_is_in_vain(memory: Memory) -> None:
    """Until something else is there, or something else is wanted."""
    action = make_action("Repaired", seen="s")
    memory.remember(action, changed=False)
    assert memory.is_futile(action)
    assert not memory.is_futile(make_action("Repaired", seen="t"))
    assert not memory.is_futile(make_action("Repaired", wanted="v", seen="s"))


def test_making_an_object_is_never_in_vain(memory: Memory) -> None:
    """What is not there is made."""
    memory.remember(make_action(), changed=True)
    assert not memory.is_futile(make_action())


def test_a_mesh_that_is_gone_is_forgotten(memory: Memory) -> None:
    """One that is made anew under its name begins anew."""
    metadata = {"name": "x", "namespace": "team"}
    other = Action(STATEFUL_SETS, {"kind": "StatefulSet", "metadata": metadata}, "Created", "", "w")
    for action in (make_action(), other):
        memory.remember(action, changed=True)
    memory.forget(("team", "x"))
    assert memory.wait_s(make_action()) == memory.wait_s(other) == 0
    assert memory._written == {}


def test_the_time_of_day_has_a_zone() -> None:
    """Times that are told can be compared."""
    assert utc_now().tzinfo is not None
