"""The programs that are timed in a Kubernetes cluster, for milkweed and for the engine's own job layer.

Run inside the cluster as `python pods.py WHO WHAT COUNT`, with the namespace and the image in the environment;
moments are of the clock that all programs of a machine share. Imports are inside, because they are part of what
is timed. (Its name is not kubernetes.py, since the peer imports a package of that name.)
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

BEGAN_S = time.monotonic()
STATE = "job.state"
MESH = "hosts"
NAMESPACE, IMAGE, LOGIN, LABELS = "BENCH_NAMESPACE", "BENCH_IMAGE", "BENCH_LOGIN", "BENCH_LABELS"
RANK_LABEL = "apps.kubernetes.io/pod-index"
NEVER = {"cpu": "1000"}
"""What no node has: pods that ask for it wait."""
TIMEOUT_S = 180.0


# Declaring a job


def load_job(who: str, hosts: int, resources: Mapping[str, str] | None = None) -> Any:
    """A declared job of one mesh of pods that are made for it."""
    namespace, image = os.environ[NAMESPACE], os.environ[IMAGE]
    if who == "milkweed":
        from milkweed.job.kubernetes import ImageSpec, KubernetesJob
    else:
        ImageSpec, KubernetesJob = load_peer()  # noqa: N806  classes
    job = KubernetesJob(namespace)
    made = ImageSpec(image, resources=dict(resources)) if resources else ImageSpec(image)
    job.add_mesh(MESH, hosts, image_spec=made)
    return job


def load_peer() -> tuple[Any, Any]:
    """The peer's classes, as in a pod: its login is in files of a folder, and `python` is python3 in the image."""
    from kubernetes.config import incluster_config
    from monarch.job.kubernetes import ImageSpec, KubernetesJob

    folder = os.environ[LOGIN]
    incluster_config.SERVICE_TOKEN_FILENAME = f"{folder}/token"
    incluster_config.SERVICE_CERT_FILENAME = f"{folder}/ca.crt"
    build = KubernetesJob._build_worker_pod_template

    def build_with_python3(*args: Any) -> Any:
        template = build(*args)
        template.spec.containers[0].command[0] = "python3"
        return template

    KubernetesJob._build_worker_pod_template = staticmethod(build_with_python3)
    return ImageSpec, KubernetesJob


def load_probe(who: str) -> Any:
    """An actor class, as either side's user would import it."""
    if who == "milkweed":
        from milkweed.actor import Actor, endpoint
    else:
        from monarch.actor import Actor, endpoint

    class Probe(Actor):
        @endpoint
        def pid(self) -> int:
            return os.getpid()

    return Probe


# Starting


def start(who: str, hosts: int) -> None:
    """From the start of the program, and from asking for hosts, to a reply from all of them."""
    probe, job = load_probe(who), load_job(who, hosts)
    asked_s = time.monotonic()
    state = job.state(cached_path=STATE)
    stated_s = time.monotonic()
    replies = list(getattr(state, MESH).spawn_procs().spawn("probe", probe).pid.call().get())
    replied_s = time.monotonic()
    if len(replies) != hosts:
        raise SystemExit(f"{len(replies)} replies from {hosts} hosts")
    report(
        {
            "program": replied_s - BEGAN_S,
            "asked": replied_s - asked_s,
            "began": BEGAN_S,
            "asked at": asked_s,
            "stated": stated_s,
            "replied": replied_s,
        }
    )
    os._exit(0)  # the hosts stay: when their pods are ready may be seen a little later


# Waiting


def pend(who: str, hosts: int) -> None:
    """Wait for pods that no node can run; every request is told."""
    send = http.client.HTTPConnection.putrequest

    def tell(self: Any, method: str, url: str, *args: Any, **rest: Any) -> None:
        print(f"ASKED {time.monotonic()} {method} {url}", flush=True)
        send(self, method, url, *args, **rest)

    http.client.HTTPConnection.putrequest = tell
    load_job(who, hosts, NEVER).state(cached_path=STATE)


# Watching


def watch(who: str, pods: int) -> None:
    """What it costs to see all pods, and then a change of each; both when told to on stdin."""
    sent, seen = (watch_ours if who == "milkweed" else watch_peer)(pods)
    result: dict[str, float] = {}
    for what, begin in (("list", seen["begin"]), ("update", lambda: print("READY", flush=True))):
        bytes_before, began_s = sent(), time.process_time()
        begin()
        wait_for(lambda what=what: seen[what]() >= pods)
        result |= {
            f"{what} cpu": time.process_time() - began_s,
            f"{what} bytes": sent() - bytes_before,
        }
    report({**result, **seen["more"]()})
    os._exit(0)


def watch_ours(pods: int) -> tuple[Callable[[], int], dict[str, Any]]:
    """The backend's own watch; the JSON that was sent is measured where it is read."""
    import gc
    import tracemalloc

    from milkweed.backends.kubernetes import cluster
    from milkweed.kube import api as api_module
    from milkweed.kube.resources import NAMESPACES, PODS
    from milkweed.kube.via import api_of

    bodies: list[bytes] = []
    total = 0

    class Json:
        dumps = staticmethod(json.dumps)

        @staticmethod
        def loads(text: bytes) -> Any:
            nonlocal total
            total += len(text)
            if not tracemalloc.is_tracing():
                bodies.append(text)
            return json.loads(text)

    api_module.json = Json
    api, namespace, labels = api_of(None, None), os.environ[NAMESPACE], os.environ[LABELS]
    api.get(NAMESPACES, "", namespace)  # connects, and imports what that needs
    bodies.clear()
    first = 0
    if "TRACE" in os.environ:
        tracemalloc.start()

    def begin() -> None:
        nonlocal first
        cluster.pods_of(api, namespace, labels)
        first = cluster._watch(api, PODS, namespace, labels).changes

    def more() -> dict[str, float]:
        gc.collect()
        if tracemalloc.is_tracing():
            return dict(zip(("kept", "peak"), tracemalloc.get_traced_memory(), strict=True))
        began_s = time.process_time()
        for body in bodies:
            json.loads(body)
        return {"bare": time.process_time() - began_s, "requests": float(api.requests)}

    seen = {
        "begin": begin,
        "list": lambda: len(cluster.pods_of(api, namespace, labels)),
        "update": lambda: cluster._watch(api, PODS, namespace, labels).changes - first,
        "more": more,
    }
    return (lambda: total), seen


def watch_peer(pods: int) -> tuple[Callable[[], int], dict[str, Any]]:
    """The peer's wait for one pod more than there are."""
    import threading

    _image, job_class = load_peer()
    job, events = job_class(os.environ[NAMESPACE]), 0
    ready = job._is_pod_worker_ready

    def count(pod: Any) -> bool:
        nonlocal events
        events += 1
        return ready(pod)

    job._is_pod_worker_ready = count

    def begin() -> None:
        args = (os.environ[LABELS], pods + 1, RANK_LABEL)
        threading.Thread(target=job._wait_for_ready_pods, args=args, daemon=True).start()

    seen = {
        "begin": begin,
        "list": lambda: events,
        "update": lambda: events - pods,
        "more": dict,
    }
    return int, seen


def wait_for(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit("it does not go on")
        time.sleep(0.05)


def report(result: Mapping[str, float]) -> None:
    """One line for the one who measures."""
    print("RESULT " + json.dumps(result), flush=True)


PROGRAMS: dict[str, Callable[[str, int], None]] = {"start": start, "pend": pend, "watch": watch}

if __name__ == "__main__":
    PROGRAMS[sys.argv[2]](sys.argv[1], int(sys.argv[3]))
