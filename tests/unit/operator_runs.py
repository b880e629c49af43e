"""Operators in tests: meshes to give them, and time that passes only for them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from milkweed.kube.resources import MESHES, STATEFUL_SETS
from milkweed.operator.conditions import read_condition
from milkweed.operator.lease import STEP_S
from milkweed.operator.loop import Operator, Settings
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def make_template(image: str = "worker:1", **labels: str) -> dict[str, Any]:
    metadata = {"metadata": {"labels": labels}} if labels else {}
    return {**metadata, "spec": {"containers": [{"name": "worker", "image": image}]}}


def make_mesh(
    name: str = "trainers", replicas: int = 2, image: str = "worker:1", **metadata: Any
) -> dict[str, Any]:
    """A mesh, as people write it."""
    return {
        "apiVersion": "monarch.pytorch.org/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": {"replicas": replicas, "podTemplate": make_template(image)},
    }


def make_operator(
    cluster: Cluster, clock: FakeClock, identity: str = "first", **settings: Any
) -> Operator:
    def wall() -> dt.datetime:
        return START + dt.timedelta(seconds=clock())

    chosen = Settings(identity=identity, lease_namespace="system", **settings)
    return Operator(  # type: ignore[arg-type]
        cluster, chosen, clock=clock, wall=wall, pause=lambda _seconds: None
    )


def sync(operator: Operator) -> None:
    """Let the operator see everything that happened."""
    for follower in operator.followers:
        follower.step()


def work(operator: Operator) -> int:
    """Let the operator do what is due; how much it was."""
    count = 0
    while operator.may_work() and (key := operator.queue.take()):
        operator.work(key)
        count += 1
    return count


def run(operator: Operator, cluster: Cluster, clock: FakeClock, seconds: float = 20.0) -> None:
    """Let the operator and the cluster run for some time: in small steps, in larger ones later."""
    end, small_until, lead_at = clock() + seconds, clock() + 20.0, 0.0
    while clock() < end:
        sync(operator)
        if clock() >= lead_at:
            operator.lead()
            lead_at = clock() + STEP_S
        work(operator)
        if not cluster.down:
            cluster.settle()
        clock.advance(0.25 if clock() < small_until else 1.0)
    sync(operator)


def get_mesh(cluster: Cluster, name: str = "trainers") -> dict[str, Any]:
    return cluster.objects[MESHES.plural, "team", name]


def get_set(cluster: Cluster, name: str = "trainers") -> dict[str, Any]:
    return cluster.objects[STATEFUL_SETS.plural, "team", name]


def condition(cluster: Cluster, name: str = "trainers") -> dict[str, Any]:
    return read_condition(get_mesh(cluster, name)) or {}


def writes(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Every write but those to leases."""
    return [one for one in cluster.writes if one[1] != "leases"]


def events(cluster: Cluster) -> list[tuple[str, str]]:
    """What people are told: reasons and messages, the oldest first."""
    found = sorted(
        cluster.of_kind("events"), key=lambda one: int(one["metadata"]["resourceVersion"])
    )
    return [(one["reason"], one["message"]) for one in found]


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
