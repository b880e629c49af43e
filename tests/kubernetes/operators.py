"""Operators on the real cluster: programs of their own, with the rights that the manifests give and no other."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kubernetes.lab import BUSYBOX, Lab, wait
from milkweed.kube.api import Api, ApiError
from milkweed.kube.config import load_config
from milkweed.kube.resources import MESHES, PODS
from milkweed.operator.conditions import read_condition
from milkweed.operator.install import Install, make_clients, make_install
from milkweed.operator.rights import CLIENT as CLIENT_ACCOUNT
from milkweed.operator.yaml import render_yaml

HOME = "milkweed-system"
READY_S = 90.0
FORBIDDEN = 403
SLEEP = ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]
LISTEN = ["sh", "-c", "trap 'exit 0' TERM; httpd -p 26600; sleep 3600 & wait"]
"""Stands for a worker: somebody listens at its port."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def install(lab: Lab) -> None:
    """Apply what `milkweed operator manifests` prints, without the operator's own pods."""
    objects = make_install(Install(namespace=HOME, provision=True))
    kept = [one for one in objects if one["kind"] != "Deployment"]
    lab.kubectl("apply", "-f", "-", text=render_yaml(kept))
    named = "--for=condition=Established"
    lab.kubectl("wait", named, "crd/monarchmeshes.monarch.pytorch.org", "--timeout=30s")


def make_login(lab: Lab, folder: Path, account: str, namespace: str = HOME) -> str:
    """A kubeconfig of a ServiceAccount that is there."""
    return lab.save_login(folder, namespace, account)


def make_client_login(lab: Lab, folder: Path, namespace: str) -> str:
    """A kubeconfig with what the manifests grant to clients in a namespace, and nothing else."""
    made = make_clients(Install(namespace=namespace, only=(namespace,)))
    mine = [one for one in made if one["metadata"]["name"] == CLIENT_ACCOUNT]
    for one in mine:
        kind = f"{one['kind'].lower()}s"
        lab.api.create(lab.resource(kind), namespace, one)
    login = lab.save_login(folder, namespace, CLIENT_ACCOUNT)
    api = Api(load_config(None, login))
    wait(lambda: _may_look(api, namespace), 30, f"the role of clients is not seen in {namespace}")
    api.close()
    return login


def _may_look(api: Api, namespace: str) -> bool:
    try:
        api.get(PODS, namespace)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return False
    return True


