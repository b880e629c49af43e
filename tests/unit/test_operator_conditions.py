"""What a mesh tells of itself: ready or not, why not, and which host."""

from __future__ import annotations

import re
from typing import Any

import pytest

from milkweed.operator.conditions import is_told, make_status, read_condition
from milkweed.operator.definition import REASON
from milkweed.operator.objects import make_stateful_set
from milkweed.operator.pods import Ailment, find_ailment, find_worst, is_ready
from milkweed.operator.reconcile import Trouble, World
from unit.operator_runs import make_mesh

NOW = "2024-01-01T00:00:00Z"
UID = "pod-uid"


def stored(replicas: int = 2, **metadata: Any) -> dict[str, Any]:
    return make_mesh(replicas=replicas, **{"uid": "uid-1", "generation": 3, **metadata})


def make_set(mesh: dict[str, Any], ready: int, **status: Any) -> dict[str, Any]:
    """The StatefulSet of a mesh, with as many hosts ready."""
    found = make_stateful_set(mesh)
    found["metadata"] |= {"uid": "uid-7", "generation": 5}
    count = mesh["spec"]["replicas"]
    found["status"] = {
        "observedGeneration": 5,
        "replicas": count,
        "readyReplicas": ready,
        "updatedReplicas": count,
        "currentRevision": "r1",
        "updateRevision": "r1",
        **status,
    }
    return found


def make_pod(name: str = "trainers-1", phase: str = "Pending", **status: Any) -> dict[str, Any]:
    """A pod that is not ready."""
    owner = {"kind": "StatefulSet", "name": "trainers", "uid": "uid-7", "controller": True}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": UID, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "worker"}]},
        "status": {"phase": phase, **status},
    }


def waiting(reason: str, message: str = "", *, restarts: int = 0, last: Any = None) -> Any:
    """The status of a worker's container that does not run."""
    status: dict[str, Any] = {
        "name": "worker",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    if last:
        status["lastState"] = {"terminated": last}
    return status


SCHEDULED = [{"type": "PodScheduled", "status": "True"}]


def broken(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """A pod whose container does not run."""
    return make_pod(name, conditions=SCHEDULED, containerStatuses=[waiting(*args, **kwargs)])


def ready_pod(name: str) -> dict[str, Any]:
    return make_pod(name, "Running", conditions=[{"type": "Ready", "status": "True"}])


def unscheduled(name: str, reason: str = "Unschedulable", message: str = "") -> dict[str, Any]:
    said = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return make_pod(name, conditions=[said])


def warning(
    reason: str, message: str, *, kind: str = "Pod", uid: str = UID, count: int = 1
) -> dict[str, Any]:
    said = {"reason": reason, "message": message, "type": "Warning", "count": count}
    return {**said, "involvedObject": {"kind": kind, "uid": uid}}


def tell(world: World, trouble: Trouble | None = None, *, pending: bool = False) -> dict[str, Any]:
    """The condition that is told."""
    status = make_status(world, trouble, pending=pending, now=NOW)
    (condition,) = status["conditions"]
    return condition


# Ready, and not


def test_a_mesh_is_ready_when_all_hosts_are() -> None:
    """The words that programs wait for."""
    mesh = stored()
    status = make_status(World(mesh, make_set(mesh, 2)), None, pending=False, now=NOW)
    assert status == {
        "observedGeneration": 3,
        "replicas": 2,
        "readyReplicas": 2,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "AllReady",
                "message": "2 of 2 hosts are ready",
                "observedGeneration": 3,
                "lastTransitionTime": NOW,
            }
        ],
    }


def test_a_mesh_waits_for_its_hosts() -> None:
    """Some hosts are ready and none is in trouble."""
    mesh = stored()
    told = tell(World(mesh, make_set(mesh, 1)))
    assert (told["status"], told["reason"]) == ("False", "Waiting")
    assert told["message"] == "1 of 2 hosts are ready"


