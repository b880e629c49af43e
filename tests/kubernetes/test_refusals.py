"""What cannot be in clusters: it is told in the words of who knows, and nothing is left of it."""

from __future__ import annotations

import re
import subprocess

from kubernetes.lab import BUSYBOX, PYTHON, WORKER, Lab
from kubernetes.operators import Meshes, Operating, install
from kubernetes.test_job import simple
from programs import Client, finish

ASK = """
    from milkweed.job.kubernetes import KubernetesJob, ImageSpec
    job = KubernetesJob({namespace!r}, timeout=40)
    job.add_mesh({mesh!r}, 1, image_spec=ImageSpec({image!r}, resources={resources!r}))
    try:
        job.state()
    finally:
        job.kill()
"""
REFUSED = {
    "an image that is not there": (
        {"image": "localhost/nobody:1"},
        ["localhost/nobody:1", "its image cannot be pulled"],
    ),
    "an image without Python": (
        {"image": BUSYBOX},
        ["exit code 127", "this image has no Python", "HostFailedError"],
    ),
    "an image without the engine": (
        {"image": PYTHON},
        ["the engine cannot be imported", "pip install torchmonarch", "HostFailedError"],
    ),
    "more than any node has": (
        {"image": WORKER, "cpu": "1000"},
        ["Insufficient cpu", "DeadlineError"],
    ),
    "too little memory": ({"image": WORKER, "memory": "20Mi"}, ["OOMKilled"]),
}


def test_what_cannot_start_is_told(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """With the words of who knows: the node, the image itself, the host, or the scheduler at the deadline."""
    programs: dict[str, subprocess.Popen[str]] = {}
    for number, (what, (asked, _told)) in enumerate(REFUSED.items()):
        image, resources = asked["image"], {key: asked[key] for key in asked if key != "image"}
        code = ASK.format(namespace=namespace, mesh=f"w{number}", image=image, resources=resources)
        programs[what] = client.beside(str(number)).start(code)
    said = {what: "".join(finish(each, client.timeout_s)) for what, each in programs.items()}
    assert {each.returncode for each in programs.values()} == {1}, said
    wrong = [what for what in REFUSED if any(words not in said[what] for words in REFUSED[what][1])]
    assert {what: said[what] for what in wrong} == {}
    types = re.compile(r"^milkweed\.errors\.(HostFailedError|DeadlineError): ", re.MULTILINE)
    assert [what for what in REFUSED if not types.search(said[what])] == []
    lab.wait_empty(namespace)


def test_a_namespace_that_is_not_there(client: Client, lab: Lab) -> None:
    """It is named with what makes it; to who may look nowhere else, it is forbidden."""
    out = client.run(simple("not-there", 1), code_expected=1, KUBECONFIG=lab.kubeconfig)
    assert "BackendError: the cluster has no namespace 'not-there'" in out
    assert "kubectl create namespace not-there" in out
    out = client.run(simple("not-there", 1), code_expected=1)
    assert "the API server forbids it" in out
    assert "'not-there'" in out


def test_a_cluster_without_the_operators_definition(
    client: Client, lab: Lab, namespace: str, alone: None
) -> None:
    """What installs it is told, and nothing is made."""
    lab.kubectl("delete", "crd", "monarchmeshes.monarch.pytorch.org", "--ignore-not-found")
    try:
        out = client.run(simple(namespace, 1), code_expected=1)
        assert lab.objects(namespace) == []
    finally:
        install(lab)
    assert "BackendError: the cluster does not know MonarchMesh objects" in out
    assert "milkweed operator manifests | kubectl apply -f -" in out


def test_a_user_without_rights(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The API server's own refusal, with the verb and the resource."""
    login = lab.make_login(client.folder, namespace, "nobody")
    out = client.run(simple(namespace, 1), code_expected=1, KUBECONFIG=login)
    assert "forbidden" in out.lower()
    assert "monarchmeshes" in out or "secrets" in out
    assert not [name for name in lab.objects(namespace) if "serviceaccount" not in name]


def test_a_context_that_is_not_there(client: Client, namespace: str) -> None:
    """It is told before anything is asked, with those that are there."""
    code = simple(namespace, 1).replace(f"({namespace!r})", f"({namespace!r}, context='nope')")
    out = client.run(code, code_expected=1)
    assert "there is no context 'nope'" in out
    assert "SpecError" in out


BIG = """
    import milkweed as kt
    from milkweed import KubernetesJob
    compute = kt.Compute(
        gpu=8,
        cpu="32",
        memory="256Gi",
        replicas=4,
        image=kt.Image(name="my-training").from_docker({image!r}).pip_install(["torch", "transformers"]),
        launch_timeout="20s",
    )
    job = KubernetesJob(compute=compute, namespace={namespace!r})
    job.state()
"""


def test_more_than_the_cluster_has_within_a_time(
    client: Client, lab: Lab, namespace: str, operating: Operating
) -> None:
    """The document's large Compute asks for what it says; after `launch_timeout` the scheduler's word is told."""
    out = client.run(BIG.format(image=WORKER, namespace=namespace), code_expected=1)
    assert "DeadlineError" in out
    assert "Insufficient" in out
    pods = Meshes(lab, namespace).pods()
    asked = [pod["spec"]["containers"][0]["resources"]["requests"] for pod in pods.values()]
    assert asked == [{"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"}] * 4
    client.run("job_load().kill()")
    lab.wait_empty(namespace)
