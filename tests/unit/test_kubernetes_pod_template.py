"""From what a person said to a pod template: least privilege, no surprises, and the worker in the right place."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from milkweed.backends.kubernetes.pod_template import (
    QUEUE_LABEL,
    SHM_PATH,
    ImageSpec,
    check_resources,
    find_worker,
    inject_worker,
    make_from_compute,
    make_from_image,
    make_from_pod_spec,
    make_from_pod_template,
)
from milkweed.compute import Compute, Image
from milkweed.errors import SpecError
from milkweed.image import DEFAULT_IMAGE

IMAGE = "ghcr.io/acme/train:1"
LEAST = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
INSTALLS = {key: value for key, value in LEAST.items() if key != "capabilities"}


def worker_of(template: dict[str, Any]) -> dict[str, Any]:
    [container] = template["spec"]["containers"]
    return container


def compute_spec(**words: Any) -> dict[str, Any]:
    return make_from_compute(Compute(**words))["spec"]


def compute_worker(**words: Any) -> dict[str, Any]:
    return worker_of(make_from_compute(Compute(**words)))


# ImageSpec


def test_an_image_and_nothing_else() -> None:
    """One container that can do as little as possible, and no token of the cluster."""
    assert make_from_image(ImageSpec(IMAGE)) == {
        "metadata": {},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [{"name": "worker", "image": IMAGE, "securityContext": LEAST}],
        },
    }


def test_what_is_asked_for_is_also_the_limit() -> None:
    """So a host gets what it was promised, and no more."""
    container = worker_of(
        make_from_image(ImageSpec(IMAGE, resources={"nvidia.com/gpu": 4, "memory": "1024Mi"}))
    )
    amounts = {"nvidia.com/gpu": "4", "memory": "1Gi"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}


def test_shared_memory_is_a_volume_of_memory() -> None:
    """A container's own /dev/shm has 64 MB."""
    template = make_from_image(ImageSpec(IMAGE, shared_memory_size="16Gi"))
    assert template["spec"]["volumes"] == [
        {"name": "dev-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    ]
    assert worker_of(template)["volumeMounts"] == [{"name": "dev-shm", "mountPath": SHM_PATH}]


def test_fuse_is_the_only_way_to_be_privileged() -> None:
    """It is what mounting needs, and nobody gets it who did not ask."""
    template = make_from_image(ImageSpec(IMAGE, enable_fuse=True))
    assert worker_of(template)["securityContext"] == {"privileged": True}
    assert template["spec"]["volumes"] == [
        {"name": "dev-fuse", "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}}
    ]
    assert worker_of(template)["volumeMounts"] == [{"name": "dev-fuse", "mountPath": "/dev/fuse"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"image": "Big Image"}, "image_spec.image: "),
        ({"image": IMAGE, "resources": {"gpu": 1}}, "image_spec.resources.gpu: unknown resource"),
        ({"image": IMAGE, "resources": {"mem": "1Gi"}}, "image_spec.resources.mem: unknown"),
        ({"image": IMAGE, "resources": {"memory": "1GB"}}, "image_spec.resources.memory: '1GB'"),
        ({"image": IMAGE, "resources": {"cpu": 0}}, "image_spec.resources.cpu: 0 is not more"),
        ({"image": IMAGE, "resources": {"nvidia.com/gpu": 0.5}}, "image_spec.resources.nvidia"),
        ({"image": IMAGE, "resources": {"a b": 1}}, "image_spec.resources: 'a b'"),
        ({"image": IMAGE, "shared_memory_size": "0"}, "image_spec.shared_memory_size: '0'"),
        ({"image": IMAGE, "shared_memory_size": "x"}, "image_spec.shared_memory_size: 'x'"),
    ],
)
def test_an_image_spec_is_checked_when_it_is_made(words: Any, message: str) -> None:
    """Where the person wrote it, and not when the first pod is refused."""
    with pytest.raises(SpecError) as caught:
        ImageSpec(**words)
    assert caught.value.what.startswith(message)


def test_resources_of_kubernetes_and_of_others() -> None:
    """Its own have plain names, devices have a domain; what is near is suggested."""
    known = {"cpu": "500m", "hugepages-2Mi": "64Mi", "rdma/hca": 1, "ephemeral-storage": "1Gi"}
    assert check_resources(known, field="x") == {**known, "rdma/hca": "1"}
    with pytest.raises(SpecError) as caught:
        check_resources({"nvidia.com": 1}, field="x")
    assert caught.value.hint == "did you mean 'nvidia.com/gpu'?"


# Compute


def test_a_compute_that_says_nothing() -> None:
    """The default image, shared memory as memory allows, as little privilege as steps can do with."""
    spec = compute_spec()
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"] == [
        {
            "name": "worker",
            "image": DEFAULT_IMAGE,
            "volumeMounts": [{"name": "dev-shm", "mountPath": SHM_PATH}],
            "securityContext": INSTALLS,
        }
    ]
    assert spec["volumes"] == [{"name": "dev-shm", "emptyDir": {"medium": "Memory"}}]
    assert set(spec) == {
        *("automountServiceAccountToken", "enableServiceLinks", "containers", "volumes")
    }


