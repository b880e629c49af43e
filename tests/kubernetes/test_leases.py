"""How long hosts live in a real cluster, with keepers in them: no pod that comes anew keeps a mesh for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kubernetes.lab import WORKER, Lab, wait
from kubernetes.operators import Meshes, Operating
from kubernetes.test_job import IMPORTS, USE
from kubernetes.test_operator_ending import restarts
from programs import Client

LONG_S = 420
"""What a test may take that sees hosts end which did not start together."""


def declare(namespace: str, hosts: int = 2, **lifetime: Any) -> str:
    """A program that connects to hosts with some lifetime, and goes."""
    lines = (
        "from milkweed.spec import Lifetime",
        f"job = KubernetesJob({namespace!r})",
        f"job._settings['lifetime'] = Lifetime(**{lifetime!r})",
        f"job.add_mesh('w', {hosts}, image_spec=ImageSpec({WORKER!r}))",
        "state = job.state()",
    )
    return "\n".join((IMPORTS, *lines, USE))


def wait_over(lab: Lab, meshes: Meshes, timeout_s: float = 180) -> None:
    """Wait until all is gone by itself, because the leases were over."""
    lab.wait_empty(meshes.namespace, timeout_s)
    assert "LeaseOver" in meshes.events("w")


@pytest.mark.timeout(LONG_S)
def test_a_pod_that_comes_after_the_last_client_ends_with_the_others(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """It has never seen a client, and does not wait for one without end: others have."""
    meshes = Meshes(lab, namespace)
    assert "pods ['w-0', 'w-1']" in client.run(declare(namespace, idle_timeout_s=30.0))
    before = meshes.uids()["w-1"]
    lab.kubectl("-n", namespace, "delete", "pod", "w-1", "--grace-period=0", "--force")
    wait(lambda: meshes.uids().get("w-1", before) != before, 60, "no other pod has come")
    wait_over(lab, meshes)


@pytest.mark.timeout(LONG_S)
def test_hosts_wait_for_their_first_client(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Also one that comes anew before anybody was there: a queue may be long, and nobody waits beside it."""
    meshes = Meshes(lab, namespace)
    ask = declare(namespace, idle_timeout_s=3.0).replace("state = job.state()", "job.apply()")
    client.run(ask.partition(USE)[0])
    meshes.wait_ready("w")
    before = meshes.uids()["w-1"]
    lab.kubectl("-n", namespace, "delete", "pod", "w-1", "--grace-period=0", "--force")
    wait(lambda: meshes.uids().get("w-1", before) != before, 60, "no other pod has come")
    meshes.wait_ready("w")
    uids = meshes.uids()
    time.sleep(15)  # much more than the idle time-out
    assert meshes.uids() == uids
    assert restarts(meshes) == [0, 0]
    lab.kubectl("-n", namespace, "delete", "monarchmesh", "w")
    lab.wait_empty(namespace, 60)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S)
def test_a_time_limit_ends_hosts_that_did_not_start_together(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """A host whose time is over leaves again and again, until the last one's is; then nothing is left."""
    meshes = Meshes(lab, namespace)
    lab.kubectl("-n", namespace, "create", "quota", "few", "--hard=pods=1")
    ask = declare(namespace, idle_timeout_s=3600.0, time_limit_s=60.0)
    program = client.start(ask)
    try:
        meshes.wait_for(lambda: "w-0" in meshes.pods(), "no pod has come")
        time.sleep(150)  # more than hosts may be apart that started together
        lab.kubectl("-n", namespace, "delete", "quota", "few")
        wait_over(lab, meshes, 220)
    finally:
        program.kill()
        program.communicate()
