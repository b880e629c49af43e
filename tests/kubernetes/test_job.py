"""KubernetesJob as people use it: programs in the cluster, hosts in pods that the operator makes."""

from __future__ import annotations

from kubernetes.lab import WORKER, Lab
from kubernetes.operators import Operating
from programs import Client


def test_pods_from_an_image(client: Client, lab: Lab, namespace: str, operating: Operating) -> None:
    """A declaration, its state, actors on every pod; kill() leaves nothing."""
    before = lab.objects(namespace)
    out = client.run(f"""
        from milkweed.job.kubernetes import KubernetesJob, ImageSpec
        image = ImageSpec({WORKER!r})
        job = KubernetesJob({namespace!r})
        job.add_mesh("trainers", 2, image_spec=image)
        job.add_mesh("loaders", 1, image_spec=image)
        state = job.state()
        trainers = state.trainers.spawn_procs(per_host={{"gpus": 2}}).spawn("t", Probe)
        loaders = state.loaders.spawn_procs().spawn("l", Probe)
        print("pids", len(values(trainers.pid.call().get())), len(values(loaders.pid.call().get())))
        print("pods", sorted(set(values(trainers.variable.call("HOSTNAME").get()))))
        job.kill()
    """)
    assert "pids 4 1" in out
    assert "pods ['trainers-0', 'trainers-1']" in out
    assert lab.objects(namespace) == before


def test_a_laptop_that_reaches_nothing_but_the_api_server(
    outside_client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """Orders and actors go through the API server to one pod, and from there to all."""
    out = outside_client.run(f"""
        from milkweed.job.kubernetes import KubernetesJob, ImageSpec
        job = KubernetesJob({namespace!r})
        job.add_mesh("trainers", 2, image_spec=ImageSpec({WORKER!r}))
        state = job.state()
        trainers = state.trainers.spawn_procs(per_host={{"gpus": 2}}).spawn("t", Probe)
        print("pids", len(values(trainers.pid.call().get())))
        trainers.say.call("hello").get()
        print("pods", sorted(set(values(trainers.variable.call("HOSTNAME").get()))))
        job.kill()
    """)
    assert "pids 4" in out
    assert out.count("hello") == 4
    assert "pods ['trainers-0', 'trainers-1']" in out
    assert lab.objects(namespace) == []
