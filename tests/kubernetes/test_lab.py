"""The lab keeps its promises: real pods, places inside and outside, real faults, a whole cluster after each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusters import run
from kubernetes.lab import BUSYBOX, CLIENT, PYTHON, SCRIPTS, WORKER, Lab, wait

FOREVER = ("sleep", "600")
SERVE = (
    "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
)
# A program that has just been started may take a moment to listen; a cable that is cut takes nothing.
DIAL = """
import socket, sys, time
for left in (1, 1, 1, 0):
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
        break
    except ConnectionRefusedError:
        if not left:
            raise
        time.sleep(left)
"""
NOT_ROOT = {"runAsUser": 1234, "runAsGroup": 1234, "runAsNonRoot": True}


def dial(command: list[str]) -> str:
    """Why a program cannot connect; nothing when it can."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_every_node_is_ready_and_has_gpus(lab: Lab) -> None:
    """Nodes are ready, and show eight GPUs to those who ask for some."""
    assert lab.node_states() == dict.fromkeys(lab.nodes, "True")
    nodes = lab.get("nodes")["items"]
    assert {each["status"]["allocatable"]["nvidia.com/gpu"] for each in nodes} == {"8"}


def test_pods_run_on_every_node(lab: Lab, namespace: str) -> None:
    """Pods start within seconds, on the node that was asked for, and end with their namespace."""
    for node in lab.nodes:
        lab.run_pod(namespace, node, *FOREVER, image=BUSYBOX, spec={"nodeName": node})
    assert lab.objects(namespace) == [f"pod/{node}" for node in lab.nodes]
    lab.kubectl("-n", namespace, "delete", "pods", "--all", "--wait=false")
    lab.wait_empty(namespace)


@pytest.mark.parametrize("who", [{}, NOT_ROOT], ids=["root", "not root"])
def test_the_engine_is_in_the_image_of_workers(lab: Lab, namespace: str, who: object) -> None:
    """The image has the engine and cryptography, for everybody, and nothing of milkweed."""
    code = "import cryptography.x509, monarch.actor as m, os; print(os.getuid(), m.Actor.__name__)"
    argv = ("python3", "-c", f"{code}\ntry:\n import milkweed\nexcept ImportError: print('none')")
    lab.start_pod(namespace, "w", *argv, image=WORKER, spec={"securityContext": who})
    lab.wait_phase(namespace, "w", "Succeeded")
    assert lab.logs(namespace, "w") == f"{1234 if who else 0} Actor\nnone\n"


@pytest.mark.parametrize("who", [{}, NOT_ROOT], ids=["root", "not root"])
def test_milkweed_is_in_the_image_of_clients(lab: Lab, namespace: str, who: object) -> None:
    """The image has milkweed as it is in the source, with its command."""
    argv = ("sh", "-c", "cd /tmp && milkweed --version && milkweed ls")
    lab.start_pod(namespace, "c", *argv, image=CLIENT, spec={"securityContext": who})
    lab.wait_phase(namespace, "c", "Succeeded")
    assert "0." in lab.logs(namespace, "c")


def test_inside_pods_have_addresses_and_names(lab: Lab, namespace: str) -> None:
    """A program inside reaches pods and services, by address and by name, short names in its namespace."""
    address = lab.run_pod(namespace, "web", "python3", "-c", SERVE)
    lab.kubectl("-n", namespace, "expose", "pod", "web", "--port=8000")
    service = lab.get("service", "-n", namespace, "web")["spec"]["clusterIP"]
    long = f"web.{namespace}.svc.cluster.local"
    for name in (address, service, long):
        argv = (sys.executable, "-c", DIAL, name, "8000")
        wait(lambda argv=argv: dial([*argv]) == "", 60, f"{name} does not answer")
    assert "not known" in dial([sys.executable, "-c", DIAL, "web", "8000"])
    assert dial(lab.inside(sys.executable, "-c", DIAL, "web", "8000", namespace=namespace)) == ""


def test_pods_reach_a_client_inside(lab: Lab, namespace: str) -> None:
    """A client inside has an address that pods can dial, by which its own host name is known."""
    code = """if True:
        import socket, subprocess, sys
        address = socket.gethostbyname(socket.gethostname())
        with socket.create_server((address, 0)) as door:
            door.settimeout(60)
            print(address, door.getsockname()[1], flush=True)
            print(door.accept()[1][0])
    """
    command = lab.inside(sys.executable, "-c", code)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        where = client.stdout.readline().split()
        lab.start_pod(namespace, "dialler", "python3", "-c", DIAL, *where)
        came_from = client.stdout.readline().strip()
    lab.wait_phase(namespace, "dialler", "Succeeded")
    assert came_from == lab.get("pod", "-n", namespace, "dialler")["status"]["podIP"]