def test_a_new_mesh_waits() -> None:
    """Nothing is there yet."""
    told = tell(World(stored()))
    assert (told["status"], told["reason"]) == ("False", "Waiting")
    assert told["message"].startswith("0 of 2 hosts are ready")


def test_a_mesh_that_was_just_written_for_is_not_ready() -> None:
    """What was seen is from before the write, so it says nothing of after."""
    mesh = stored()
    assert tell(World(mesh, make_set(mesh, 2)), pending=True)["status"] == "False"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"observedGeneration": 4}, "Waiting"),
        ({"updateRevision": "r2", "updatedReplicas": 1}, "Updating"),
        ({"replicas": 3}, "Waiting"),
        ({"replicas": 1}, "Waiting"),
    ],
    ids=["change not seen yet", "rolling", "one too many", "one too few"],
)
def test_numbers_alone_are_not_ready(status: dict[str, Any], reason: str) -> None:
    """As many hosts as wanted are ready, and still the mesh is not what was asked for."""
    mesh = stored()
    told = tell(World(mesh, make_set(mesh, 2, **status)))
    assert (told["status"], told["reason"]) == ("False", reason)


def test_a_rollout_tells_how_far_it_is() -> None:
    """How many hosts have the new template."""
    mesh = stored(replicas=4)
    found = make_set(mesh, 3, updateRevision="r2", updatedReplicas=1)
    told = tell(World(mesh, found))
    assert told["message"] == "3 of 4 hosts are ready; 1 of them have the new pod template"


def test_a_foreign_stateful_set_is_not_counted() -> None:
    """Hosts of somebody else are not this mesh's."""
    mesh = stored()
    found = make_set(mesh, 2)
    found["metadata"]["ownerReferences"] = []
    status = make_status(World(mesh, found), Trouble("Conflict", "x"), pending=False, now=NOW)
    assert (status["replicas"], status["readyReplicas"]) == (0, 0)
    assert status["conditions"][0]["reason"] == "Conflict"


def test_a_refused_change_leaves_the_numbers() -> None:
    """The hosts that are there are counted though the change was not taken."""
    mesh = stored()
    world = World(mesh, make_set(mesh, 2))
    status = make_status(world, Trouble("Refused", "no"), pending=True, now=NOW)
    assert status["readyReplicas"] == 2
    assert status["conditions"][0]["status"] == "False"


# When it changed


def test_the_time_is_that_of_the_last_change() -> None:
    """Another reason for the same state is no change of state."""
    mesh = stored()
    old = {"type": "Ready", "status": "False", "reason": "X", "lastTransitionTime": "before"}
    mesh["status"] = {"conditions": [old]}
    assert tell(World(mesh, make_set(mesh, 1)))["lastTransitionTime"] == "before"
    assert tell(World(mesh, make_set(mesh, 2)))["lastTransitionTime"] == NOW


def test_conditions_of_others_stay() -> None:
    """Somebody else may tell something else of a mesh."""
    mesh = stored()
    theirs = {"type": "Admitted", "status": "True", "reason": "Kueue"}
    mesh["status"] = {"conditions": [theirs]}
    status = make_status(World(mesh, make_set(mesh, 2)), None, pending=False, now=NOW)
    assert [one["type"] for one in status["conditions"]] == ["Admitted", "Ready"]


def test_what_was_told_is_not_told_again() -> None:
    """Also where the definition of another operator has dropped the generation at the top."""
    mesh = stored()
    status = make_status(World(mesh, make_set(mesh, 2)), None, pending=False, now=NOW)
    assert not is_told(mesh, status)
    mesh["status"] = {key: value for key, value in status.items() if key != "observedGeneration"}
    assert is_told(mesh, status)
    mesh["metadata"]["generation"] = 4
    later = make_status(World(mesh, make_set(mesh, 2)), None, pending=False, now=NOW)
    assert not is_told(mesh, later)
    assert read_condition(mesh) == status["conditions"][0]


# Why not

