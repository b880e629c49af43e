"""Decisions: what is written for a mesh, and above all what is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.kube.resources import SERVICES, STATEFUL_SETS
from milkweed.operator.objects import HASH, PASSED_ON, make_service, make_stateful_set
from milkweed.operator.reconcile import Decision, World, decide, merge
from unit.operator_runs import make_mesh, make_template


def stored(replicas: int = 2, **metadata: Any) -> dict[str, Any]:
    return make_mesh(replicas=replicas, **{"uid": "uid-1", "generation": 1, **metadata})


def as_stored(made: dict[str, Any]) -> dict[str, Any]:
    """An object as the cluster gives it back: with more in it."""
    found = copy.deepcopy(made)
    found["metadata"] |= {"uid": "uid-7", "resourceVersion": "9", "generation": 1}
    found["spec"]["revisionHistoryLimit"] = 10
    if "template" in found["spec"]:
        found["spec"]["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "schedulerName": "x"}
    return found


def settled(mesh: dict[str, Any]) -> World:
    """A world that is as the mesh says."""
    return World(mesh, as_stored(make_stateful_set(mesh)), as_stored(make_service(mesh)))


def reasons(decision: Decision) -> list[tuple[str, str]]:
    return [(action.resource.plural, action.reason) for action in decision.actions]


def test_a_new_mesh_gets_a_service_and_a_stateful_set() -> None:
    """The Service first, so that hosts have names when they start."""
    decision = decide(World(stored()))
    assert reasons(decision) == [("services", "Created"), ("statefulsets", "Created")]
    assert all(action.creates for action in decision.actions)
    assert decision.trouble is None


def test_a_world_that_is_right_is_left_alone() -> None:
    """Nothing is written, whatever the cluster has filled in."""
    assert decide(settled(stored())) == Decision(actions=[])


def test_only_what_is_missing_is_made() -> None:
    """A Service that somebody deleted comes back, and the hosts go on."""
    whole = settled(stored())
    decision = decide(World(whole.mesh, whole.stateful_set, None))
    assert reasons(decision) == [("services", "Created")]


def test_a_mesh_that_leaves_is_left_alone() -> None:
    """Nothing is made for a mesh that is being deleted."""
    mesh = stored(deletionTimestamp="2024-01-01T00:00:00Z")
    assert decide(World(mesh)) == Decision()


# Changes


def test_more_hosts() -> None:
    """Another number changes the number, and no host that is there."""
    world = settled(stored())
    mesh = stored(replicas=5)
    (action,) = decide(World(mesh, world.stateful_set, world.service)).actions
    assert (action.reason, action.message) == (
        "Scaled",
        "StatefulSet trainers goes from 2 to 5 hosts",
    )
    assert action.body["spec"]["replicas"] == 5
    assert action.body["spec"]["template"] == world.stateful_set["spec"]["template"]
    assert action.body["metadata"]["resourceVersion"] == "9"


def test_another_template() -> None:
    """The template is replaced as a whole: what is not in the new one is gone."""
    mesh = stored()
    mesh["spec"]["podTemplate"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    before = settled(mesh)
    after = stored()
    (action,) = decide(World(after, before.stateful_set, before.service)).actions
    assert action.reason == "TemplateChanged"
    assert "env" not in action.body["spec"]["template"]["spec"]["containers"][0]
    assert action.body["spec"]["template"] == make_stateful_set(after)["spec"]["template"]


def test_another_port() -> None:
    """The Service is changed, and nobody is restarted for it."""
    world = settled(stored())
    mesh = stored()
    mesh["spec"]["port"] = 1234
    (action,) = decide(World(mesh, world.stateful_set, world.service)).actions
    assert (action.resource, action.reason) == (SERVICES, "Repaired")
    assert action.body["spec"]["ports"][0]["targetPort"] == 1234


def test_labels_come_and_go_with_the_mesh() -> None:
    """A label that the mesh has no more is removed; those of others stay."""
    world = settled(stored(labels={"queue": "a", "old": "x"}, annotations={"note": "1"}))
    found = world.stateful_set
    found["metadata"]["labels"]["theirs"] = "stays"
    found["metadata"]["annotations"]["theirs"] = "stays"
    (action,) = decide(World(stored(labels={"queue": "b"}), found, world.service)).actions
    metadata = action.body["metadata"]
    assert metadata["labels"]["queue"] == "b"
    assert "old" not in metadata["labels"]
    assert "note" not in metadata["annotations"]
    assert (metadata["labels"]["theirs"], metadata["annotations"]["theirs"]) == ("stays", "stays")
    assert action.body["spec"]["template"] == found["spec"]["template"]


# Repairs


def drift(change: Callable[[Any], object]) -> Decision:
    world = settled(stored())
    change(world)
    return decide(world)


DRIFTS: dict[str, Callable[[Any], object]] = {
    "image": lambda w: w.stateful_set["spec"]["template"]["spec"]["containers"][0].update(
        image="x"
    ),
    "strategy": lambda w: w.stateful_set["spec"].update(updateStrategy={"type": "OnDelete"}),
    "pod label": lambda w: w.stateful_set["spec"]["template"]["metadata"]["labels"].clear(),
    "label": lambda w: w.stateful_set["metadata"]["labels"].pop("monarch.pytorch.org/mesh-name"),
    "port": lambda w: w.service["spec"]["ports"][0].update(port=1),
    "selector": lambda w: w.service["spec"]["selector"].update(another="x"),
    "not published": lambda w: w.service["spec"].update(publishNotReadyAddresses=False),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_what_somebody_changed_is_put_right(name: str) -> None:
    """Each thing that the operator decides is as it should be again, by one write."""
    (action,) = drift(DRIFTS[name]).actions
    assert action.reason == "Repaired"
    resource = "service" if action.resource == SERVICES else "stateful_set"
    world = settled(stored())
    assert (
        decide(
            World(
                world.mesh,
                **{"stateful_set": world.stateful_set, "service": world.service}
                | {resource: action.body},
            )
        ).actions
        == []
    )


def test_a_scaled_stateful_set_is_scaled_back() -> None:
    """The mesh says how many hosts there are."""
    (action,) = drift(lambda w: w.stateful_set["spec"].update(replicas=9)).actions
    assert action.message == "StatefulSet trainers goes from 9 to 2 hosts"


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["metadata"].update(annotations={"kubectl.kubernetes.io/restartedAt": "now"}),
        lambda t: t["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"}),
        lambda t: t["spec"]["containers"].append({"name": "sidecar", "image": "y"}),
        lambda t: t["spec"]["containers"][0].update(env=[{"name": "INJECTED", "value": "1"}]),
        lambda t: t["spec"].update(schedulingGates=[{"name": "kueue"}]),
    ],
    ids=["rollout restart", "kueue's label", "sidecar", "variable", "gate"],
)
def test_what_others_add_to_a_template_stays(change: Callable[[Any], object]) -> None:
    """A restart that somebody asked for, a queue's marks and a mesh's sidecar restart nobody once more."""
    assert drift(lambda w: change(w.stateful_set["spec"]["template"])).actions == []


def test_scaling_keeps_what_others_added() -> None:
    """What a webhook put into the template is still there after scaling."""
    world = settled(stored())
    world.stateful_set["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})
    (action,) = decide(World(stored(replicas=3), world.stateful_set, world.service)).actions
    assert action.body["spec"]["template"]["spec"]["containers"][-1] == {"name": "sidecar"}


def test_merging_changes_nothing_that_was_seen() -> None:
    """What was seen is as it was before."""
    world = settled(stored())
    before = copy.deepcopy(world.stateful_set)
    merge(world.stateful_set, make_stateful_set(stored(replicas=7)))
    assert world.stateful_set == before


# Taking over


def of_other_operator(mesh: dict[str, Any]) -> dict[str, Any]:
    """The StatefulSet as the other operator makes it: its own hash, and no note of ours."""
    found = as_stored(make_stateful_set(mesh))
    annotations = found["metadata"]["annotations"]
    annotations[HASH] = "0123"
    del annotations[PASSED_ON]
    return found


def test_meshes_of_another_operator_are_taken_over() -> None:
    """Their hosts keep running: the template that is written is the one that is there."""
    mesh = stored()
    found = of_other_operator(mesh)
    (action,) = decide(World(mesh, found, as_stored(make_service(mesh)))).actions
    assert action.reason == "Adopted"
    assert action.body["spec"]["template"] == make_stateful_set(mesh)["spec"]["template"]
    assert decide(World(mesh, action.body, as_stored(make_service(mesh)))).actions == []


def test_their_service_learns_to_name_hosts_early() -> None:
    """It did not publish hosts that are not ready; now it does."""
    mesh = stored()
    service = as_stored(make_service(mesh))
    del service["spec"]["publishNotReadyAddresses"]
    (action,) = decide(World(mesh, as_stored(make_stateful_set(mesh)), service)).actions
    assert action.message.endswith("spec.publishNotReadyAddresses")


# What must not be touched


@pytest.mark.parametrize("kind", ["stateful_set", "service"])
def test_objects_of_others_are_left_alone(kind: str) -> None:
    """A foreign object of the same name stops everything, and its name is told."""
    world = settled(stored())
    getattr(world, kind)["metadata"]["ownerReferences"] = []
    decision = decide(world)
    assert decision.actions == ()
    assert decision.trouble is not None
    assert decision.trouble.reason == "Conflict"
    assert "does not belong to this mesh" in decision.trouble.message


def test_one_foreign_object_is_enough() -> None:
    """No StatefulSet is made whose Service would be somebody else's."""
    service = {"kind": "Service", "metadata": {"name": "trainers-svc"}, "spec": {}}
    decision = decide(World(stored(), None, service))
    assert decision.actions == ()
    assert decision.trouble is not None
    assert decision.trouble.message.startswith("Service trainers-svc is there already")


