"""Batch mode: the client runs in the cluster, detached from the laptop that asked for it."""

from __future__ import annotations

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
    outside_client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Its exit code is the job's, its output is in the logs, and the hosts end with it."""
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
    outside_client.run("""
        import glob
        from milkweed import registry
        from milkweed.backends import load_backend
        for entry in list(registry.load_entries()):
            backend = load_backend("kubernetes")
            backend.cancel(backend.find(entry.apply_id))
            registry.remove_entry(entry.apply_id)
    """)
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
