"""What the operator says of a mesh, as a client tells it: why pods wait that tell nothing themselves."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.backends.kubernetes import cluster
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.backends.kubernetes.reasons import describe_pod
from milkweed.backends.kubernetes.told import NOTHING, Told, read_told, trim_mesh
from milkweed.bell import Bell
from milkweed.kube.resources import MESHES
from milkweed.operator.conditions import make_status
from milkweed.operator.reconcile import Trouble, World
from milkweed.status import HostState, Liveness
from unit.kubernetes_jobs import Space, make_pod, make_spec, mesh_name, submit

PODS_OF_W = [f"{mesh_name()}-0", f"{mesh_name()}-1"]
NO_VOLUME = 'MountVolume.SetUp failed for volume "s" : secret "nope" not found'
QUOTA = 'create Pod w-0 in StatefulSet w failed error: pods "w-0" is forbidden: exceeded quota: q'
SECURITY = 'pods "w-0" is forbidden: violates PodSecurity "restricted:latest": privileged'
COUNT = "0 of 2 hosts are ready; "


def tell(space: Space, reason: str, message: str, mesh: str = "w") -> None:
    """The operator says why a mesh is not ready."""
    found = space.get(MESHES, "lab", mesh_name(mesh))
    status = make_status(World(found), Trouble(reason, message), pending=False, now="now")
    space.patch(MESHES, "lab", mesh_name(mesh), {"status": status}, sub="status")


CREATE = "create Pod w-0 in StatefulSet w failed error:"
FORBIDDEN = 'pods "w-0" is forbidden'
NO_ACCOUNT = (
    f'{FORBIDDEN}: error looking up service account lab/{{0}}: serviceaccount "{{0}}" not found'
)
TOO_LONG = 'metadata.labels: Invalid value: "w-5d4": must be no more than 63 characters'


def creating(space: Space, name: str) -> None:
    """A pod that is on a node, and says nothing."""
    conditions = [{"type": "PodScheduled", "status": "True"}]
    space.add_pod(name, phase="Pending", status={"conditions": conditions})


@pytest.mark.parametrize(("reason", "message"), [("FailedCreate", QUOTA), ("Odd", "no idea")])
def test_why_pods_are_not_there(space: Space, reason: str, message: str) -> None:
    """A quota may be free later, so it is waited for, and told."""
    handle = submit()
    tell(space, reason, COUNT + message)
    status = KubernetesBackend().poll(handle)
    assert status.liveness is Liveness.PENDING
    assert status.reason == f"0 of 2 pods run; w/0: {reason}: {message}"
    assert status.hosts == ()


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Refused", "the API server does not take StatefulSet: spec.x is invalid"),
        ("Conflict", "Service w-svc is there already and does not belong to this mesh"),
        ("FailedCreate", SECURITY),
        ("FailedCreate", f"{CREATE} {NO_ACCOUNT.format('nobody')}"),
        ("FailedCreate", f"{CREATE} {FORBIDDEN}: no PriorityClass with name high was found"),
        ("FailedCreate", f'{CREATE} {FORBIDDEN}: pod rejected: RuntimeClass "kata" not found'),
        ("FailedCreate", f'{CREATE} Pod "w-0" is invalid: {TOO_LONG}'),
        ("FailedMount", f"FailedMount at {mesh_name()}-0: a volume cannot be mounted: {NO_VOLUME}"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_what_a_person_must_change_is_not_waited_for(
    space: Space, reason: str, message: str, *, there: bool
) -> None:
    """Every host that waits is lost, with the operator's words."""
    handle = submit()
    if there:
        creating(space, PODS_OF_W[0])
    tell(space, reason, COUNT + message)
    lost = KubernetesBackend().glance(handle).failed_hosts
    assert [host.host for host in lost] == ["w/0", "w/1"]
    for host in lost:
        assert message in host.reason
        assert host.reason.count(f"{reason}") == 1


def test_pods_that_run_are_not_lost_by_what_is_said_of_their_mesh(space: Space) -> None:
    """It is about those that wait; a pod with words of its own keeps them."""
    handle = submit(make_spec({"w": 3}))
    space.add_pod(PODS_OF_W[0])
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no cpu",
    }
    space.add_pod(PODS_OF_W[1], phase="Pending", status={"conditions": [why]})
    tell(space, "Conflict", "somebody else's")
    status = KubernetesBackend().glance(handle)
    assert status.liveness is Liveness.RUNNING
    assert "w/1: Unschedulable" in status.reason
    assert [host.host for host in status.failed_hosts] == ["w/2"]


