"""What goes wrong in clusters, and what people are told: within seconds, in the cluster's own words."""

from __future__ import annotations

import time

import pytest

from kubernetes.lab import BUSYBOX, PYTHON, WORKER, Lab, wait
from kubernetes.operators import Meshes, Operating
from kubernetes.test_job import IMPORTS, USE, simple
from programs import Client, finish, read_number

HOLD = """
print("ready", 1, flush=True)
import time
until = time.monotonic() + 60
while not job_lost(job) and time.monotonic() < until:
    time.sleep(0.2)
print("lost", job_lost(job), flush=True)
state = job.state()
"""
LOST = "def job_lost(job):\n    return dict(job._held.connection.lost) if job._held else {}\n"


def outlast(namespace: str, hosts: int = 2) -> str:
    """A program that uses its hosts, sees one go, and uses what there is then."""
    return LOST + simple(namespace, hosts, HOLD, USE, "job.kill()")


def test_a_pod_that_is_killed_is_replaced(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The client is told, the pod comes back, and the next state() has it."""
    program = client.start(outlast(namespace))
    read_number(program, "ready")
    lab.kubectl("-n", namespace, "delete", "pod", "w-1", "--grace-period=0", "--force")
    out, err = finish(program)
    assert program.returncode == 0, err
    assert "'w/1'" in out
    assert "host w/1" in err
    assert "pods ['w-0', 'w-1']" in out
    assert lab.objects(namespace) == []


def test_a_container_that_crashes_is_told_with_its_exit_code(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The keeper itself is killed: Kubernetes starts it again, and its exit code is told."""
    program = client.start(outlast(namespace))
    read_number(program, "ready")
    pod = Meshes(lab, namespace).pods()["w-0"]
    node = int(pod["spec"]["nodeName"].removeprefix("n"))
    lab.on_node(node, "pkill", "-9", "-f", "invitation.json")
    out, err = finish(program)
    assert program.returncode == 0, err
    assert "'w/0'" in out
    assert "SIGKILL" in out + err
    assert "pods ['w-0', 'w-1']" in out


def test_a_node_that_dies(client: Client, lab: Lab, namespace: str, operating: Operating) -> None:
    """Its host is lost within seconds; status says so, and the job can be ended and had anew."""
    program = client.start(LOST + simple(namespace, 2, HOLD.replace("state = job.state()", "")))
    read_number(program, "ready")
    pods = Meshes(lab, namespace).pods()
    node = int(pods["w-1"]["spec"]["nodeName"].removeprefix("n"))
    gone = [name for name, pod in pods.items() if pod["spec"]["nodeName"] == f"n{node}"]
    lab.poweroff_node(node)
    out, err = finish(program)
    assert program.returncode == 0, err
    assert all(f"'w/{name[-1]}'" in out for name in gone)
    assert "does not answer" in err
    lab.wait_node_state(node, "Unknown", 60)
    told = client.run(
        "job = job_load()\nfor host in job.status().hosts: print(host.host, host.state, host.reason)"
    )
    assert any(word in told for word in ("NodeLost", f"n{node}", "node")), told
    lab.heal()
    client.run("job_load().kill()")
    assert lab.objects(namespace) == []


def test_the_api_server_restarts_while_pods_are_waited_for(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Nothing is known meanwhile, nothing is cancelled, and the wait goes on by itself."""
    lab.kubectl("cordon", "n1", "n2")
    try:
        program = client.start(simple(namespace, 2, "job.kill()"))
        wait(lambda: len(Meshes(lab, namespace).pods()) == 2, 30, "no pods")
        lab.stop_api()
        time.sleep(3)
        lab.start_api()
    finally:
        lab.kubectl("uncordon", "n1", "n2")
    out, err = finish(program)
    assert program.returncode == 0, err
    assert "pods ['w-0', 'w-1']" in out
    assert "no node can take it now" in err
    assert lab.objects(namespace) == []


def test_an_api_server_that_is_away_is_no_end(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Its status is unknown, and a running program goes on without it."""
    program = client.start(
        simple(
            namespace,
            1,
            "print('ready', 1, flush=True)",
            "time.sleep(4)",
            "print('still', len(values(probes.pid.call().get())), job.status().liveness, flush=True)",
        )
    )
    read_number(program, "ready")
    lab.stop_api()
    out, err = finish(program)
    assert program.returncode == 0, err
    assert "still 1 unknown" in out
    lab.start_api()
    assert "running" in client.run("print(job_load().status().describe())")
    client.run("job_load().kill()")


def test_the_operator_restarts_meanwhile(
    client: Client, lab: Lab, namespace: str, operating: Operating, operator_login: str
) -> None:
    """What was asked for while nobody acted is there when somebody does."""
    operating.stop()
    program = client.start(simple(namespace, 1, "job.kill()"))
    time.sleep(2)
    again = Operating(client.folder, operator_login, namespace, "again")
    try:
        out, err = finish(program)
    finally:
        again.stop()
    assert program.returncode == 0, err
    assert "pods ['w-0']" in out


# What cannot be


def refused(client: Client, lab: Lab, namespace: str, image: str, **resources: str) -> str:
    """What is told of a mesh that cannot start; and nothing is left of it."""
    out = client.run(
        f"""
        {IMPORTS}
        job = KubernetesJob({namespace!r}, timeout=15)
        job.add_mesh("w", 1, image_spec=ImageSpec({image!r}, resources={resources!r}))
        job.state()
        """,
        code_expected=1,
    )
    client.run("import os\nif os.path.exists('.milkweed/job.json'): job_load().kill()")
    assert lab.objects(namespace) == []
    return out


REFUSED = {
    "an image that is not there": (
        {"image": "localhost/nobody:1"},
        ["localhost/nobody:1", "its image cannot be pulled"],
    ),
    "an image without Python": (
        {"image": BUSYBOX},
        ["exit code 127", "this image has no Python"],
    ),
    "an image without the engine": (
        {"image": PYTHON},
        ["the engine cannot be imported", "pip install torchmonarch"],
    ),
    "more than any node has": (
        {"image": WORKER, "cpu": "1000"},
        ["Insufficient cpu", "DeadlineError"],
    ),
    "too little memory": ({"image": WORKER, "memory": "20Mi"}, ["OOMKilled"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_start_is_told(
    client: Client, lab: Lab, namespace: str, operating: Operating, what: str
) -> None:
    """With the words of who knows: the node, the image itself, the host, or the scheduler at the deadline."""
    asked, told = REFUSED[what]
    out = refused(client, lab, namespace, **asked)
    assert [words for words in told if words not in out] == []


def test_a_cluster_without_the_operators_definition(client: Client, lab: Lab) -> None:
    """A namespace that is not there, and rights that are missing: what to do is told, and nothing is made."""
    out = client.run(simple("not-there", 1), code_expected=1)
    assert "not-there" in out


def test_a_user_without_rights(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The API server's own refusal, with the verb and the resource."""
    login = lab.make_login(client.folder, namespace, "nobody")
    out = client.run(simple(namespace, 1), code_expected=1, KUBECONFIG=login)
    assert "forbidden" in out.lower()
    assert "monarchmeshes" in out or "secrets" in out
    assert not [name for name in lab.objects(namespace) if "serviceaccount" not in name]


def test_a_context_that_is_not_there(client: Client, namespace: str) -> None:
    """The contexts that are there are named."""
    code = simple(namespace, 1).replace(f"({namespace!r})", f"({namespace!r}, context='nope')")
    out = client.run(code, code_expected=1)
    assert "there is no context 'nope'" in out or "nope" in out
