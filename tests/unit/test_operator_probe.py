"""The probe of workers whose template has none: who gets it, where it leads, and who is left in peace."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from milkweed.kube.resources import STATEFUL_SETS
from milkweed.operator.objects import HASH, PASSED_ON, make_service, make_stateful_set
from milkweed.operator.probe import NO_PROBE, PROBE, PROBE_NOTE, make_probe
from milkweed.operator.reconcile import World, decide
from unit.operator_runs import make_mesh

OWN = {"httpGet": {"path": "/ready", "port": 8080}}
OURS = make_probe(26600)


def stored(
    *containers: dict[str, Any], port: int | None = None, unprobed: bool = False
) -> dict[str, Any]:
    """A mesh with these containers, which may want no probe."""
    mesh = make_mesh(
        uid="uid-1", generation=1, annotations={PROBE_NOTE: NO_PROBE} if unprobed else {}
    )
    if containers:
        mesh["spec"]["podTemplate"]["spec"]["containers"] = [
            {"image": "a", **one} for one in containers
        ]
    if port is not None:
        mesh["spec"]["port"] = port
    return mesh


def probes(made: dict[str, Any]) -> dict[str, Any]:
    """The probes of a StatefulSet's containers, by their names."""
    containers = made["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one[PROBE] for one in containers if PROBE in one}


# Who gets it


def test_a_worker_without_a_probe_gets_one() -> None:
    """It connects to the port of the mesh, as a program would."""
    assert probes(make_stateful_set(stored())) == {"worker": OURS}
    assert OURS["tcpSocket"] == {"port": 26600}
    assert probes(make_stateful_set(stored(port=1234)))["worker"]["tcpSocket"] == {"port": 1234}


def test_a_probe_that_somebody_wrote_stays() -> None:
    """Whatever it does; and so does one that says that there is none."""
    assert probes(make_stateful_set(stored({"name": "worker", PROBE: OWN}))) == {"worker": OWN}
    assert probes(make_stateful_set(stored({"name": "worker", PROBE: None}))) == {"worker": None}


def test_a_probe_of_another_container_is_not_the_workers() -> None:
    """A sidecar's says nothing of the worker."""
    mesh = stored({"name": "proxy", PROBE: OWN}, {"name": "worker"})
    assert probes(make_stateful_set(mesh)) == {"proxy": OWN, "worker": OURS}


def test_a_mesh_may_want_none() -> None:
    """An annotation says so, where nobody can write a probe that would do."""
    assert probes(make_stateful_set(stored(unprobed=True))) == {}


TOLD = [{"name": "MONARCH_PORT", "value": "222"}]


@pytest.mark.parametrize(
    ("containers", "worker"),
    [
        ([{"name": "a"}, {"name": "worker"}], "worker"),
        ([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 26600}]}], "b"),
        ([{"name": "a"}, {"name": "b"}], "a"),
        ([{"name": "a", "ports": [{"containerPort": 26600}]}, {"name": "worker"}], "worker"),
        ([{"name": "a", "ports": [{"containerPort": 80}, "nonsense"]}, {"name": "b"}], "a"),
        ([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 222}], "env": TOLD}], "b"),
    ],
    ids=["by name", "by port", "the first", "name before port", "another port", "by the port told"],
)
def test_which_container_is_the_worker(containers: list[dict[str, Any]], worker: str) -> None:
    """The one of that name, as Monarch's own job names it; else the one that has the port; else the first."""
    assert list(probes(make_stateful_set(stored(*containers)))) == [worker]


@pytest.mark.parametrize(
    ("said", "port"),
    [("22222", 22222), ("", 26600), ("x", 26600), ("0", 26600), ("70000", 26600), (None, 26600)],
)
def test_the_port_that_a_worker_is_told_wins(said: str | None, port: int) -> None:
    """Programs look at this variable before they look at the mesh, and so does the probe."""
    variable = {"name": "MONARCH_PORT"} | ({} if said is None else {"value": said})
    mesh = stored({"name": "worker", "env": [{"name": "A"}, variable]})
    assert probes(make_stateful_set(mesh))["worker"]["tcpSocket"] == {"port": port}


