"""Pods that somebody else made, with workers of the engine alone: found, connected to, and left in peace."""

from __future__ import annotations

import json

import pytest

from kubernetes.lab import WORKER, Lab, wait
from programs import Client

SERVE = """
import json, os, socket
from monarch.actor import run_worker_loop_forever
here = socket.gethostbyname(socket.gethostname())
names = json.loads(os.environ.get("MONARCH_SERVICE_PROC_IDS", "[]"))
name = names[int(os.environ["RANK"])] + "@" if names else ""
address = f"{name}tcp://{here}:26600@tcp://0.0.0.0:26600"
run_worker_loop_forever(ca="trust_all_connections", address=address)
"""


def make_workers(lab: Lab, namespace: str, *names: str, **env: str) -> None:
    """Pods with a worker each, numbered by a label."""
    for rank, name in enumerate(names):
        said = [{"name": key, "value": value} for key, value in {**env, "RANK": str(rank)}.items()]
        command = ("python3", "-u", "-c", SERVE)
        lab.start_pod(namespace, name, *command, image=WORKER, container={"env": said})
        words = ("app=workers", f"rank={rank}", "--overwrite")
        lab.kubectl("-n", namespace, "label", "pod", name, *words)
    for name in names:
        lab.wait_phase(namespace, name, "Running")


CONNECT = """
    from milkweed.job.kubernetes import KubernetesJob
    job = KubernetesJob({namespace!r}, timeout=60)
    job.add_mesh("w", 2, "app=workers", "rank")
    state = job.state()
    probes = state.w.spawn_procs(per_host={{"gpus": 2}}).spawn("p", Probe)
    print("pods", [value for value in values(probes.variable.call("HOSTNAME").get())])
    job.kill()
"""


def test_pods_are_found_by_their_labels(client: Client, lab: Lab, namespace: str) -> None:
    """Ranks are those of the label, and kill() leaves the pods of others as they are."""
    make_workers(lab, namespace, "b", "a")
    before = lab.objects(namespace)
    out = client.run(CONNECT.format(namespace=namespace))
    assert "pods ['b', 'b', 'a', 'a']" in out
    assert lab.objects(namespace) == before
    assert {lab.phase(namespace, pod) for pod in "ab"} == {"Running"}


def test_pods_are_reached_through_the_api_server(
    outside_client: Client, lab: Lab, namespace: str
) -> None:
    """From where no pod can be dialled."""
    make_workers(lab, namespace, "b", "a")
    out = outside_client.run(CONNECT.format(namespace=namespace))
    assert "pods ['b', 'b', 'a', 'a']" in out


def test_workers_with_names_of_their_own(client: Client, lab: Lab, namespace: str) -> None:
    """The engine's own job layer gives each worker a name, and messages to any other name are lost."""
    from monarch._src.job.service_identity import allocate_service_proc_ids

    names = [str(each) for each in allocate_service_proc_ids(2)]
    make_workers(lab, namespace, "b", "a", MONARCH_SERVICE_PROC_IDS=json.dumps(names))
    out = client.run(CONNECT.format(namespace=namespace))
    assert "pods ['b', 'b', 'a', 'a']" in out


def test_a_selector_alone(client: Client, lab: Lab, namespace: str) -> None:
    """All pods that it finds are the mesh `workers`, in the order of their names."""
    make_workers(lab, namespace, "b", "a")
    out = client.run(f"""
        from milkweed import KubernetesJob
        job = KubernetesJob(selector={{"app": "workers"}}, namespace={namespace!r})
        state = job.state()
        probes = state.workers.spawn_procs().spawn("p", Probe)
        print("pods", [value for value in values(probes.variable.call("HOSTNAME").get())])
        job.kill()
    """)
    assert "pods ['a', 'b']" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["label", "pod", "a", "rank=0", "--overwrite"], "both have rank 0"),
        (["label", "pod", "a", "rank=7", "--overwrite"], "has rank 7, but the mesh has 2 hosts"),
        (["label", "pod", "a", "rank-"], "has no label 'rank'"),
        (["label", "pod", "a", "rank=x", "--overwrite"], "is not a rank"),
    ],
)
def test_ranks_that_are_wrong(
    client: Client, lab: Lab, namespace: str, change: list[str], words: str
) -> None:
    """Gaps, doubles and nonsense in the ranks are told with the pod's name, and nothing is waited for."""
    for rank, name in enumerate("ba"):
        lab.start_pod(namespace, name, "sleep", "1000")
        labels = ("app=workers", f"rank={rank}", "--overwrite")
        lab.kubectl("-n", namespace, "label", "pod", name, *labels)
    lab.kubectl("-n", namespace, *change)
    out = client.run(CONNECT.format(namespace=namespace), code_expected=1)
    assert words in out
    assert "SpecError" in out or "ValueError" in out


def test_pods_that_do_not_serve(client: Client, lab: Lab, namespace: str) -> None:
    """A selector that finds nothing, too few, or pods where nobody listens: told within the time given."""
    short = CONNECT.replace("timeout=60", "timeout=2")
    out = client.run(short.format(namespace=namespace), code_expected=1)
    assert "DeadlineError" in out
    assert "w/0: it is not there yet" in out
    for rank, name in enumerate("ba"):
        lab.run_pod(namespace, name, "sleep", "1000")
        labels = ("app=workers", f"rank={rank}", "--overwrite")
        lab.kubectl("-n", namespace, "label", "pod", name, *labels)
    longer = CONNECT.replace("timeout=60", "timeout=10")
    out = client.run(longer.format(namespace=namespace), code_expected=1)
    assert "nobody listens at port 26600" in out


def test_an_attached_pod_that_comes_back_elsewhere(
    client: Client, lab: Lab, namespace: str
) -> None:
    """A second program learns the new address of a pod that was replaced."""
    make_workers(lab, namespace, "b", "a")
    code = CONNECT.format(namespace=namespace).replace("    job.kill()\n", "")
    client.run(code)
    lab.kubectl("-n", namespace, "delete", "pod", "a", "--now")
    wait(lambda: lab.phase(namespace, "a") == "", 60, "a is still there")
    make_workers(lab, namespace, "c", "a")
    lab.kubectl("-n", namespace, "delete", "pod", "c", "--now")
    lab.kubectl("-n", namespace, "label", "--overwrite", "pod", "a", "rank=1")
    assert "pods ['b', 'b', 'a', 'a']" in client.run(code)