def test_a_compute_asks_for_what_it_says() -> None:
    """GPUs are counted by their maker's name, and their nodes' taint is put up with."""
    spec = compute_spec(gpus=8, cpus=32, memory="256Gi", disk_size="1Ti", gpu_type="H100")
    amounts = {
        "cpu": "32",
        "memory": "256Gi",
        "ephemeral-storage": "1Ti",
        "nvidia.com/gpu": "8",
    }
    assert spec["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "H100"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu"])
def test_an_image_with_gpus_puts_up_with_their_nodes_taint(name: str) -> None:
    """As a Compute does; nobody else is let onto such nodes."""
    spec = make_from_image(ImageSpec("a", resources={name: 2, "cpu": 1}))["spec"]
    assert spec["tolerations"] == [{"key": name, "operator": "Exists", "effect": "NoSchedule"}]
    assert "tolerations" not in make_from_image(ImageSpec("a", resources={"cpu": 1}))["spec"]


def test_gpus_of_amd() -> None:
    """Counted and tolerated under their own name."""
    spec = compute_spec(gpus=2, gpu_type="amd")
    assert spec["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "2"}
    assert spec["tolerations"][0]["key"] == "amd.com/gpu"
    assert "nodeSelector" not in spec


def test_a_toleration_of_ones_own_stays_alone() -> None:
    """What was said about the taint is not said again."""
    own = [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "x"}]
    assert compute_spec(gpus=1, tolerations=own)["tolerations"] == own
    other = [{"key": "team", "operator": "Exists"}]
    assert len(compute_spec(gpus=1, tolerations=other)["tolerations"]) == 2


def test_where_a_compute_runs_and_as_whom() -> None:
    """Each word is the field of that name; a named account has its token."""
    spec = compute_spec(
        node_selector={"zone": "a"},
        priority_class_name="high",
        service_account_name="trainer",
    )
    assert spec["nodeSelector"] == {"zone": "a"}
    assert spec["priorityClassName"] == "high"
    assert spec["serviceAccountName"] == "trainer"
    assert "automountServiceAccountToken" not in spec


def test_what_the_container_of_a_compute_has() -> None:
    """Image, variables, working folder and pull policy."""
    container = compute_worker(
        image=Image().from_docker("busybox"),
        env_vars={"A": 1, "B": "x"},
        working_dir="/srv",
        image_pull_policy="Always",
        shared_memory_limit="2Gi",
    )
    assert container["image"] == "busybox"
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "x"}]
    assert container["workingDir"] == "/srv"
    assert container["imagePullPolicy"] == "Always"


