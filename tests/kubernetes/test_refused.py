"""Pods that the cluster does not make, or cannot start: people are told why, and do not wait in vain."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kubernetes.lab import WORKER, Lab, wait
from kubernetes.operators import Meshes, Operating
from kubernetes.test_job import IMPORTS, USE, milkweed
from programs import Client

CONTAINER = {"name": "worker", "image": WORKER, "imagePullPolicy": "Never"}


def declare(namespace: str, timeout: float | None = None, **pod: Any) -> str:
    """A program that declares one host from a pod's spec."""
    spec = {"containers": [{**CONTAINER, **pod.pop("container", {})}], **pod}
    lines = (
        f"job = KubernetesJob({namespace!r}, timeout={timeout})",
        f"job.add_mesh('w', 1, pod_spec={spec!r})",
    )
    return "\n".join((IMPORTS, *lines, ""))


def test_a_secret_that_is_missing_ends_the_wait(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The pod itself tells nothing but that its container is being made; the error names the Secret."""
    volume = {"name": "s", "secret": {"secretName": "not-there"}}
    mounts = {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}
    code = declare(namespace, volumes=[volume], container=mounts) + "job.state()"
    out = client.run(code, code_expected=1)
    assert "HostFailedError" in out
    assert "FailedMount" in out
    assert 'secret "not-there" not found' in out
    client.run("job_load().kill()")
    assert lab.objects(namespace) == []


@pytest.mark.timeout(300)
def test_a_quota_is_told_and_waited_for(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """No pod is made as long as it is used up, and people see why; when there is room, the pods come."""
    lab.kubectl("-n", namespace, "create", "quota", "few", "--hard=pods=0")
    client.run(declare(namespace, timeout=1) + "try: job.state()\nexcept TimeoutError: pass")
    shown: list[str] = [""]

    def tells() -> bool:
        shown[0] = milkweed(client, "status")
        return "exceeded quota: few" in shown[0]

    wait(tells, 90, "the quota is not told", lambda: shown[0])
    assert "w/0: FailedCreate: " in shown[0]
    lab.kubectl("-n", namespace, "delete", "quota", "few")
    # The cluster tries again by and by, in longer and longer steps; a change makes it look at once.
    lab.kubectl("-n", namespace, "annotate", "statefulset", "w", "look=again")
    out = client.run(declare(namespace) + "state = job.state()\n" + USE + "job.kill()")
    assert "pods ['w-0']" in out
    assert lab.objects(namespace) == []


def test_rules_for_pods_end_the_wait(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """What the namespace's rules forbid does not come: the error has the cluster's words."""
    lab.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    wish = {"securityContext": {"privileged": True}}
    out = client.run(declare(namespace, container=wish) + "job.state()", code_expected=1)
    assert "HostFailedError" in out
    assert "violates PodSecurity" in out
    client.run("job_load().kill()")
    assert lab.objects(namespace) == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"serviceAccountName": "nobody"}, 'serviceaccount "nobody" not found'),
        ({"priorityClassName": "highest"}, "no PriorityClass with name highest was found"),
        ({"runtimeClassName": "boxed"}, 'RuntimeClass "boxed" not found'),
    ],
)
@pytest.mark.usefixtures("operating")
def test_pods_that_nobody_can_make_end_the_wait(
    client: Client, lab: Lab, namespace: str, wish: Any, words: str
) -> None:
    """They ask for what the cluster does not have by that name: somebody must change it."""
    out = client.run(declare(namespace, timeout=100, **wish) + "job.state()", code_expected=1)
    assert "HostFailedError" in out
    assert words in out
    client.run("job_load().kill()")
    assert lab.objects(namespace) == []


def test_the_longest_names_of_meshes_have_hosts(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """63 characters, as RFC 1123 has it, though pods cannot be made of an object with that name."""
    name = "w" * 63
    use = f"print('pods', values(state[{name!r}].spawn_procs().spawn('p', Probe).variable.call('HOSTNAME').get()))"
    code = declare(namespace).replace("add_mesh('w'", f"add_mesh({name!r}")
    out = client.run(code + f"state = job.state()\n{use}\njob.kill()")
    assert "pods ['wwww" in out
    assert lab.objects(namespace) == []


def test_a_service_of_somebody_else_ends_the_wait(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """It is left alone, and named."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "w-svc", "namespace": namespace},
        "spec": {"ports": [{"port": 80}]},
    }
    lab.kubectl("apply", "-f", "-", text=json.dumps(service))
    out = client.run(declare(namespace) + "job.state()", code_expected=1)
    assert "HostFailedError" in out
    assert "Conflict: Service w-svc is there already and does not belong to this mesh" in out
    client.run("job_load().kill()")
    meshes = Meshes(lab, namespace)
    assert meshes.find("service", "w-svc")["spec"]["ports"][0]["port"] == 80


END = ["sh", "-c", "echo starting; echo no such data; exit 3"]
TELL = """
job.apply()
deadline = time.monotonic() + 60
told = ""
while "exit code 3" not in told and time.monotonic() < deadline:
    time.sleep(0.2)
    status = job.status()
    told = "; ".join([status.reason, *(each.reason for each in status.hosts)])
print(told)
"""


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_what_a_container_of_ones_own_printed_last_is_told(
    client: Client, lab: Lab, namespace: str, operating: Operating, where: str
) -> None:
    """With its exit code, as soon as it has ended once: a worker of somebody else, or an init container."""
    own = {**CONTAINER, "name": "own", "command": END}
    spec = {"containers": [{**CONTAINER, "command": ["sleep", "1000"]}], where: [own]}
    mesh = f"job.add_mesh('w', 1, pod_spec={spec!r})"
    out = client.run("\n".join((IMPORTS, f"job = KubernetesJob({namespace!r})", mesh, TELL)))
    assert re.search("exit code 3:? starting no such data", " ".join(out.split()))


def test_what_a_pod_of_others_printed_last_is_told(
    client: Client, lab: Lab, namespace: str
) -> None:
    """Its log is read, for nothing of it is in its status."""
    lab.start_pod(namespace, "a", *END, spec={"restartPolicy": "Always"})
    mesh = 'job.add_mesh("w", 1, "app=a", "")'
    out = client.run("\n".join((IMPORTS, f"job = KubernetesJob({namespace!r})", mesh, TELL)))
    assert "exit code 3\nstarting\nno such data" in out