def test_a_host_that_waits_says_why_while_others_run(space: Space) -> None:
    """`status` shows it host by host."""
    handle = submit()
    space.add_pod(PODS_OF_W[0], ready=False, phase="Running")
    tell(space, "FailedCreate", COUNT + QUOTA)
    [first, second] = KubernetesBackend().poll(handle).hosts
    assert first.state is HostState.STARTING
    assert (second.state, second.reason) == (
        HostState.STARTING,
        f"it has no pod; FailedCreate: {QUOTA}",
    )


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Refused", "the API server does not take StatefulSet: exceeded quota: few"),
        ("Refused", "the API server does not take StatefulSet: failed calling webhook x"),
        ("FailedMount", "object not registered"),
        ("FailedMount", "timed out waiting for the condition: secret not found"),
        ("FailedMount", 'configmap "kube-root-ca.crt" not found'),
        ("FailedMount", 'secret "milkweed-0a1b2c3d-hosts" not found'),
        ("FailedMount", 'secrets "milkweed-0a1b2c3d-hosts" is forbidden: may not read'),
        (
            "FailedMount",
            "driver name ebs.csi.aws.com not found in the list of registered CSI drivers",
        ),
        (
            "FailedMount",
            "secrets \"s\" is forbidden: no relationship found between node 'n' and it",
        ),
        ("FailedCreate", QUOTA),
        ("FailedCreate", f"{CREATE} {NO_ACCOUNT.format('default')}"),
    ],
)
def test_what_may_get_better_is_waited_for(reason: str, message: str) -> None:
    """A place may become free, and a volume come."""
    assert not Told(reason, message).hopeless


def test_what_is_said_of_an_earlier_wish_is_over() -> None:
    """The operator has not looked at the mesh since it was changed; or it is well, or only takes its time."""
    condition = {"type": "Ready", "status": "False", "reason": "Refused", "observedGeneration": 1}

    def mesh(generation: int = 1, **change: Any) -> dict[str, Any]:
        conditions = [{**condition, **change}]
        return {"metadata": {"generation": generation}, "status": {"conditions": conditions}}

    assert read_told(mesh()) == Told("Refused", "")
    assert read_told(trim_mesh(mesh())) == Told("Refused", "")
    for found in (
        mesh(2),
        mesh(status="True"),
        mesh(reason="Waiting"),
        mesh(reason="Updating"),
        {},
    ):
        assert read_told(found) == NOTHING
        assert read_told(trim_mesh(found)) == NOTHING


def test_a_mesh_in_trouble_rings() -> None:
    """Whoever waits looks at once; a mesh that only counts its hosts wakes nobody."""
    bell = Bell()

    def mesh(reason: str, message: str = "") -> dict[str, Any]:
        told = {"type": "Ready", "status": "False", "reason": reason, "message": message}
        return {"metadata": {}, "status": {"conditions": [told]}}

    cluster.ring(mesh("Waiting"), mesh("Waiting", "1 of 2"), bell)
    cluster.ring(mesh("Waiting"), mesh("Updating"), bell)
    assert not bell.wait(0)
    cluster.ring(mesh("Waiting"), mesh("Refused"), bell)
    assert bell.wait(0)


@pytest.mark.parametrize(
    ("begun", "word"), [("False", "FailedMount"), ("True", "ContainerCreating")]
)
def test_a_volume_that_is_mounted_is_told_no_more(begun: str, word: str) -> None:
    """What a node said before it went on is over: the image is pulled now, which may take long."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": begun},
    ]
    status = {"conditions": conditions}
    pod = make_pod("w-0", labels={}, phase="Pending", uid="u", status=status)
    event = {
        "type": "Warning", "reason": "FailedMount", "message": NO_VOLUME,
        "involvedObject": {"kind": "Pod", "name": "w-0", "uid": "u"},
    }  # fmt: skip
    assert describe_pod(pod, events=[event]).word == word
