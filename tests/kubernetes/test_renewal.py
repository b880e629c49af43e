"""Time limits on a real cluster, and more time for hosts that are in use: by their client, or by the next plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubernetes.lab import WORKER, Lab, wait
from kubernetes.operators import Meshes, Operating
from kubernetes.test_job import IMPORTS, USE, milkweed
from kubernetes.test_operator_ending import restarts
from programs import Client, finish

LIMIT_S, LEAD_S, USED_S = 90, 60, 120
"""Hosts are used for longer than their limit; the lead is twice as long as a client's looks are apart."""


def left_s(client: Client) -> int:
    """What is left, as the plan says it."""
    shown = milkweed(client, "plan")
    assert "renew: job 'demo' on kubernetes" in shown
    [found] = re.findall(r"its time limit is reached in (\d+) s", shown)
    return int(found)


@pytest.mark.timeout(300)
def test_the_next_plan_gives_hosts_more_time(
    client: Client, lab: Lab, namespace: str, operating: Operating, folder: Path
) -> None:
    """`plan` shows it, `apply` does it, and the pods are the same."""
    (folder / "milkweed.yaml").write_text(f"""
name: demo
on: kubernetes
meshes:
  w: {{hosts: 1}}
lifetime: {{time_limit: 1h}}
kubernetes:
  namespace: {namespace}
  image: {WORKER}
  renew: 59m59s
""")
    milkweed(client, "apply")
    wait(lambda: "renew: " in milkweed(client, "plan"), 60, "nothing is to be renewed")
    meshes = Meshes(lab, namespace)
    uids = meshes.uids()
    wait(lambda: left_s(client) <= 3590, 60, "time does not pass")
    before = left_s(client)
    milkweed(client, "apply")
    shown = milkweed(client, "plan")
    after = left_s(client) if "renew: " in shown else 3600
    assert after > before
    assert meshes.uids() == uids
    assert restarts(meshes) == [0]
    milkweed(client, "kill")
    assert lab.objects(namespace) == []


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_client_has_its_hosts_for_longer_than_their_limit(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """It gives them more time while it is connected; when it has gone, they end at their limit."""
    code = f"""
{IMPORTS}
job = KubernetesJob({namespace!r}, time_limit={LIMIT_S}, renew="{LEAD_S}s")
job.add_mesh("w", 2, image_spec=ImageSpec({WORKER!r}))
state = job.state()
{USE}
time.sleep({USED_S})
{USE.replace('"p"', '"q"')}
"""
    program = client.start(code)
    out, err = finish(program, USED_S + 120)
    assert program.returncode == 0, out + err
    assert out.count("pods ['w-0', 'w-1']") == 2
    assert "the hosts of job 'kubernetes' were given more time: its time limit is reached in" in err
    meshes = Meshes(lab, namespace)
    assert restarts(meshes) == [0, 0]
    lab.wait_empty(namespace, LIMIT_S + 90)
    assert "LeaseOver" in meshes.events("w")
