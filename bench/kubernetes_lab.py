"""The cluster that bench/kubernetes.py measures on: an operator, a namespace, and pods that are not real."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from milkweed.kube.api import Api
from milkweed.kube.resources import MESHES, NODES, PODS
from milkweed.kube.via import api_of
from milkweed.kube.watch import Watch
from milkweed.operator.install import Install, make_install

KUBECTL = Path(__file__).resolve().parents[1] / "tests" / "labs" / "kubernetes" / "kubectl"
LAB = Path(os.environ.get("MILKWEED_LAB") or "~/.cache/milkweed-lab").expanduser()
PEER_FOLDER = LAB / "kubernetes-client"
IMAGE = "localhost/milkweed:test"
NAMESPACE, HOME = "bench", "milkweed-system"
CLEAR_S = 60.0
AT_ONCE = 16


def why_no_peer() -> str:
    """Why the engine's job layer cannot run; empty when it can."""
    argv = [sys.executable, "-c", "import monarch.job.kubernetes"]
    env = {**os.environ, "PYTHONPATH": peer_path()}
    tried = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


def peer_path() -> str:
    """What the peer finds the package `kubernetes` in."""
    return os.pathsep.join(filter(None, (str(PEER_FOLDER), os.getenv("PYTHONPATH"))))


def kubectl(*argv: str, text: str = "") -> str:
    """Run the lab's kubectl."""
    done = subprocess.run(
        [str(KUBECTL), *argv], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"kubectl {' '.join(argv)}: {done.stderr}")
    return done.stdout


def wait(true: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"after {timeout_s:g} s: {what}")
        time.sleep(0.1)


