"""KubernetesJob: what is declared, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes.settings import make_plans
from milkweed.compute import Compute
from milkweed.errors import BackendError, SpecError
from milkweed.image import Image
from milkweed.job.kubernetes import ImageSpec, KubernetesJob, read_selector
from milkweed.spec import JobSpec, MeshSpec, Resources
from unit.kubernetes_jobs import Space

OWN_WORKER = {"containers": [{"name": "worker", "image": "a", "command": ["python", "own.py"]}]}
"""A pod whose worker is somebody else's, though the job makes it."""


def test_a_mesh_of_pods_that_exist() -> None:
    """Their labels are kept; nothing is made."""
    job = KubernetesJob("training", timeout=5)
    job.add_mesh("workers", 2, "app=mine", "rank")
    options = job.spec.options["meshes"]["workers"]
    assert options["label_selector"] == "app=mine"
    assert options["pod_rank_label"] == "rank"
    assert job.spec.options["namespace"] == "training"
    assert job.spec.client["start_timeout"] == 5
    assert job.spec.sizes == {"workers": 2}


def test_a_mesh_that_is_made() -> None:
    """From an image, from a pod's spec, or from a whole template."""
    job = KubernetesJob()
    job.add_mesh("a", 1, image_spec=ImageSpec("python:3.11", {"cpu": "1"}))
    job.add_mesh("b", 1, pod_spec={"containers": [{"name": "worker", "image": "x"}]})
    job.add_mesh("c", 1, pod_template={"spec": {"containers": [{"name": "worker", "image": "y"}]}})
    images = [
        mesh["pod_template"]["spec"]["containers"][0]["image"]
        for mesh in job.spec.options["meshes"].values()
    ]
    assert images == ["python:3.11", "x", "y"]


def test_without_a_mesh_there_is_no_declaration() -> None:
    """And that is said, instead of something about classes."""
    with pytest.raises(SpecError, match="no mesh yet"):
        _ = KubernetesJob().spec


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "Workers"}, "Workers"),
        ({"name": "1a"}, "1a"),
        ({"name": "a" * 64}, "63"),
        ({"num_replicas": 0}, "0"),
        ({"image_spec": ImageSpec("a"), "pod_spec": {}}, "ways to say one thing"),
        ({"image_spec": ImageSpec("a"), "label_selector": "a=b"}, "label_selector"),
        ({"image_spec": ImageSpec("a"), "pod_rank_label": "x"}, "pod_rank_label"),
        ({"labels": {"a": "b"}}, "labels"),
        ({"annotations": {"a": "b"}}, "annotations"),
        ({"port": 99999}, "port"),
    ],
)
def test_what_is_refused_is_a_value_error(arguments: dict[str, Any], words: str) -> None:
    """Names and conflicts: the rule is named, and the mesh is not added."""
    job = KubernetesJob()
    with pytest.raises(ValueError, match=words):
        job.add_mesh(**{"name": "workers", "num_replicas": 1, **arguments})
    with pytest.raises(SpecError):
        _ = job.spec


def test_pods_that_exist_are_not_looked_for_at_the_endpoint() -> None:
    """By labels or by name alike: whoever waits for them would wait in vain."""
    with pytest.raises(ValueError, match="selector: the endpoint"):
        KubernetesJob(selector={"app": "x"}, provision="https://x")
    with pytest.raises(ValueError, match="mesh 'w': its pods exist already"):
        KubernetesJob(provision="https://x").add_mesh("w", 1)


@pytest.mark.parametrize(("length", "cut"), [(52, False), (53, True), (63, True)])
def test_a_mesh_with_a_long_name_has_an_object_with_a_shorter_one(length: int, cut: bool) -> None:
    """Up to 63 characters are allowed, of which pods could not be made; pods that exist go by the whole."""
    job, name = KubernetesJob(), "w" * length
    job.add_mesh(name, 1, image_spec=ImageSpec("a"))
    [plan] = make_plans(job.spec, "default", "0a1b2c3d")
    assert (plan.place.name != name) == cut
    assert len(plan.place.name) <= 52
    job = KubernetesJob()
    job.add_mesh(name, 1)
    [plan] = make_plans(job.spec, "default")
    assert plan.selector.endswith(f"={name}")


def test_parameters_are_those_of_the_reference() -> None:
    """A call that was written for the engine's own class means the same here, also by position."""
    job = KubernetesJob("ns", 7)
    job.add_mesh(
        "w", 1, None, "apps.kubernetes.io/pod-index", ImageSpec("a"), 30000, None, {"a": "b"}
    )
    mesh = job.spec.options["meshes"]["w"]
    assert (mesh["port"], mesh["labels"]) == (30000, {"a": "b"})
    [plan] = make_plans(job.spec, "ns", "0a1b2c3d")
    assert (plan.place.name, plan.place.port) == ("w", 30000)