def render_manifests(*argv: str) -> str:
    """What `milkweed operator manifests` prints."""
    command = [sys.executable, "-m", "milkweed", "operator", "manifests", *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


class Running:
    """One program of `milkweed operator`."""

    def __init__(self, folder: Path, port: int, *argv: str) -> None:
        self.port = port
        self.log = folder / f"operator-{port}.log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "milkweed", "operator", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def stop(self) -> int:
        """End as a pod is ended: its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def kill(self) -> None:
        """End at once, with nothing tidied up."""
        self.process.kill()
        self.process.wait(20)


class Operating(Running):
    """One `milkweed operator run`, for one namespace or, without, for all."""

    def __init__(self, folder: Path, kubeconfig: str, namespace: str, identity: str) -> None:
        self.identity = identity
        port = free_port()
        argv = [
            "run",
            *([f"--namespace={namespace}"] if namespace else []),
            f"--identity={identity}",
            f"--lease-namespace={HOME}",
            f"--kubeconfig={kubeconfig}",
            f"--listen=127.0.0.1:{port}",
        ]
        super().__init__(folder, port, *argv)

    def ask(self, path: str) -> str:
        """What it answers; nothing when it does not, or not well."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as found:
                return found.read().decode()
        except OSError:
            return ""

    def measure(self, name: str) -> float:
        """One of its numbers; -1 while it does not answer."""
        lines = self.ask("/metrics").splitlines()
        words = [line.split() for line in lines if line.startswith(f"milkweed_operator_{name} ")]
        return float(words[0][1]) if words else -1.0

    def wait_leads(self, timeout_s: float = 60) -> None:
        """Wait until it acts."""
        wait(
            lambda: self.measure("leads") == 1,
            timeout_s,
            f"{self.identity} does not act",
            self.log.read_text,
        )


class Shared:
    """The operator of tests in which it is not the subject: one for all namespaces, which can be sent to rest."""

    def __init__(self, folder: Path, kubeconfig: str) -> None:
        self._folder, self._kubeconfig = folder, kubeconfig
        self._running: Operating | None = None

    def act(self) -> Operating:
        """The operator, which acts; another one when the last has ended."""
        if self._running is None or self._running.process.poll() is not None:
            self._running = Operating(self._folder, self._kubeconfig, "", "shared")
        self._running.wait_leads()
        return self._running

    def rest(self) -> None:
        """End it, for tests with an operator of their own: of two, one acts."""
        running, self._running = self._running, None
        if running is not None and running.process.poll() is None:
            with ended([running]):
                assert running.stop() == 0, running.log.read_text()


class Meshes:
    """Meshes of one namespace."""

    def __init__(self, lab: Lab, namespace: str) -> None:
        self.lab = lab
        self.namespace = namespace

    def make(self, name: str = "trainers", replicas: int = 2, **pod: Any) -> dict[str, Any]:
        """A mesh of pods that listen as workers do, and else sleep."""
        container = {
            "name": "worker",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": LISTEN,
            **pod.pop("container", {}),
        }
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **pod}
        return {
            "apiVersion": "monarch.pytorch.org/v1alpha1",
            "kind": "MonarchMesh",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"replicas": replicas, "podTemplate": {"spec": spec}},
        }

    def apply(self, mesh: dict[str, Any]) -> None:
        """Ask for a mesh, or for another one of its name."""
        self.lab.kubectl("apply", "-f", "-", text=json.dumps(mesh))

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        """Change some fields of a mesh."""
        self.lab.api.patch(MESHES, self.namespace, name, {"spec": spec})

    def patch_status(self, name: str, status: dict[str, Any]) -> None:
        """Write what an operator would write."""
        self.lab.api.patch(MESHES, self.namespace, name, {"status": status}, sub="status")

    def get(self, name: str = "trainers") -> dict[str, Any]:
        """A mesh as it is."""
        return self.lab.api.get(MESHES, self.namespace, name)

    def find(self, kind: str, name: str = "trainers") -> dict[str, Any]:
        """Another object as it is."""
        return self.lab.get(kind, "-n", self.namespace, name)

    def pods(self) -> dict[str, dict[str, Any]]:
        """All pods by name."""
        found = self.lab.api.get(PODS, self.namespace)["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def uids(self) -> dict[str, str]:
        """Which pods there are, by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def condition(self, name: str = "trainers") -> dict[str, Any]:
        """How a mesh says it is; nothing when it has said nothing yet."""
        return read_condition(self.get(name)) or {}

    def is_ready(self, name: str = "trainers") -> bool:
        """Whether a mesh says so of what was asked for last."""
        mesh = self.get(name)
        told = read_condition(mesh) or {}
        current = told.get("observedGeneration") == mesh["metadata"]["generation"]
        return current and told.get("status") == "True"

    def wait_ready(self, name: str = "trainers", timeout_s: float = READY_S) -> dict[str, Any]:
        """Wait until a mesh is ready: the mesh."""
        self.wait_for(lambda: self.is_ready(name), f"{name} is not ready", timeout_s)
        return self.get(name)

    def wait_reason(self, *reasons: str, name: str = "trainers", words: str = "") -> str:
        """Wait until a mesh tells one of some reasons, with some words: its message at that moment."""
        told: list[dict[str, Any]] = [{}]

        def tells() -> bool:
            told[0] = self.condition(name)
            return told[0].get("reason") in reasons and words in told[0]["message"]

        self.wait_for(tells, f"{name} does not tell {' or '.join(reasons)} {words}")
        return told[0]["message"]

    def wait_for(self, true: Callable[[], bool], what: str, timeout_s: float = READY_S) -> None:
        """Wait for something; what the namespace looks like is in the error."""
        wait(true, timeout_s, what, self._describe)

    def _describe(self) -> str:
        argv = ("get", "monarchmeshes,statefulsets,services,pods", "-o", "wide")
        shown = self.lab.kubectl("-n", self.namespace, *argv, check=False).stdout
        events = self.lab.kubectl("-n", self.namespace, "get", "events", check=False).stdout
        return f"\n{shown}\n{events}\n{self.lab.kubectl('get', 'lease', '-A').stdout}"

    def events(self, name: str = "trainers") -> set[str]:
        """What people were told of a mesh."""
        chosen = f"--field-selector=involvedObject.kind=MonarchMesh,involvedObject.name={name}"
        found = self.lab.get("events", "-n", self.namespace, chosen)["items"]
        return {event["reason"] for event in found}


Start = Callable[..., Operating]
"""Starts one more operator."""


def unprobed(made: dict[str, Any]) -> dict[str, Any]:
    """A StatefulSet as operators make it that give workers no probe."""
    found = copy.deepcopy(made)
    for container in found["spec"]["template"]["spec"]["containers"]:
        del container["readinessProbe"]
    return found


@contextlib.contextmanager
def ended(programs: Sequence[Running]) -> Iterator[None]:
    """End all that run at the end."""
    try:
        yield
    finally:
        for program in programs:
            program.kill()