def test_outside_only_the_api_server_answers(lab: Lab, namespace: str) -> None:
    """A program outside reaches the API server; pods, services and nodes are silent, and names unknown."""
    address = lab.run_pod(namespace, "web", "python3", "-c", SERVE)
    command = (sys.executable, "-c", DIAL)
    assert dial(lab.outside(*command, "10.250.0.1", "6443")) == ""
    silent = ((address, "8000"), ("10.96.0.1", "443"), ("10.250.0.11", "10250"))
    with ThreadPoolExecutor() as several:
        said = several.map(lambda where: dial(lab.outside(*command, *where)), silent)
    assert ["timed out" in words for words in said] == [True] * 3
    assert dial(lab.outside(*command, f"web.{namespace}.svc.cluster.local", "8000"))
    shown = subprocess.run(lab.outside("hostname"), capture_output=True, text=True, check=True)
    assert shown.stdout == "laptop\n"


def test_a_cut_node_goes_on(lab: Lab, namespace: str) -> None:
    """A cut of the cable makes a pod silent, and ends nothing."""
    last = len(lab.nodes)
    spec = {"nodeName": f"n{last}"}
    address = lab.run_pod(namespace, "web", "python3", "-c", SERVE, image=PYTHON, spec=spec)
    command = [sys.executable, "-c", DIAL, address, "8000"]
    wait(lambda: dial(command) == "", 60, "it does not serve")
    lab.cut_node(last)
    assert dial(command)
    lab.mend_node(last)
    wait(lambda: dial(command) == "", 60, "it does not serve")
    pod = lab.get("pod", "-n", namespace, "web")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_pods_outlive_the_api_server(lab: Lab, namespace: str) -> None:
    """Without an API server every command fails; a started one knows everything."""
    address = lab.run_pod(namespace, "web", "python3", "-c", SERVE)
    lab.stop_api()
    done = lab.kubectl("get", "pods", check=False)
    assert "refused" in done.stderr
    assert dial([sys.executable, "-c", DIAL, address, "8000"]) == ""
    lab.start_api()
    assert lab.phase(namespace, "web") == "Running"


def test_a_frozen_api_server_hangs(lab: Lab) -> None:
    """Commands hang on a frozen API server, and get their answer from a thawed one."""
    lab.freeze_api()
    argv = [str(lab.run_folder.parent / "bin" / "kubectl"), "get", "nodes"]
    asks = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        asks.wait(2)
    lab.thaw_api()
    assert "n1" in asks.communicate(timeout=60)[0]


def test_a_stopped_scheduler_leaves_pods_waiting(lab: Lab, namespace: str) -> None:
    """Any program of the control plane can be stopped, and healing starts it again."""
    lab.stop_api("kube-scheduler")
    lab.start_pod(namespace, "p", *FOREVER, image=BUSYBOX)
    assert lab.phase(namespace, "p") == "Pending"
    lab.heal()
    lab.wait_phase(namespace, "p", "Running")


TWO = (
    "tests/kubernetes/test_kube_client.py::test_apply_makes_and_changes",
    "tests/kubernetes/test_lab.py::test_pods_outlive_the_api_server",
)


def test_a_cluster_of_ones_own(lab: Lab) -> None:
    """Tests run on it where somebody says so, but for those that would break it; which one it is must be said."""
    pytest_on_two = (sys.executable, "-m", "pytest", "-n", "0", "-rs", *TWO)
    command = [str(SCRIPTS / "with.sh"), "--", *pytest_on_two]
    asked = {**os.environ, "MILKWEED_KUBERNETES_OWN": "1", "KUBECONFIG": lab.kubeconfig}
    done = run(command, check=True, timeout_s=120, env=asked, cwd=SCRIPTS.parents[2])
    assert "1 passed, 1 skipped" in done.stdout
    assert "faults are not caused on a cluster of yours" in done.stdout
    del asked["KUBECONFIG"]
    done = run(command, check=False, timeout_s=60, env=asked, cwd=SCRIPTS.parents[2])
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a KUBECONFIG" in done.stderr


def test_healing_undoes_everything(lab: Lab, namespace: str) -> None:
    """Whatever is broken at once, healing brings everything back; and it costs nothing where nothing is."""
    last = len(lab.nodes)
    lab.cut_node(1)
    lab.kill_node(last)
    lab.freeze_api()
    lab.freeze_api("kube-controller-manager")
    lab.heal()
    assert set(lab.node_states().values()) == {"True"}
    assert lab.get("node", f"n{last}")["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    lab.run_pod(namespace, "p", *FOREVER, image=BUSYBOX, spec={"nodeName": f"n{last}"})
    start_s = time.monotonic()
    lab.heal()
    assert time.monotonic() - start_s < 1.0