def test_what_only_the_client_cares_about_defines_nothing() -> None:
    """Time, output and the way to pods change no allocation."""

    def declare(**more: Any) -> KubernetesJob:
        job = KubernetesJob(**more)
        job.add_mesh("w", 1, "a=b")
        return job

    plain = declare()
    changed = declare(timeout=3, reach="forward", stream_logs=False, on_interrupt="keep")
    assert changed.spec.fingerprint() == plain.spec.fingerprint()
    assert changed.spec.client["reach"] == "forward"
    assert declare(namespace="x").spec.fingerprint() != plain.spec.fingerprint()
    assert declare(context="x").spec.options["context"] == "x"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compute": Compute(), "selector": {"a": "b"}}, "compute and selector"),
        ({"compute": Compute(namespace="a"), "namespace": "b"}, "compute.namespace"),
        ({"namespace": "No_Such"}, "namespace"),
        ({"use_websocket": False}, "use_websocket"),
        ({"reach": "somehow"}, "reach"),
        ({"on_interrupt": "cry"}, "on_interrupt"),
        ({"timeout": -1}, "timeout"),
        ({"sync_dirs": ["/no/such/folder"]}, "sync_dirs"),
        ({"compute": Compute(), "monarch_port": 0}, "port"),
        ({"compute": Compute(), "monarch_port": 65535}, "port"),
        ({"selector": {}}, "selector"),
        ({"selector": ""}, "selector"),
        ({"selector": "a=(b"}, "selector"),
        ({"selector": {"a": "no spaces"}}, "selector"),
    ],
)
def test_a_job_that_cannot_be_is_a_value_error(arguments: dict[str, Any], words: str) -> None:
    """The field is named, and no cluster was asked."""
    with pytest.raises(ValueError, match=words):
        KubernetesJob(**arguments)