@pytest.mark.parametrize("containers", [[], None, "nonsense", [1]])
def test_a_template_without_containers(containers: Any) -> None:
    """The API server refuses it; nobody stumbles over it before."""
    mesh = stored()
    mesh["spec"]["podTemplate"]["spec"]["containers"] = containers
    assert make_stateful_set(mesh)["spec"]["template"]["spec"]["containers"] == containers


# Nobody is restarted for it


def without(made: dict[str, Any]) -> dict[str, Any]:
    """A StatefulSet as milkweed made it before it gave probes, and as the cluster gives it back."""
    found = copy.deepcopy(made)
    found["metadata"] |= {"uid": "uid-7", "resourceVersion": "9"}
    for one in found["spec"]["template"]["spec"]["containers"]:
        one.pop(PROBE, None)
    return found


def change(mesh: dict[str, Any], found: dict[str, Any]) -> list[Any]:
    """What is written to a StatefulSet that is there."""
    actions = decide(World(mesh, found, make_service(mesh))).actions
    return [action for action in actions if action.resource == STATEFUL_SETS]


def test_hosts_without_a_probe_are_left_in_peace() -> None:
    """An operator that is newer than its StatefulSets writes nothing."""
    assert change(stored(), without(make_stateful_set(stored()))) == []


def test_hosts_of_another_operator_are_left_in_peace() -> None:
    """They are taken over with the template that is there; also one that the cluster bends on its way in."""
    for image in ("a", "mirror/a"):
        found = without(make_stateful_set(stored({"name": "worker"})))
        found["metadata"]["annotations"] = {HASH: "0123"}
        found["spec"]["template"]["spec"]["containers"][0]["image"] = image
        (action,) = change(stored({"name": "worker"}), found)
        assert action.reason == "Adopted"
        assert probes(action.body) == {}


def test_a_probe_that_another_operator_gave_stays() -> None:
    """Taking it away would restart hosts as well."""
    found = make_stateful_set(stored())
    found["metadata"]["annotations"] = {HASH: "0123"}
    found["spec"]["template"]["spec"]["containers"][0][PROBE] = OWN
    (action,) = change(stored(), found)
    assert probes(action.body) == {"worker": OWN}


def test_it_comes_with_the_next_template() -> None:
    """Then hosts are restarted anyway."""
    found = without(make_stateful_set(stored()))
    (action,) = change(stored({"name": "worker", "image": "b"}), found)
    assert action.reason == "TemplateChanged"
    assert probes(action.body) == {"worker": OURS}


def test_a_repair_brings_none() -> None:
    """What somebody bent by hand, or the cluster on its way in, is put right and no more."""
    found = without(make_stateful_set(stored()))
    found["spec"]["template"]["spec"]["containers"][0]["image"] = "x"
    (action,) = change(stored(), found)
    assert (action.reason, probes(action.body)) == ("Repaired", {})


def test_a_repair_keeps_it() -> None:
    """With all that the cluster has filled in."""
    found = make_stateful_set(stored())
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container |= {"image": "x", PROBE: {**OURS, "timeoutSeconds": 1}}
    (action,) = change(stored(), found)
    assert probes(action.body) == {"worker": {**OURS, "timeoutSeconds": 1}}


@pytest.mark.parametrize("after", [stored(port=1234), stored(unprobed=True)])
def test_another_port_or_wish_restarts_nobody(after: dict[str, Any]) -> None:
    """Workers listen where they did; the probe follows with the next template."""
    found = make_stateful_set(stored())
    for action in change(after, found):
        assert action.body["spec"]["template"] == found["spec"]["template"]
    after["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = "b"
    (action,) = change(after, found)
    assert probes(action.body) == probes(make_stateful_set(after)) != {"worker": OURS}


def test_what_was_taken_over_gets_it_with_its_next_template() -> None:
    """From then on the marks are ours."""
    found = without(make_stateful_set(stored()))
    found["metadata"]["annotations"] = {HASH: "0123"}
    (action,) = change(stored(), found)
    assert PASSED_ON in action.body["metadata"]["annotations"]
    (action,) = change(stored({"name": "worker", "image": "b"}), action.body)
    assert probes(action.body) == {"worker": OURS}