def test_secrets_are_variables_or_files() -> None:
    """Files are read only; a name that is too long for a volume is cut."""
    long = "s" * 80
    template = make_from_compute(Compute(secrets=["hf", "aws:/root/.aws", f"{long}:/x"]))
    container = worker_of(template)
    assert container["envFrom"] == [{"secretRef": {"name": "hf"}}]
    assert container["volumeMounts"][1] == {
        "name": "secret-aws",
        "mountPath": "/root/.aws",
        "readOnly": True,
    }
    volumes = template["spec"]["volumes"]
    assert volumes[1] == {"name": "secret-aws", "secret": {"secretName": "aws"}}
    assert volumes[2]["secret"] == {"secretName": long}
    assert len(volumes[2]["name"]) <= 63


def test_volumes_are_claims() -> None:
    """One claim may be seen in two folders, and a secret may have a claim's name."""
    template = make_from_compute(
        Compute(volumes=["data:/a", "data:/b:ro"], secrets=["data:/c"], shared_memory_limit="1Gi")
    )
    assert template["spec"]["volumes"] == [
        {"name": "dev-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "claim-data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "secret-data", "secret": {"secretName": "data"}},
    ]
    assert worker_of(template)["volumeMounts"][1:] == [
        {"name": "claim-data", "mountPath": "/a"},
        {"name": "claim-data", "mountPath": "/b", "readOnly": True},
        {"name": "secret-data", "mountPath": "/c", "readOnly": True},
    ]


def test_queues_and_shares_are_labels_and_annotations() -> None:
    """Kueue and schedulers that share GPUs read them there."""
    words = {"labels": {"team": "ml"}, "annotations": {"note": "x"}}
    template = make_from_compute(Compute(queue_name="gpus", gpu_memory="4Gi", **words))
    assert template["metadata"] == {
        "labels": {"team": "ml", QUEUE_LABEL: "gpus"},
        "annotations": {"note": "x", "gpu-memory": "4096"},
    }


