"""Batch mode: the client runs in the cluster, detached from the laptop that asked for it."""

from __future__ import annotations

import json
from pathlib import Path

from kubernetes.lab import WORKER, Lab, wait
from kubernetes.operators import Operating
from programs import Client

TRAIN = """
    from milkweed.job import load_current_job
    job = load_current_job()
    state = job.state()
    probes = state.w.spawn_procs().spawn("p", Probe)
    print("inside", sorted(values(probes.variable.call("HOSTNAME").get())), sys.argv[1:])
    sys.exit(7)
"""
APPLY = """
    from milkweed.job.kubernetes import KubernetesJob, ImageSpec
    job = KubernetesJob({namespace!r})
    job.add_mesh("w", 2, image_spec=ImageSpec({image!r}))
    job.apply(client_script="train.py one 'two three'")
"""


def test_the_client_runs_in_the_cluster(
    outside_client: Client, lab: Lab, namespace: str, operating: Operating, tmp_path: Path
) -> None:
    """Its exit code is the job's, its output is in the logs, and the hosts end with it.

    What it leaves is found and ended by who has no file of it.
    """
    outside_client.write(TRAIN, "train.py")
    code = APPLY.format(namespace=namespace, image=WORKER)
    out = outside_client.run(
        code
        + """
    status = job.wait(130)
    print(status.describe())
    print([line.text for line in job.logs("client")])
"""
    )
    assert "exit code 7" in out
    assert "inside ['w-0', 'w-1'] ['one', 'two three']" in out
    wait(
        lambda: not lab.get("pods", "-n", namespace, "-l", "milkweed.dev/mesh")["items"],
        90,
        "hosts",
    )
    left = """
        from milkweed.backends import load_backend
        backend = load_backend("kubernetes")
        for apply_id, name in backend.allocations().items():
            print("left", name, backend.poll(backend.find(apply_id)).exit_code)
            backend.cancel(backend.find(apply_id))
    """
    assert "left kubernetes 7" in outside_client.run(left, MILKWEED_HOME=str(tmp_path / "other"))
    lab.wait_empty(namespace)


def test_what_a_client_in_a_pod_cannot_have(client: Client, lab: Lab, namespace: str) -> None:
    """Folders of this machine are refused before anything is made."""
    client.write(TRAIN, "train.py")
    out = client.run(
        f"""
        from milkweed import Compute, KubernetesJob
        job = KubernetesJob(compute=Compute(image={WORKER!r}), namespace={namespace!r}, sync_dirs=["."])
        job.apply(client_script="train.py")
        """,
        code_expected=1,
    )
    assert "a client in the cluster does not have folders of this machine" in out
    assert lab.objects(namespace) == []


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "few"},
    "spec": {
        "hard": {
            f"{kind}.{name}": most
            for kind in ("requests", "limits")
            for name, most in (("cpu", "4"), ("memory", "8Gi"))
        }
    },
}


def test_a_client_runs_where_a_quota_counts_resources(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Such a namespace takes no pod that says nothing of them."""
    lab.kubectl("-n", namespace, "apply", "-f", "-", text=json.dumps(QUOTA))
    client.write("sys.exit(5)", "train.py")
    image = f"""{WORKER!r}, resources={{"cpu": "100m", "memory": "1Gi"}}"""
    out = client.run(f"""
        from milkweed.job.kubernetes import KubernetesJob, ImageSpec
        job = KubernetesJob({namespace!r}, client_resources={{"cpu": "1", "memory": "1Gi"}})
        job.add_mesh("w", 1, image_spec=ImageSpec({image}))
        job.apply(client_script="train.py")
        print("exit", job.wait(100).exit_code)
    """)
    assert "exit 5" in out


PRINT = """
    print("first", flush=True)
    time.sleep(4)
    for number in range(2000):
        print(f"{number:06d} x")
    print("last", flush=True)
"""


def test_what_a_client_prints_is_followed(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Every line once, and the API server is not asked again and again."""
    client.write(PRINT, "train.py")
    code = APPLY.format(namespace=namespace, image=WORKER).replace(" one 'two three'", "")
    out = client.run(
        code
        + """
    from milkweed.kube.via import api_of
    lines = [line.text for line in job.logs("client", follow=True)]
    numbers = [line[:6] for line in lines if line.endswith("x")]
    print(lines[0], lines[-1], numbers == sorted(set(numbers)), len(numbers))
    print("requests", api_of(job._held.record.handle["context"], None).requests)
"""
    )
    assert "first last True 2000" in out
    assert int(out.partition("requests ")[2].split()[0]) < 40