NO_IMAGE = 'Back-off pulling image "nowhere/x:1": not found'
ENDED = {"reason": "Error", "exitCode": 3}
KILLED = {"reason": "OOMKilled", "exitCode": 137}
AILING = {
    "ImagePullBackOff": broken("trainers-1", "ImagePullBackOff", NO_IMAGE),
    "InvalidImageName": broken("trainers-1", "InvalidImageName", "couldn't parse"),
    "CreateContainerConfigError": broken("trainers-1", "CreateContainerConfigError", "no secret"),
    "CrashLoopBackOff": broken(
        "trainers-1", "CrashLoopBackOff", "back-off", restarts=4, last=ENDED
    ),
    "OOMKilled": broken("trainers-1", "CrashLoopBackOff", "back-off", restarts=2, last=KILLED),
    "Unschedulable": unscheduled("trainers-1", message="0/3 nodes: Insufficient nvidia.com/gpu"),
    "SchedulingGated": unscheduled("trainers-1", "SchedulingGated"),
    "Evicted": make_pod("trainers-1", "Failed", reason="Evicted", message="The node was low"),
}


@pytest.mark.parametrize("reason", AILING)
def test_the_reason_is_the_clusters_own_word(reason: str) -> None:
    """Each trouble is told by its word, with the pod's name and what the cluster says of it."""
    mesh = stored()
    told = tell(World(mesh, make_set(mesh, 1), None, [ready_pod("trainers-0"), AILING[reason]]))
    assert (told["status"], told["reason"]) == ("False", reason)
    assert f"1 of 2 hosts are ready; {reason} at trainers-1" in told["message"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ImagePullBackOff", "nowhere/x:1"),
        ("CrashLoopBackOff", "exit code 3"),
        ("OOMKilled", "more memory"),
        ("Unschedulable", "Insufficient nvidia.com/gpu"),
        ("Evicted", "The node was low"),
    ],
)
def test_the_message_says_what_the_cluster_said(reason: str, words: str) -> None:
    """Nobody needs to look at the pod itself."""
    mesh = stored()
    assert words in tell(World(mesh, make_set(mesh, 1), None, [AILING[reason]]))["message"]


def test_pulling_goes_back_and_forth_under_one_name() -> None:
    """Between two tries the cluster's word changes; the mesh's does not."""
    first = find_ailment(broken("trainers-1", "ErrImagePull", "not found"))
    then = find_ailment(broken("trainers-1", "ImagePullBackOff", "not found"))
    assert first is not None
    assert then is not None
    assert first.reason == then.reason == "ImagePullBackOff"


@pytest.mark.parametrize(
    "pod",
    [
        make_pod(),
        broken("trainers-1", "ContainerCreating"),
        broken("trainers-1", "PodInitializing"),
        ready_pod("trainers-1"),
        make_pod("trainers-1", "Running", conditions=[{"type": "Ready", "status": "False"}]),
    ],
    ids=["new", "creating", "initializing", "ready", "running"],
)
def test_what_every_pod_goes_through_is_no_trouble(pod: dict[str, Any]) -> None:
    """A host that only takes its time is waited for."""
    assert find_ailment(pod) is None


def test_a_pod_that_leaves_is_no_trouble() -> None:
    """Hosts that are given back end somehow, and nobody need know."""
    pod = broken("trainers-1", "CrashLoopBackOff", last=ENDED)
    pod["metadata"]["deletionTimestamp"] = NOW
    assert find_ailment(pod) is None


def test_a_volume_that_cannot_be_mounted_is_in_the_events() -> None:
    """Of a pod that never begins only events tell."""
    pod = broken("trainers-1", "ContainerCreating")
    found = find_ailment(pod, [warning("FailedMount", 'secret "keys" not found')])
    assert found is not None
    assert found.reason == "FailedMount"
    assert 'secret "keys" not found' in found.message


