"""What goes wrong in clusters, and what people are told: within seconds, in the cluster's own words."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from kubernetes.lab import Lab, wait
from kubernetes.operators import Meshes, Operating, ended
from kubernetes.test_job import USE, milkweed, simple
from programs import Client, finish, read_number

Lose = Callable[[Lab, str, str], None]
FINISH_S = 150
# Waits until as many hosts are lost as the test says in a file.
HOLD = """
print("ready", 1, flush=True)
until = time.monotonic() + 120
def expected():
    return int(open("gone").read()) if os.path.exists("gone") else 1
while len(job_lost(job)) < expected() and time.monotonic() < until:
    time.sleep(0.2)
print("lost", job_lost(job), flush=True)
"""
AGAIN = "state = job.state()"
LOST = "def job_lost(job):\n    return dict(job._held.connection.lost) if job._held else {}\n"


def outlast(namespace: str, hosts: int = 2) -> str:
    """A program that uses its hosts, sees one go, and uses what there is then."""
    return LOST + simple(namespace, hosts, HOLD, AGAIN, USE, "job.kill()")


def read_line(program: subprocess.Popen[str], words: str) -> None:
    """Read what a program tells people, up to a line with some words."""
    assert program.stderr is not None
    seen: list[str] = []
    for line in program.stderr:
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"it does not tell {words!r}: {seen}")


def kill_keeper(lab: Lab, namespace: str, pod: str) -> None:
    """Kill the worker of one pod: it is known by what it was told, for others run on the same node."""
    node = int(Meshes(lab, namespace).pods()[pod]["spec"]["nodeName"].removeprefix("n"))
    mine = f"MILKWEED_NODE={pod}.{pod.rpartition('-')[0]}-svc.{namespace}.svc"
    find = f"""
        for file in $(grep -lzxF {mine} /proc/[0-9]*/environ 2>/dev/null); do
            grep -q invitation.json "${{file%/*}}/cmdline" && kill -9 "$(basename "${{file%/*}}")" && found=1
        done
        [ -n "$found" ]
    """
    lab.on_node(node, "sh", "-c", find)


def delete(lab: Lab, namespace: str, pod: str) -> None:
    """Take a pod away at once."""
    lab.kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=0", "--force")


def evict(lab: Lab, namespace: str, pod: str) -> None:
    """Ask a pod to go, as who empties a node does."""
    made = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    lab.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(made))


@pytest.mark.parametrize("lose", [delete, evict])
def test_a_pod_that_is_taken_away_is_replaced(
    client: Client, lab: Lab, namespace: str, operating: Operating, lose: Lose
) -> None:
    """The client is told, the pod comes back, and the next state() has it."""
    program = client.start(outlast(namespace))
    read_number(program, "ready")
    lose(lab, namespace, "w-1")
    out, err = finish(program, FINISH_S)
    assert program.returncode == 0, out + err
    assert "'w/1'" in out
    assert "host w/1" in err
    assert "pods ['w-0', 'w-1']" in out
    lab.wait_empty(namespace)


def test_a_container_that_crashes_is_told_with_its_exit_code(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The keeper itself is killed: Kubernetes starts it again, and its exit code is told."""
    program = client.start(outlast(namespace))
    read_number(program, "ready")
    kill_keeper(lab, namespace, "w-0")
    out, err = finish(program, FINISH_S)
    assert program.returncode == 0, out + err
    assert "'w/0'" in out
    assert "SIGKILL" in out + err
    assert "pods ['w-0', 'w-1']" in out


def test_a_node_that_dies(client: Client, lab: Lab, namespace: str, operating: Operating) -> None:
    """Its hosts are lost within seconds, status says so; replaced elsewhere, they are reached where they are."""
    program = client.start(LOST + simple(namespace, 2, HOLD))
    read_number(program, "ready")
    meshes = Meshes(lab, namespace)
    meshes.wait_ready(
        "w"
    )  # of pods that were never ready the cluster says nothing when their node is lost
    before = meshes.pods()
    node = before["w-1"]["spec"]["nodeName"]
    gone = [name for name, pod in before.items() if pod["spec"]["nodeName"] == node]
    (client.folder / "gone").write_text(str(len(gone)))
    number = int(node.removeprefix("n"))
    lab.poweroff_node(number)
    out, err = finish(program, FINISH_S)
    assert program.returncode == 0, out + err
    assert [name for name in gone if f"'w/{name[-1]}'" not in out] == []
    assert "does not answer" in err
    lab.wait_node_state(number, "Unknown", 90)
    assert {lab.phase(namespace, name) for name in gone} == {"Running"}
    told = milkweed(client, "status", "--why")
    assert "w/1" in told
    assert any(word in told for word in ("NodeLost", node, "node")), told
    for name in gone:
        delete(lab, namespace, name)
    assert "pods ['w-0', 'w-1']" in client.run(f"job = job_load()\nstate = job.state()\n{USE}")
    after = meshes.pods()
    assert node not in {pod["spec"]["nodeName"] for pod in after.values()}
    moved = [name for name in gone if address_of(after[name]) == address_of(before[name])]
    assert moved == []
    client.run("job_load().kill()")
    lab.wait_empty(namespace)
    lab.heal()
    assert lab.get("node", node)["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def address_of(pod: dict[str, Any]) -> str:
    return pod["status"]["podIP"]


def test_the_api_server_restarts_while_pods_are_waited_for(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Nothing is known meanwhile, nothing is cancelled, and the wait goes on by itself."""
    lab.kubectl("cordon", "n1", "n2")
    try:
        program = client.start(simple(namespace, 2, "job.kill()"))
        read_line(program, "no node can take it now")
        lab.stop_api()
        time.sleep(3)
        lab.start_api()
    finally:
        lab.heal()
        lab.kubectl("uncordon", "n1", "n2")
    out, err = finish(program, FINISH_S)
    assert program.returncode == 0, out + err
    assert "pods ['w-0', 'w-1']" in out
    lab.wait_empty(namespace)


def test_an_api_server_that_is_away_is_no_end(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Its status is unknown, and a running program goes on without it."""
    program = client.start(
        simple(
            namespace,
            1,
            "print('ready', 1, flush=True)",
            "while not os.path.exists('stopped'): time.sleep(0.1)",
            "seen = []",
            "while 'unknown' not in seen: seen.append(str(job.status().liveness))",
            "print('still', len(values(probes.pid.call().get())), sorted(set(seen)), flush=True)",
        )
    )
    read_number(program, "ready")
    lab.stop_api()
    (client.folder / "stopped").touch()
    out, err = finish(program, FINISH_S)
    assert program.returncode == 0, out + err
    assert "still 1 ['unknown']" in out or "still 1 ['running', 'unknown']" in out
    lab.start_api()
    assert "running" in client.run("print(job_load().status().describe())")
    client.run("job_load().kill()")


def test_the_operator_restarts_meanwhile(
    client: Client, lab: Lab, namespace: str, operating: Operating, operator_login: str
) -> None:
    """What was asked for while nobody acted is there when somebody does."""
    operating.stop()
    program = client.start(simple(namespace, 1, "job.kill()"))
    wait(lambda: lab.find("monarchmesh", namespace, "w"), 90, "no mesh is asked for")
    again = Operating(client.folder, operator_login, namespace, "again")
    with ended([again]):
        out, err = finish(program, FINISH_S)
        again.stop()
    assert program.returncode == 0, out + err
    assert "pods ['w-0']" in out