@pytest.mark.parametrize("leaving", [True, False])
def test_an_earlier_meshs_objects_are_waited_for(leaving: bool) -> None:
    """Made anew under the same name, a mesh waits until the cluster has removed the old hosts."""
    world = settled(stored())
    if leaving:
        world.stateful_set["metadata"]["deletionTimestamp"] = "now"
    else:
        world.stateful_set["metadata"]["ownerReferences"][0]["uid"] = "uid-0"
    decision = decide(world)
    assert decision.actions == ()
    assert decision.trouble is not None
    assert decision.trouble.reason == "Waiting"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("stateful_set", "serviceName", "another"),
        ("stateful_set", "podManagementPolicy", "OrderedReady"),
        ("stateful_set", "selector", {"matchLabels": {"app.kubernetes.io/name": "x"}}),
        ("service", "clusterIP", "10.0.0.1"),
    ],
)
def test_what_cannot_be_changed_is_told(kind: str, field: str, value: Any) -> None:
    """What the cluster never lets anybody change is left alone, with what to do."""
    world = settled(stored())
    getattr(world, kind)["spec"][field] = value
    decision = decide(world)
    assert decision.actions == ()
    assert decision.trouble is not None
    assert decision.trouble.reason == "Conflict"
    assert f"spec.{field}" in decision.trouble.message


