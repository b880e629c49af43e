"""The Kubernetes cluster that the tests of this folder run on, and the faults they cause on it.

`tests/labs/kubernetes/with.sh` runs the tests inside: pods and services have addresses and names there, and pods
reach it. `Lab.inside` is for programs that should be in another namespace, `Lab.outside` for those that should
reach nothing but the API server, as from a laptop. Both give a command to be started as any other, in any folder:

    subprocess.run(lab.outside(sys.executable, "client.py"), cwd=folder, check=True)

A program can also run in a pod: `Lab.run_pod` with the image CLIENT, in which milkweed is installed as it is in
the source now. WORKER has the engine and nothing of milkweed, TORCH has torch, too; PYTHON and BUSYBOX are small.
The scripts of `tests/labs/kubernetes` run in the namespaces of the machine, where with.sh runs.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusters import Done, Nodes, run, wait
from kubernetes.reads import Reads
from milkweed.errors import UnreachableError
from milkweed.kube.resources import PODS

SCRIPTS = Path(__file__).parents[1] / "labs" / "kubernetes"
COMMAND_TIMEOUT_S = 60
SCRIPT_TIMEOUT_S = 100
SETTLE_TIMEOUT_S = 90
OWN = bool(os.environ.get("MILKWEED_KUBERNETES_OWN"))
"""Whether this is a cluster of a developer, whom nobody asked for faults (see tests/labs/README.md)."""
_IMAGES = os.environ.get("MILKWEED_KUBERNETES_IMAGES", "localhost")
BUSYBOX, PYTHON = f"{_IMAGES}/busybox:1", f"{_IMAGES}/python:3.11"
WORKER, CLIENT = f"{_IMAGES}/milkweed:test", f"{_IMAGES}/milkweed-client:test"
TORCH = f"{_IMAGES}/milkweed-torch:test"
API_SERVER = "kube-apiserver"


def why_missing() -> str:
    """Why there is no cluster for the tests; nothing where there is one."""
    if os.environ.get("MILKWEED_KUBERNETES_LAB"):
        return ""
    missing = os.environ.get("MILKWEED_KUBERNETES_LAB_MISSING")
    return missing or "needs tests/labs/kubernetes/with.sh -- python -m pytest tests/kubernetes"


class Lab(Nodes, Reads):
    """A real Kubernetes; node `i` counts from 1. What was broken is remembered, for `heal`."""

    def __init__(self) -> None:
        self.kubeconfig = os.environ["KUBECONFIG"]
        Nodes.__init__(self, _script)
        Reads.__init__(self, self.kubeconfig)
        self.run_folder = Path(self.kubeconfig).parent
        self.log_folder = self.run_folder / "log"
        self.nodes = [f"n{i}" for i in range(1, int(os.environ["MILKWEED_KUBERNETES_LAB"]) + 1)]
        self._frozen: set[str] = set()
        self._stopped: set[str] = set()
        self._booted: dict[int, int] = {}
        self._kubeconfig = ""

    # Programs

    def kubectl(
        self, *argv: str, check: bool = True, text: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Done:
        """Run the lab's kubectl, as administrator, with a text as its input."""
        command = ("kubectl" if OWN else str(SCRIPTS / "kubectl"), *argv)
        return run(command, check=check, timeout_s=timeout_s, text=text)

    def inside(self, *argv: str, namespace: str = "default") -> list[str]:
        """The command that runs a program as in a pod of that namespace."""
        skip_where_own("programs run beside a cluster of yours, not in it")
        return [str(SCRIPTS / "place.sh"), "inside", "-n", namespace, *argv]

    def outside(self, *argv: str) -> list[str]:
        """The command that runs a program which reaches nothing but the API server."""
        return list(argv) if OWN else [str(SCRIPTS / "place.sh"), "outside", *argv]

    # Logins

    def make_login(self, folder: Path, namespace: str, name: str, *rights: str) -> str:
        """A kubeconfig of a new service account; its rights as for `kubectl create role`, else none."""
        spaced = ("-n", namespace)
        self.kubectl(*spaced, "create", "serviceaccount", name)
        if rights:
            self.kubectl(*spaced, "create", "role", name, *rights)
            bind = (f"--role={name}", f"--serviceaccount={namespace}:{name}")
            self.kubectl(*spaced, "create", "rolebinding", name, *bind)
        return self.save_login(folder, namespace, name)

    def save_login(self, folder: Path, namespace: str, account: str) -> str:
        """A kubeconfig of a service account that is there."""
        data = self.read_kubeconfig()
        token = self.make_token(namespace, account)
        data["users"] = [{"name": account, "user": {"token": token}}]
        data["contexts"][0]["context"] |= {"user": account, "namespace": namespace}
        path = folder / f"{account}.kubeconfig"
        path.write_text(json.dumps(data))
        return str(path)

    def read_kubeconfig(self) -> Any:
        """The administrator's kubeconfig as data."""
        if not self._kubeconfig:
            view = ("config", "view", "--raw", "-o", "json")
            self._kubeconfig = self.kubectl(*view).stdout
        return json.loads(self._kubeconfig)

    # Pods

    def run_pod(
        self, namespace: str, name: str, *argv: str, image: str = PYTHON, **more: Mapping[str, Any]
    ) -> str:
        """Start a pod, as `start_pod` does, and wait until it runs; its address."""
        self.start_pod(namespace, name, *argv, image=image, **more)
        self.wait_phase(namespace, name, "Running")
        return self.get("pod", "-n", namespace, name)["status"]["podIP"]

    def start_pod(
        self,
        namespace: str,
        name: str,
        *argv: str,
        image: str = PYTHON,
        spec: Mapping[str, Any] | None = None,
        container: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a pod that is not started again when it ends; `spec` and `container` are added to it."""
        main = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(argv)}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{**main, **(container or {})}],
                **(spec or {}),
            },
        }
        self.api.create(PODS, namespace, pod)

    def wait_phase(self, namespace: str, pod: str, phase: str, timeout_s: float = 90) -> None:
        """Wait until a pod is in a phase: Running, Succeeded, Failed, or gone with ''."""
        wait(
            lambda: self.phase(namespace, pod) == phase,
            timeout_s,
            f"pod {pod} is not {phase or 'gone'}",
            lambda: self.kubectl("-n", namespace, "describe", "pod", pod, check=False).stdout,
        )

    def in_pod(self, namespace: str, pod: str, *argv: str, check: bool = True) -> Done:
        """Run a command in a pod."""
        return self.kubectl("-n", namespace, "exec", pod, "--", *argv, check=check)

    def logs(self, namespace: str, pod: str) -> str:
        """What a pod printed."""
        return self.api.read(PODS.path(namespace, pod, "log")).decode()

    # Faults of nodes

    def start_node(self, i: int) -> None:
        """Boot a node that was killed or powered off; its cable is healed too."""
        # Kubernetes counts whole seconds, and a node may be quicker than the script that boots it.
        before_s = int(time.time())
        super().start_node(i)
        self._booted[i] = before_s

    def node_states(self) -> dict[str, str]:
        """Whether the nodes are ready: `True`, `False`, or `Unknown` for one that is silent."""
        return {each["metadata"]["name"]: _ready(each)[0] for each in self.get("nodes")["items"]}

    def wait_node_state(self, i: int, state: str, timeout_s: float = 40) -> None:
        """Wait until a node is ready, or not."""
        wait(
            lambda: self.node_states()[f"n{i}"] == state,
            timeout_s,
            f"n{i} is not {state}",
            self.node_states,
        )

    # Faults of the control plane; pods go on

    def stop_api(self, program: str = API_SERVER) -> None:
        """End the API server as a crash does, or another program of the control plane."""
        _script("ctl.sh", "stop", program)
        self._stopped.add(program)
        self._frozen.discard(program)

    def start_api(self, program: str = API_SERVER) -> None:
        """Start it again with all that it knew, and wait until it answers."""
        _script("ctl.sh", "start", program)
        self._stopped.discard(program)
        self._unsettled = True

    def restart_api(self, program: str = API_SERVER) -> None:
        """Stop and start it."""
        self.stop_api(program)
        self.start_api(program)

    def freeze_api(self, program: str = API_SERVER) -> None:
        """Make it silent: connections to it hang."""
        _script("ctl.sh", "freeze", program)
        self._frozen.add(program)
        self._unsettled = True

    def thaw_api(self, program: str = API_SERVER) -> None:
        """Let it go on."""
        _script("ctl.sh", "thaw", program)
        self._frozen.discard(program)

    # Healing

    def heal(self) -> None:
        """Undo every fault, and wait until every node is ready."""
        for program in sorted(self._frozen):
            self.thaw_api(program)
        for program in sorted(self._stopped):
            self.start_api(program)
        self._heal_nodes()
        if self._unsettled:
            start_s = time.time()
            wait(lambda: self._is_whole(start_s), SETTLE_TIMEOUT_S, "not healed", self.node_states)
            self._unsettled = False

    def _is_whole(self, since_s: float) -> bool:
        """Whether every node is ready, and has said so after it was mended or booted."""
        try:
            leases = self.get("leases", "-n", "kube-node-lease")["items"]
        except UnreachableError:  # it has only just been let go on
            return False
        renewed = {each["metadata"]["name"]: _seconds(each["spec"]["renewTime"]) for each in leases}
        if any(renewed[name] < since_s for name in self.nodes):
            return False
        said = {each["metadata"]["name"]: _ready(each) for each in self.get("nodes")["items"]}
        late = [i for i, boot_s in self._booted.items() if said[f"n{i}"][1] < boot_s]
        return not late and all(state == "True" for state, _time in said.values())


def skip_where_own(reason: str) -> None:
    """What only the cluster of the lab can do is skipped on one of a developer's own."""
    if OWN:
        pytest.skip(reason)


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def _ready(node: Any) -> tuple[str, float]:
    """Whether a node is ready, and when it said so."""
    found = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return found["status"], _seconds(found["lastHeartbeatTime"])


def _script(name: str, *args: str, check: bool = True) -> Done:
    """Run a script of the lab in the namespaces of the machine."""
    skip_where_own("faults are not caused on a cluster of yours")
    pid = os.environ["MILKWEED_KUBERNETES_LAB_PID"]
    there = ("nsenter", "-t", pid, "-m", "-u", "-n", "-w", "--", str(SCRIPTS / name))
    return run((*there, *args), check=check, timeout_s=SCRIPT_TIMEOUT_S)