def test_hosts_without_gpus_can_keep_off_nodes_with_them() -> None:
    """And only those: who asks for GPUs must be let on such nodes."""
    affinity = compute_spec(gpu_anti_affinity=True)["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {each["operator"] for each in term["matchExpressions"]} == {"DoesNotExist"}
    assert "affinity" not in compute_spec(gpu_anti_affinity=True, gpus=1)
    assert "affinity" not in compute_spec()


def test_commands_that_set_up_a_container_keep_what_docker_gives() -> None:
    """Without these rights apt does not work, and steps may be added while the pods stay the same."""
    for image in (None, Image().pip_install("torch"), Image().run_bash("apt-get update")):
        assert compute_worker(image=image)["securityContext"] == INSTALLS


def test_templates_are_plain_data() -> None:
    """They go out as JSON, and none is part of another."""
    compute = Compute(labels={"a": "b"}, tolerations=[{"operator": "Exists"}], gpus=1)
    first, second = make_from_compute(compute), make_from_compute(compute)
    assert json.loads(json.dumps(first)) == first
    first["metadata"]["labels"]["x"] = "y"
    first["spec"]["tolerations"][0]["key"] = "z"
    assert second == make_from_compute(compute)


# The worker

WORKER: dict[str, Any] = {
    "command": ["python", "-m", "worker"],
    "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "mounts": [{"name": "milkweed", "mountPath": "/etc/milkweed"}],
    "volumes": [{"name": "milkweed", "secret": {"secretName": "x"}}],
    "ports": [{"name": "monarch", "containerPort": 26600}],
    "probe": {"tcpSocket": {"port": 26600}},
}


def spec_of(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return make_from_pod_spec({"containers": list(containers), **more})


def container(name: str = "worker", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox", **more}


def test_the_worker_is_put_into_a_template() -> None:
    """Command, variables, mounts, ports and probe of its container; volumes of the pod."""
    injected = inject_worker(spec_of(container()), **WORKER)
    assert (injected.container, injected.own_worker) == ("worker", False)
    assert injected.template["spec"] == {
        "containers": [
            container(
                command=["python", "-m", "worker"],
                env=WORKER["env"],
                volumeMounts=WORKER["mounts"],
                ports=WORKER["ports"],
                terminationMessagePolicy="FallbackToLogsOnError",
                readinessProbe=WORKER["probe"],
            )
        ],
        "volumes": WORKER["volumes"],
    }


def test_a_template_is_not_changed_by_that() -> None:
    """It belongs to the person, who may use it again."""
    template = spec_of(container(env=[{"name": "A", "value": "1"}]), volumes=[{"name": "v"}])
    before = copy.deepcopy(template)
    inject_worker(template, **WORKER)
    assert template == before


@pytest.mark.parametrize(
    ("names", "chosen"),
    [(["worker"], 0), (["main"], 0), (["side", "worker"], 1), (["main", "side"], 0)],
)
def test_the_worker_has_the_container_of_its_name_or_the_first(
    names: list[str], chosen: int
) -> None:
    """Sidecars stay what they are."""
    template = spec_of(*(container(name) for name in names))
    injected = inject_worker(template, **WORKER)
    assert find_worker(template) == chosen
    assert injected.container == names[chosen]
    with_command = ["command" in each for each in injected.template["spec"]["containers"]]
    assert with_command == [at == chosen for at in range(len(names))]


@pytest.mark.parametrize("own", [{"command": ["sleep", "1"]}, {"args": ["serve"]}])
def test_a_command_of_ones_own_is_kept(own: dict[str, Any]) -> None:
    """Nothing is put into it, and the caller is told; arguments alone are one, too."""
    injected = inject_worker(spec_of(container(**own)), **WORKER)
    assert injected.own_worker
    assert injected.template == spec_of(
        container(**own, terminationMessagePolicy="FallbackToLogsOnError")
    )


def test_variables_of_the_worker_win() -> None:
    """They come last and in their order, since one may be made of another."""
    theirs = [{"name": "POD", "value": "mine"}, {"name": "A", "value": "1"}]
    ours = [*WORKER["env"], {"name": "NODE", "value": "$(POD).svc"}]
    injected = inject_worker(spec_of(container(env=theirs)), **{**WORKER, "env": ours})
    assert worker_of(injected.template)["env"] == [theirs[1], *ours]


def test_what_a_person_said_about_ports_and_readiness_stays() -> None:
    """A port that is there is not there twice, and a probe of their own is theirs."""
    own = {
        "ports": [{"name": "mine", "containerPort": 26600}],
        "readinessProbe": {"exec": {"command": ["true"]}},
    }
    made = worker_of(inject_worker(spec_of(container(**own)), **WORKER).template)
    assert {key: made[key] for key in own} == own
    assert "readinessProbe" not in worker_of(
        inject_worker(spec_of(container()), **{**WORKER, "probe": None}).template
    )


@pytest.mark.parametrize(
    "template",
    [
        spec_of(container(), volumes=[{"name": "milkweed"}]),
        spec_of(container(volumeMounts=[{"name": "x", "mountPath": "/etc/milkweed"}])),
        spec_of(container(ports=[{"name": "monarch", "containerPort": 1}])),
    ],
)
def test_what_the_worker_needs_for_itself_is_refused(template: dict[str, Any]) -> None:
    """The cluster would refuse it, too, and say less."""
    with pytest.raises(SpecError, match="which milkweed needs for itself"):
        inject_worker(template, **WORKER)


def test_the_worker_goes_into_every_kind_of_template() -> None:
    """Whatever a template was made from."""
    for template in (
        make_from_image(ImageSpec(IMAGE, shared_memory_size="1Gi")),
        make_from_compute(Compute(volumes=["data"])),
        make_from_pod_template({"spec": {"containers": [container()]}}),
    ):
        made = inject_worker(template, **WORKER).template
        assert made["spec"]["volumes"][-1] == WORKER["volumes"][0]
        assert worker_of(made)["command"] == WORKER["command"]