# Marks


def test_the_same_wish_has_the_same_mark() -> None:
    """So that a fight is noticed: what is wanted again is what somebody undid."""
    first = decide(World(stored())).actions
    again = decide(World(stored())).actions
    other = decide(World(stored(replicas=3))).actions
    assert [a.wanted for a in first] == [a.wanted for a in again]
    assert first[1].wanted != other[1].wanted


# Properties

TEMPLATES = st.builds(make_template, st.sampled_from(["a:1", "b:2"]), team=st.sampled_from("xyz"))
MESHES = st.builds(
    lambda replicas, template, labels, port: {
        **stored(replicas=replicas, labels=labels),
        "spec": {"replicas": replicas, "podTemplate": template, **port},
    },
    st.integers(1, 9),
    TEMPLATES,
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3),
    st.just({}) | st.builds(lambda port: {"port": port}, st.integers(1, 65535)),
)


@given(MESHES, MESHES)
def test_one_round_is_enough(before: dict[str, Any], after: dict[str, Any]) -> None:
    """From any mesh to any other: what is written once need not be written again."""
    world = settled(before)
    made = {"stateful_set": world.stateful_set, "service": world.service}
    for action in decide(World(after, **made)).actions:
        made["service" if action.resource == SERVICES else "stateful_set"] = action.body
    assert decide(World(after, **made)).actions == []


@given(MESHES, MESHES)
def test_hosts_are_restarted_only_for_another_template(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Sizes, ports and labels of the mesh leave the pod template as it is."""
    world = settled(before)
    same = before["spec"]["podTemplate"] == after["spec"]["podTemplate"]
    for action in decide(World(after, world.stateful_set, world.service)).actions:
        if action.resource == STATEFUL_SETS and same:
            assert action.body["spec"]["template"] == world.stateful_set["spec"]["template"]