def test_a_host_that_does_not_answer_its_probe() -> None:
    """It runs, and the events say that it is not well."""
    running = {"name": "worker", "ready": False, "restartCount": 0, "state": {"running": {}}}
    conditions = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]
    pod = make_pod("trainers-1", "Running", conditions=conditions, containerStatuses=[running])
    found = find_ailment(pod, [warning("Unhealthy", "Readiness probe failed: refused", count=3)])
    assert found is not None
    assert found.reason == "NotReady"
    assert "Readiness probe failed" in found.message
    assert find_ailment(pod, [warning("Unhealthy", "x", uid="another", count=3)]) is None
    assert find_ailment(pod, [warning("Unhealthy", "x", count=2)]) is None


def test_hosts_that_cannot_even_be_made() -> None:
    """A quota, or a rule of the namespace: there is no pod, only an event of the StatefulSet."""
    mesh = stored()
    said = "create Pod trainers-0 failed: exceeded quota: team"
    events = [warning("FailedCreate", said, kind="StatefulSet", uid="uid-7")]
    told = tell(World(mesh, make_set(mesh, 0, replicas=0), None, [], events))
    assert (told["reason"], said in told["message"]) == ("FailedCreate", True)


def test_old_events_are_nothing_once_all_hosts_have_a_pod() -> None:
    """The quota was raised since."""
    mesh = stored()
    events = [warning("FailedCreate", "x", kind="StatefulSet", uid="uid-7")]
    pods = [ready_pod("trainers-0"), ready_pod("trainers-1")]
    assert tell(World(mesh, make_set(mesh, 2), None, pods, events))["reason"] == "AllReady"


# Of many, one


def test_the_worst_is_told_with_how_many_have_it() -> None:
    """What needs a person most comes first, then the host with the lowest number."""
    mesh = stored(replicas=12)
    pods = [unscheduled("trainers-2")]
    for index in (10, 3):
        pod = broken(f"trainers-{index}", "ImagePullBackOff", "not found")
        pods.append(pod)
    told = tell(World(mesh, make_set(mesh, 9), None, pods))
    assert told["reason"] == "ImagePullBackOff"
    assert "ImagePullBackOff at 2 hosts, first trainers-3" in told["message"]


def test_nothing_is_the_worst_of_nothing() -> None:
    """No host is in trouble."""
    assert find_worst([]) is None


def test_an_unknown_word_counts_as_an_error() -> None:
    """Words of a cluster of tomorrow are told, after what is known to be worse."""
    new, known = Ailment("a-0", 0, "BrandNew"), Ailment("a-1", 1, "OOMKilled")
    assert find_worst([new, known]) == (known, 1)
    assert find_worst([new, Ailment("a-2", 2, "Unschedulable")]) == (new, 1)


@pytest.mark.parametrize(
    ("word", "spelled"),
    [("Error", "Error"), ("exit-code 3", "exitcode3"), ("3x", "x"), ("", "Error"), ("é", "Error")],
)
def test_reasons_are_spelled_as_the_cluster_asks(word: str, spelled: str) -> None:
    """Whatever a pod's status says, the mesh's status is taken."""
    told = tell(World(stored()), Trouble(word, "x"))
    assert told["reason"] == spelled
    assert re.fullmatch(REASON, told["reason"])


def test_a_long_message_is_cut() -> None:
    """A pod may say much; a condition is read by people."""
    mesh = stored()
    pod = broken("trainers-1", "ImagePullBackOff", "not found " * 1000)
    assert len(tell(World(mesh, make_set(mesh, 1), None, [pod]))["message"]) < 1000


def test_ready_pods_are_ready() -> None:
    """As the cluster says."""
    assert is_ready(ready_pod("trainers-0"))
    assert not is_ready(make_pod())


def test_long_messages_are_cut() -> None:
    """The API server may have much to say, and the definition takes only so much."""
    status = make_status(World(stored()), Trouble("Refused", "x" * 100_000), pending=True, now=NOW)
    assert len(status["conditions"][0]["message"]) == 2000