def test_what_compute_says_arrives_in_the_template(folder: Path) -> None:
    """All of it: what the container is given, where it may run, what it sees, who admits it."""
    compute = Compute(
        gpus=8,
        cpus=4,
        memory="16Gi",
        disk_size="1Gi",
        gpu_type="H100",
        replicas=3,
        image="ghcr.io/me/it:1",
        env_vars={"A": "b"},
        secrets=["token", "keys:/keys"],
        node_selector={"zone": "a"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        labels={"team": "x"},
        annotations={"note": "y"},
        queue_name="fast",
        priority_class_name="high",
        service_account_name="me",
        volumes=["data:/data"],
        shared_memory_limit="2Gi",
        image_pull_policy="Always",
        working_dir="/work",
        namespace="training",
        launch_timeout="10m",
        inactivity_ttl="1h",
    )
    spec = KubernetesJob(compute=compute, monarch_port=30000).spec
    template = spec.options["meshes"]["workers"]["pod_template"]
    pod, [container] = template["spec"], template["spec"]["containers"]
    amounts = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert (container["image"], container["imagePullPolicy"]) == ("ghcr.io/me/it:1", "Always")
    assert container["workingDir"] == "/work"
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert container["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
        "/dev/shm",  # noqa: S108
        "/data",
        "/keys",
    }
    assert pod["nodeSelector"]["zone"] == "a"
    assert "H100" in pod["nodeSelector"].values()
    assert {"key": "gpu", "operator": "Exists"} in pod["tolerations"]
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("high", "me")
    assert template["metadata"]["labels"] == {"team": "x", "kueue.x-k8s.io/queue-name": "fast"}
    assert template["metadata"]["annotations"]["note"] == "y"
    assert spec.sizes == {"workers": 3}
    assert (spec.options["namespace"], spec.client["start_timeout"]) == ("training", 600.0)
    assert spec.lifetime.idle_timeout_s == 3600.0
    assert spec.options["meshes"]["workers"]["port"] == 30000


def test_a_time_out_of_the_job_wins(folder: Path) -> None:
    """Who says both means the nearer one."""
    job = KubernetesJob(timeout=5, compute=Compute(launch_timeout=60))
    assert job.spec.client["start_timeout"] == 5


def test_steps_of_an_image_are_the_clients(folder: Path) -> None:
    """They are done in containers that run; the image without them is what is pulled."""
    image = Image("base").pip_install(["numpy"])
    spec = KubernetesJob(compute=Compute(image=image)).spec
    assert Image.from_json(spec.client["images"]["workers"]) == image
    assert "images" not in KubernetesJob(compute=Compute(image="base")).spec.client


def test_more_meshes_beside_a_compute(folder: Path) -> None:
    """The mesh `workers` is one of several."""
    job = KubernetesJob(compute=Compute(replicas=2))
    job.add_mesh("readers", 1, image_spec=ImageSpec("a"))
    assert job.spec.sizes == {"workers": 2, "readers": 1}
    with pytest.raises(ValueError, match="workers"):
        job.add_mesh("workers", 1, image_spec=ImageSpec("a"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"image_spec": ImageSpec("a")}, {"label_selector": "app=x"}),
        ({"label_selector": "app=x"}, {"image_spec": ImageSpec("a")}),
        ({"image_spec": ImageSpec("a")}, {"pod_spec": OWN_WORKER}),
    ],
)
def test_hosts_of_ours_and_workers_of_others_are_two_jobs(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A program speaks TLS or it does not; the mesh that does not fit is refused, the others stay."""
    job = KubernetesJob()
    job.add_mesh("a", 1, **first)
    with pytest.raises(SpecError, match="which speak TLS") as caught:
        job.add_mesh("b", 1, **second)
    assert "'a'" in caught.value.what
    assert "'b'" in caught.value.what
    assert "two jobs" in caught.value.hint
    assert job.spec.sizes == {"a": 1}


def test_workers_of_others_go_together() -> None:
    """Whoever made their pods."""
    job = KubernetesJob()
    job.add_mesh("a", 1, "app=x")
    job.add_mesh("b", 1, pod_spec=OWN_WORKER)
    assert job.spec.sizes == {"a": 1, "b": 1}


def test_a_job_with_a_selector_has_no_hosts_of_ours() -> None:
    """It is refused before the cluster is asked how many pods there are."""
    job = KubernetesJob(selector="app=x")
    with pytest.raises(SpecError, match="'workers' are workers of somebody else"):
        job.add_mesh("b", 1, image_spec=ImageSpec("a"))
    job.add_mesh("c", 1, "app=y")


def test_a_job_file_with_both_is_refused() -> None:
    """Before anything is made."""
    meshes = {"a": {"image": "i"}, "b": {"label_selector": "app=x"}}
    spec = JobSpec(
        name="demo",
        backend="kubernetes",
        meshes=(MeshSpec(name="a", hosts=1), MeshSpec(name="b", hosts=1)),
        options={"meshes": meshes},
    )
    with pytest.raises(SpecError, match="which speak TLS"):
        make_plans(spec, "default")


# Pods that exist


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"app": "x"}, "app=x"),
        ({"b": "2", "a": "1"}, "a=1,b=2"),
        ("app=x", "app=x"),
        ("app in (x,y),!gone", "app in (x,y),!gone"),
    ],
)
def test_a_selector_is_a_mapping_or_text(selector: Any, expected: str) -> None:
    """As Kubernetes writes it."""
    assert read_selector(selector) == expected


def test_a_selector_is_as_many_hosts_as_there_are_pods(space: Space) -> None:
    """Only the cluster knows, so it is asked when somebody wants to know, and once."""
    for name in "abc":
        space.add_pod(name, "", labels={"app": "x"})
    job = KubernetesJob("lab", selector={"app": "x"}, monarch_port=30000, context="c")
    assert space.asked == []
    assert job.spec.sizes == {"workers": 3}
    assert job.spec.options["meshes"]["workers"] == {
        "label_selector": "app=x",
        "pod_rank_label": "",
        "port": 30000,
    }
    assert space.asked == [("list", "pods")]
    assert space.reached == [("c", None)]


def test_a_selector_that_finds_nothing(space: Space) -> None:
    """A mesh without hosts is none."""
    with pytest.raises(BackendError, match="no pod"):
        _ = KubernetesJob("lab", selector="app=x").spec


# Job files


def from_file(**options: Any) -> JobSpec:
    """A declaration with resources, as job files have them."""
    wants = Resources(cpus=4, gpus=2, gpu_type="H100", memory_bytes=2**33, disk_bytes=2**30)
    mesh = MeshSpec(name="w", hosts=1, resources=wants)
    return JobSpec(name="demo", backend="kubernetes", meshes=(mesh,), options=options)


def test_resources_of_a_job_file_are_asked_for() -> None:
    """In Kubernetes' words; what its own block says of the same wins."""
    own = {"w": {"resources": {"cpu": "500m", "hugepages-2Mi": "2Mi"}}}
    [plan] = make_plans(from_file(image="a", meshes=own), "ns")
    assert plan.template is not None
    asked = plan.template["spec"]["containers"][0]["resources"]["requests"]
    assert asked == {
        "cpu": "500m",
        "memory": "8Gi",
        "ephemeral-storage": "1Gi",
        "nvidia.com/gpu": "2",
        "hugepages-2Mi": "2Mi",
    }
    assert "H100" in plan.template["spec"]["nodeSelector"].values()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "meshes.w.cpus"),
        (
            {"pod_template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}},
            "meshes.w.cpus",
        ),
    ],
)
def test_resources_that_nobody_would_ask_for_are_refused(said: dict[str, Any], words: str) -> None:
    """Pods that exist have what they have, and a template says what its pods need."""
    with pytest.raises(SpecError, match=words):
        make_plans(from_file(meshes={"w": said}), "ns")


@pytest.mark.parametrize("meshes", [{"w": 3}, {"w": ["a"]}, ["w"], "w"])
def test_what_is_no_mapping_is_refused(meshes: Any) -> None:
    """With its place in the file."""
    with pytest.raises(SpecError, match=r"kubernetes\.meshes"):
        make_plans(from_file(image="a", meshes=meshes), "ns")