class Cluster:
    """A namespace of a real cluster in which an operator acts."""

    fake_labels = "bench=fake"

    def __init__(self) -> None:
        self.api: Api = api_of(None, None)
        self.namespace = NAMESPACE
        self._folder = tempfile.TemporaryDirectory()
        self._operator: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        compiled = [
            place
            for name in ("milkweed", "monarch")
            for place in importlib.util.find_spec(name).submodule_search_locations or ()
        ]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *compiled], check=False)
        made = [
            each for each in make_install(Install(namespace=HOME)) if each["kind"] != "Deployment"
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
        kubectl("apply", "-f", "-", text=text)
        definition = f"crd/{MESHES.plural}.{MESHES.group}"
        kubectl("wait", "--for=condition=Established", definition, "--timeout=30s")
        kubectl("create", "namespace", NAMESPACE)
        kubectl("-n", NAMESPACE, "create", "serviceaccount", "bench")
        account = f"--serviceaccount={NAMESPACE}:bench"
        kubectl("create", "clusterrolebinding", "bench", "--clusterrole=cluster-admin", account)
        self._start_operator()
        return self

    def __exit__(self, *_: object) -> None:
        if self._operator is not None:
            self._operator.send_signal(signal.SIGTERM)
            self._operator.wait(20)
        self._folder.cleanup()

    def _start_operator(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        argv = ["run", f"--namespace={NAMESPACE}", "--identity=bench", f"--lease-namespace={HOME}"]
        argv += [f"--kubeconfig={os.environ['KUBECONFIG']}", f"--listen=127.0.0.1:{port}"]
        log = Path(self._folder.name) / "operator.log"
        with log.open("w") as out:
            self._operator = subprocess.Popen(
                [sys.executable, "-m", "milkweed", "operator", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

        def leads() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as found:
                    return "milkweed_operator_leads 1" in found.read().decode()
            except OSError:
                return False

        wait(leads, 30, "the operator does not act")

    # What programs see

    def env(self) -> dict[str, str]:
        """Byte code, and where to ask for hosts."""
        kept = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "BENCH_NAMESPACE": NAMESPACE, "BENCH_IMAGE": IMAGE}

    def peer_env(self) -> dict[str, str]:
        """The rights of a pod, as the peer wants them inside a cluster."""
        folder = Path(self._folder.name) / "login"
        if not folder.exists():
            folder.mkdir()
            token = kubectl("-n", NAMESPACE, "create", "token", "bench", "--duration=4h").strip()
            (folder / "token").write_text(token)
            (folder / "ca.crt").write_text(self.api.config.cluster.ca_pem or "")
        server = urllib.parse.urlsplit(self.api.config.cluster.server)
        return {
            "BENCH_LOGIN": str(folder),
            "PYTHONPATH": peer_path(),
            "KUBERNETES_SERVICE_HOST": server.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(server.port or 443),
        }

    # Pods

    def pods(self) -> list[Any]:
        """All pods, asked for."""
        return self.api.get(PODS, NAMESPACE)["items"]

    def clear(self) -> None:
        """End every mesh and pod, and wait until they are gone."""
        kubectl("-n", NAMESPACE, "delete", MESHES.plural, "--all", "--wait=false")
        deadline_s = time.monotonic() + CLEAR_S
        while self.pods() or self.api.get(MESHES, NAMESPACE)["items"]:
            kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--force", "--grace-period=0")
            if time.monotonic() > deadline_s:
                raise SystemExit("the namespace does not become empty")
            time.sleep(0.5)
        time.sleep(2)  # containers end after their pods

    def wait_pending(self, count: int, program: subprocess.Popen[str]) -> None:
        """Wait until so many pods cannot be placed."""

        def are_there() -> bool:
            if program.poll() is not None:
                raise SystemExit(f"{program.args} does not go on")
            return len([pod for pod in self.pods() if _is(pod, "PodScheduled", "False")]) == count

        wait(are_there, 120, f"there are no {count} pending pods")

    @contextlib.contextmanager
    def held_back(self, seconds: float) -> Iterator[None]:
        """For some seconds no node takes pods."""
        nodes = [node["metadata"]["name"] for node in self.api.get(NODES)["items"]]
        kubectl("cordon", *nodes)
        timer = threading.Timer(seconds, kubectl, ("uncordon", *nodes))
        timer.start()
        try:
            yield
        finally:
            timer.join()

    # Pods that are not real

    def make_fakes(self, count: int) -> None:
        """A node that nobody serves, and pods on it that say that they run."""
        self.api.create(NODES, "", {"metadata": {"name": "fake"}})
        self._all(self._make_fake, range(count))
        self.change_fakes(count)

    def change_fakes(self, count: int) -> None:
        """Every pod is told anew how it is."""
        self._all(self._change_fake, range(count))

    def _all(self, act: Callable[[int], object], numbers: Sequence[int]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(act, numbers))

    def _make_fake(self, number: int) -> None:
        self.api.create(PODS, NAMESPACE, make_pod(number))

    def _change_fake(self, number: int) -> None:
        self.api.patch(PODS, NAMESPACE, f"fake-{number}", make_status(number), sub="status")


def make_pod(number: int) -> dict[str, Any]:
    """A pod as the operator makes them, on the node that nobody serves."""
    secret = {"secretName": "milkweed-0123abcd-hosts", "defaultMode": 0o400}
    labels = {
        "bench": "fake",
        "apps.kubernetes.io/pod-index": str(number),
        "app.kubernetes.io/name": "monarch-worker",
        "monarch.pytorch.org/mesh-name": "fake",
        "milkweed.dev/job": "0123abcd-0123-0123-0123-0123456789ab",
        "milkweed.dev/mesh": "fake",
    }
    container = {
        "name": "worker",
        "image": IMAGE,
        "command": ["sh", "-c", "exec python3 -u -c '...'" * 10],
        "env": [
            {"name": "MILKWEED_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "MILKWEED_NODE", "value": "$(MILKWEED_POD).fake-svc.bench.svc"},
            {"name": "MONARCH_PORT", "value": "26600"},
        ],
        "ports": [{"name": "monarch", "containerPort": 26600}],
        "readinessProbe": {"exec": {"command": ["sh", "-c", "test -S /tmp/x"]}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
        "volumeMounts": [{"name": "milkweed", "mountPath": "/etc/milkweed", "readOnly": True}],
    }
    spec = {
        "nodeName": "fake",
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "volumes": [{"name": "milkweed", "secret": secret}],
        "containers": [container],
    }
    return {"metadata": {"name": f"fake-{number}", "labels": labels}, "spec": spec}


_TURNS = [0]


def make_status(number: int) -> Mapping[str, Any]:
    """Running and ready, with something new in it each time."""
    _TURNS[0] += 1
    now = "2026-01-01T00:00:00Z"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    container = {
        "name": "worker",
        "image": IMAGE,
        "imageID": "sha256:" + "0" * 64,
        "containerID": f"containerd://{_TURNS[0]:064}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    address = f"10.245.{number // 250}.{number % 250 + 1}"
    return {
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "hostIP": "10.250.0.99",
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": [container],
        }
    }


def _is(pod: Mapping[str, Any], kind: str, status: str) -> bool:
    found = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == status for each in found)


class ReadyClock:
    """Sees when some pods were all there, running and ready, by the clock that all programs of a machine share."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._watch = Watch(cluster.api, PODS, cluster.namespace)
        self._count = count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = False
        self._moments: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._watch.start()
        self._watch.wait_listed(10)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._watch.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._over and "ready" not in self._moments:
            since = self._watch.changes
            pods, now_s = list(self._watch.objects().values()), time.monotonic()
            for name, true in _STAGES.items():
                if sum(map(true, pods)) == self._count:
                    self._moments.setdefault(name, now_s)
            self._watch.wait_change(1, since)

    @property
    def moments(self) -> Mapping[str, float]:
        """When it was; pods may be told to be ready a little after they answered."""
        self._thread.join(10)
        if "ready" not in self._moments:
            raise SystemExit("the pods answered, and were never ready")
        return self._moments


_STAGES: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "made": bool,
    "placed": lambda pod: _is(pod, "PodScheduled", "True"),
    "running": lambda pod: pod.get("status", {}).get("phase") == "Running",
    "ready": lambda pod: _is(pod, "Ready", "True"),
}
