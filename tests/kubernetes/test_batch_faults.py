"""Batch clients that are kept from running, or taken away: people are told, and nobody waits for them."""

from __future__ import annotations

import pytest

from kubernetes.lab import WORKER, Lab, wait
from kubernetes.operators import Operating
from kubernetes.test_job import milkweed
from programs import Client

WAIT = """
    import time
    from milkweed.job import load_current_job
    state = load_current_job().state()
    print("inside", flush=True)
    time.sleep(3600)
"""


def write_job(client: Client, namespace: str) -> None:
    """A job file with one host and a client that stays."""
    client.write(WAIT, "train.py")
    (client.folder / "milkweed.yaml").write_text(f"""
name: demo
on: kubernetes
meshes:
  w: {{hosts: 1}}
run: python train.py
kubernetes:
  namespace: {namespace}
  image: {WORKER}
""")


@pytest.mark.timeout(300)
def test_a_client_whose_pod_is_taken_away(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Its job has ended, though its hosts run; ending it leaves nothing."""
    write_job(client, namespace)
    milkweed(client, "run", "--detach")
    chosen = ("pods", "-n", namespace, "-l", "milkweed.dev/client")
    wait(lambda: "inside" in milkweed(client, "logs", "--host", "client"), 90, "it does not begin")
    [pod] = lab.get(*chosen)["items"]
    name = pod["metadata"]["name"]
    lab.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=0", "--force")
    shown = [""]

    def ended() -> bool:
        shown[0] = milkweed(client, "status")
        return "ended" in shown[0]

    wait(ended, 90, "the job has not ended", lambda: shown[0])
    assert "its Job has failed" in shown[0] or "its client ended" in shown[0]
    milkweed(client, "kill")
    assert lab.objects(namespace) == []


@pytest.mark.timeout(300)
def test_a_client_that_no_pod_is_made_for(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """A quota leaves no room for it: the reason is told, in the cluster's words."""
    lab.kubectl("-n", namespace, "create", "quota", "few", "--hard=pods=0")
    write_job(client, namespace)
    milkweed(client, "run", "--detach")
    shown = [""]

    def told() -> bool:
        shown[0] = milkweed(client, "status")
        return "its client waits: FailedCreate" in shown[0]

    wait(told, 90, "the quota is not told", lambda: shown[0])
    assert "exceeded quota: few" in shown[0]
    milkweed(client, "kill")
    assert lab.objects(namespace) == ["resourcequota/few"]
