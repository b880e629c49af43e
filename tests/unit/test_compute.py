"""What each host should be, in Kubetorch's words: every field is checked, and nothing is dropped silently."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed.compute import Compute, Image, Mount
from milkweed.errors import SpecError

WORDS = [field.name for field in dataclasses.fields(Compute)]


def refusal(**words: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Compute(**words)
    return caught.value


def test_the_example_of_the_document() -> None:
    """As Kubetorch's own document writes it."""
    compute = Compute(
        gpu=8,
        cpu="32",
        memory="256Gi",
        replicas=4,
        image=Image(name="my-training").pip_install(["torch", "transformers"]),
    )
    assert (compute.gpus, compute.cpus, compute.memory, compute.replicas) == (8, "32", "256Gi", 4)
    assert compute.image is not None
    assert len(compute.image.steps) == 2
    assert compute.resources == {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"}


def test_nothing_need_be_said() -> None:
    """One host, and whatever the cluster gives."""
    compute = Compute()
    assert compute.replicas == 1
    assert compute.resources == {}
    assert compute.to_json() == {}


def test_a_compute_is_a_value() -> None:
    """It cannot be changed, and equal words make equal values."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Compute().gpus = 4  # type: ignore[misc]
    assert Compute(cpus="500m", memory="1Gi") == Compute(cpu=0.5, memory="1024Mi")
    assert Compute(gpus=1) != Compute(gpus=2)
    assert dataclasses.replace(Compute(gpus=1), replicas=2) == Compute(gpus=1, replicas=2)


def test_values_of_one_compute_are_not_those_of_another() -> None:
    """What nobody said is empty in each of them on its own."""
    assert Compute().labels is not Compute().labels


@pytest.mark.parametrize("name", WORDS)
def test_not_said_is_the_same_as_none(name: str) -> None:
    """None is what Kubetorch has for «not said», in every field."""
    assert Compute(**{name: None}) == Compute()


# Both spellings


def test_both_spellings_may_be_given_when_they_agree() -> None:
    """`gpu` is `gpus`, `cpu` is `cpus`; the same amount is the same."""
    assert Compute(gpu=8, gpus="8") == Compute(gpus=8)
    assert Compute(cpu="500m", cpus=0.5) == Compute(cpus="500m")
    assert refusal(gpu=8, gpus=4).what == "compute.gpu: 8, but gpus is 4"
    assert refusal(cpu=1, cpus=2).what == "compute.cpu: 1, but cpus is 2"
    assert refusal(gpu=-1).what.startswith("compute.gpu: ")


# Amounts


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        ({"gpus": 8}, "gpus", 8),
        ({"gpus": "8"}, "gpus", 8),
        ({"gpus": 0}, "gpus", 0),
        ({"cpus": 32}, "cpus", "32"),
        ({"cpus": "0.5"}, "cpus", "500m"),
        ({"cpus": "500m"}, "cpus", "500m"),
        ({"cpus": "1.0001"}, "cpus", "1001m"),
        ({"memory": "256Gi"}, "memory", "256Gi"),
        ({"memory": 2**30}, "memory", "1Gi"),
        ({"memory": "0.1Gi"}, "memory", "107374183"),
        ({"disk_size": "1000G"}, "disk_size", "1T"),
        ({"shared_memory_limit": "512Mi"}, "shared_memory_limit", "512Mi"),
        ({"gpu_memory": "4Gi"}, "gpu_memory", "4Gi"),
        ({"launch_timeout": 600}, "launch_timeout", 600.0),
        ({"launch_timeout": "10m"}, "launch_timeout", 600.0),
        ({"inactivity_ttl": "1h30m"}, "inactivity_ttl", 5400.0),
        ({"replicas": 3}, "replicas", 3),
        ({"working_dir": "/kt"}, "working_dir", "/kt"),
        ({"image_pull_policy": "Never"}, "image_pull_policy", "Never"),
        ({"env_vars": {"A": 1, "B": "x"}}, "env_vars", {"A": "1", "B": "x"}),
        ({"image": "busybox:1"}, "image", Image().from_docker("busybox:1")),
    ],
)
def test_values_are_kept_in_one_form(words: Any, field: str, expected: Any) -> None:
    """However it is written, the same amount is the same value."""
    assert getattr(Compute(**words), field) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpus": 0.5}, "compute.gpus: 0.5 is not a whole number of GPUs"),
        ({"gpus": "many"}, "compute.gpus: 'many' is not a quantity"),
        ({"gpus": True}, "compute.gpus: True is not a quantity"),
        ({"gpus": -1}, "compute.gpus: -1 is less than zero"),
        ({"cpus": 0}, "compute.cpus: 0 is less than a thousandth"),
        ({"cpus": "0.0001"}, "compute.cpus: '0.0001' is less than a thousandth"),
        ({"cpus": "lots"}, "compute.cpus: 'lots' is not a quantity"),
        ({"memory": "256GB"}, "compute.memory: '256GB' is not a quantity"),
        ({"memory": "256m"}, "compute.memory: '256m' is 1 bytes"),
        ({"memory": 64}, "compute.memory: 64 is 64 bytes"),
        ({"memory": "0Gi"}, "compute.memory: '0Gi' is 0 bytes"),
        ({"disk_size": []}, r"compute.disk_size: \[\] is not a quantity"),
        ({"shared_memory_limit": "x"}, "compute.shared_memory_limit: 'x'"),
        ({"gpu_memory": "4"}, "compute.gpu_memory: '4' is 4 bytes"),
        ({"replicas": 0}, "compute.replicas: 0 hosts"),
        ({"replicas": "2"}, "compute.replicas: '2' is not a whole number"),
        ({"launch_timeout": 0}, "compute.launch_timeout: 0"),
        ({"launch_timeout": "soon"}, "compute.launch_timeout: 'soon' is not a duration"),
        ({"inactivity_ttl": "-1h"}, "compute.inactivity_ttl: '-1h' is not a duration"),
        ({"image": 5}, "compute.image: 5 is not an image"),
        ({"image": "A b"}, "compute.image: 'A b' is not the name of a container image"),
        ({"env_vars": {"A B": ""}}, "compute.env_vars: 'A B'"),
        ({"env_vars": {"A": None}}, "compute.env_vars.A: None is not text"),
        ({"env_vars": "A=1"}, "compute.env_vars: 'A=1' is not a mapping"),
        ({"labels": {"a b": "c"}}, "compute.labels: 'a b' is not the name of a label key"),
        ({"labels": {"a": "b c"}}, "compute.labels.a: 'b c' is not a label value"),
        ({"node_selector": {"a": 1}}, "compute.node_selector.a: 1 is not a label value"),
        ({"node_selector": "a=b"}, "compute.node_selector: 'a=b' is not a mapping"),
        ({"annotations": {"a": 1}}, "compute.annotations.a: 1 is not text"),
        ({"queue_name": "My Queue"}, "compute.queue_name: 'My Queue' is not an RFC 1123"),
        ({"priority_class_name": "High!"}, "compute.priority_class_name: 'High!'"),
        ({"service_account_name": ""}, "compute.service_account_name: ''"),
        ({"namespace": "A.b"}, "compute.namespace: 'A.b' is not an RFC 1123 label"),
        ({"image_pull_policy": "always"}, "compute.image_pull_policy: 'always' is not one of"),
        ({"working_dir": "kt"}, "compute.working_dir: 'kt' is not an absolute path"),
        ({"gpu_anti_affinity": "yes"}, "compute.gpu_anti_affinity: 'yes' is not True or False"),
        ({"gpu_type": ""}, "compute.gpu_type: '' is not text"),
        ({"gpu_type": "A 100"}, "compute.gpu_type: 'A 100' is not a label value"),
        ({"gpu_type": "a b: c"}, "compute.gpu_type: 'a b' is not the name of a label key"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(words: Any, message: str) -> None:
    """The field is named, and what was given."""
    with pytest.raises(SpecError, match=f"^{message}"):
        Compute(**words)


def test_all_that_is_wrong_is_told_at_once() -> None:
    """One try, one list."""
    error = refusal(gpus=0.5, memory="x", freeze=True, colour="red")
    fields = [line.partition(":")[0] for line in error.what.splitlines()]
    assert fields == ["compute.freeze", "compute.colour", "compute.gpus", "compute.memory"]


# Words that milkweed has not


def test_an_unknown_word_is_refused_with_the_nearest() -> None:
    """A typo is never dropped silently."""
    error = refusal(memoryy="1Gi")
    assert error.what == "compute.memoryy: unknown word"
    assert error.hint == "did you mean 'memory'?"


@pytest.mark.parametrize(
    "words",
    [
        {"freeze": True},
        {"service_template": {"spec": {}}},
        {"kubeconfig_path": "~/.kube/config"},
        {"allowed_serialization": ["json"]},
        {"logging_config": object()},
        {"selector": {"app": "x"}},
        {"endpoint": object()},
    ],
)
def test_what_cannot_be_honoured_is_refused(words: dict[str, Any]) -> None:
    """With what to do instead; saying the default is saying nothing."""
    error = refusal(**words)
    assert "milkweed has no such thing" in error.what
    assert error.hint
    assert Compute(**dict.fromkeys(words)) == Compute()


def test_not_freezing_is_nothing() -> None:
    """False is Kubetorch's own default."""
    assert Compute(freeze=False) == Compute()


# GPUs


@pytest.mark.parametrize(
    ("gpu_type", "resource", "selector"),
    [
        (None, "nvidia.com/gpu", {}),
        (
            "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu",
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        ),
        ("nvidia.com/gpu.product: L4", "nvidia.com/gpu", {"nvidia.com/gpu.product": "L4"}),
        (
            "cloud.google.com/gke-accelerator: nvidia-l4",
            "nvidia.com/gpu",
            {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        ),
        ("AMD_Instinct_MI300X", "amd.com/gpu", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}),
        ("amd.com/gpu.family: AI", "amd.com/gpu", {"amd.com/gpu.family": "AI"}),
        ("beta.amd.com/gpu.family: AI", "amd.com/gpu", {"beta.amd.com/gpu.family": "AI"}),
        ("amd", "amd.com/gpu", {}),
        ("amd.com/gpu", "amd.com/gpu", {}),
        ("nvidia", "nvidia.com/gpu", {}),
    ],
)
def test_kinds_of_gpus(gpu_type: str | None, resource: str, selector: dict[str, str]) -> None:
    """A kind of GPU is a label of nodes, and says whose GPUs are counted."""
    compute = Compute(gpus=2, gpu_type=gpu_type, node_selector={"zone": "a"})
    assert compute.resources == {resource: "2"}
    assert compute.selector == {"zone": "a", **selector}


def test_one_label_has_one_value() -> None:
    """A kind of GPU that contradicts the node selector could never be found."""
    same = {"nvidia.com/gpu.product": "L4"}
    assert Compute(gpu_type="L4", node_selector=same).selector == same
    error = refusal(gpu_type="L4", node_selector={"nvidia.com/gpu.product": "H100"})
    assert error.what == "compute.gpu_type: 'L4', but node_selector says 'H100'"


def test_a_share_of_a_gpu_is_no_whole_gpu() -> None:
    """Schedulers that give shares refuse both in one pod."""
    assert Compute(gpu_memory="4Gi").resources == {}
    assert refusal(gpus=1, gpu_memory="4Gi").what.startswith("compute.gpu_memory: ")
    assert Compute(gpus=0, gpu_memory="4Gi").gpus == 0


# Secrets and volumes


def test_secrets_and_volumes_in_all_forms() -> None:
    """By name, by name and folder, as mappings, and as values."""
    mount = Mount(name="a", path="/a")
    secrets = Compute(
        secrets=["a", "a:/a", {"name": "a", "mount_path": "/b"}, Mount(name="c")]
    ).secrets
    assert secrets == (Mount(name="a"), mount, Mount(name="a", path="/b"), Mount(name="c"))
    volumes = Compute(
        volumes=["data", "a:/a:ro", {"name": "b", "path": "/b", "read_only": True}]
    ).volumes
    assert volumes == (
        Mount(name="data", path="/mnt/data"),
        Mount(name="a", path="/a", read_only=True),
        Mount(name="b", path="/b", read_only=True),
    )


class Foreign:
    """An object of somebody else's library."""

    name = "x"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("data", "compute.volumes: 'data' is not a list"),
        ({"name": "a"}, "compute.volumes: .* is not a list"),
        (["A"], r"compute.volumes\[0\]: 'A' is not an RFC 1123 subdomain"),
        (["a", "b:c"], r"compute.volumes\[1\]: 'c' is not an absolute path"),
        (["a:/b:rw"], r"compute.volumes\[0\]: 'a:/b:rw' is not read"),
        (["a:/b:ro:x"], r"compute.volumes\[0\]: 'a:/b:ro:x' is not read"),
        ([{"name": "a", "size": "5Gi"}], r"compute.volumes\[0\].size: unknown word"),
        ([{"path": "/a"}], r"compute.volumes\[0\]: '' is not"),
        ([{"name": "a", "read_only": 1}], r"compute.volumes\[0\].read_only: 1 is not True"),
        ([Foreign()], r"compute.volumes\[0\]: Foreign is not read; milkweed makes no secrets"),
        (["a:/x", "b:/x/"], "compute.volumes: 'b' and 'a' are both seen in /x/"),
        (["a:/dev/shm"], "compute.volumes: 'a' and 'shared memory'"),
    ],
)
def test_volumes_that_cannot_be(value: Any, message: str) -> None:
    """What is not there already cannot be given, and each has a folder of its own."""
    with pytest.raises(SpecError, match=f"^{message}"):
        Compute(volumes=value)


def test_secrets_and_volumes_share_no_folder() -> None:
    """Neither would be seen."""
    said = refusal(volumes=["a:/x"], secrets=["b:/x"]).what
    assert said == "compute.secrets: 'b' and 'a' are both seen in /x"


# Tolerations


def test_tolerations_are_what_kubernetes_takes() -> None:
    """In its own spelling, or in Python's; what is None is not said."""
    given_ones = [
        {"key": "gpu", "operator": "Exists", "value": None},
        {"operator": "Exists"},
        {"key": "a", "value": "b", "effect": "NoExecute", "toleration_seconds": 60},
    ]
    assert Compute(tolerations=given_ones).tolerations == (
        {"key": "gpu", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 60},
    )


@pytest.mark.parametrize(
    ("toleration", "message"),
    [
        ("gpu", "compute.tolerations[0]: 'gpu' is not a mapping"),
        ({"key": "a", "efekkt": "NoSchedule"}, "compute.tolerations[0].efekkt: unknown word"),
        ({"key": "a", "operator": "exists"}, "compute.tolerations[0].operator: 'exists'"),
        ({"key": "a", "effect": "No"}, "compute.tolerations[0].effect: 'No'"),
        ({"key": "a", "operator": "Exists", "value": "b"}, "compute.tolerations[0].value: "),
        ({"value": "b"}, "compute.tolerations[0].key: without one"),
        ({"key": "a b"}, "compute.tolerations[0].key: 'a b' is not"),
        ({"key": "a", "tolerationSeconds": 5}, "compute.tolerations[0].tolerationSeconds: "),
    ],
)
def test_tolerations_that_cannot_be(toleration: Any, message: str) -> None:
    """As the cluster would check them, and before."""
    assert refusal(tolerations=[toleration]).what.startswith(message)


# As plain data


def test_a_compute_survives_a_record() -> None:
    """All that was said is read back from JSON, and nothing else is written."""
    compute = Compute(
        gpus=0,
        cpus="500m",
        memory="1Gi",
        gpu_type="L4",
        replicas=2,
        image=Image().run_bash("x"),
        env_vars={"A": 1},
        secrets=["a:/a"],
        volumes=["b"],
        tolerations=[{"key": "c", "operator": "Exists"}],
        labels={"d": "e"},
        launch_timeout="1m",
        gpu_anti_affinity=True,
    )
    plain = json.loads(json.dumps(compute.to_json()))
    assert Compute.from_json(plain) == compute
    assert "namespace" not in plain
    assert pickle.loads(pickle.dumps(compute)) == compute  # noqa: S301  our own bytes


def test_an_empty_image_is_said() -> None:
    """It is not the same as none."""
    compute = Compute(image=Image())
    assert Compute.from_json(compute.to_json()) == compute != Compute()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "gpus": st.integers(0, 16),
            "cpus": st.integers(1, 10**6).map(lambda milli: f"{milli}m"),
            "memory": st.integers(2**20, 2**50),
            "replicas": st.integers(1, 4096),
            "launch_timeout": st.floats(0.001, 1e6),
            "labels": st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x"])),
        },
    )
)
def test_any_compute_survives_a_record(words: dict[str, Any]) -> None:
    """Whatever can be said can be kept."""
    compute = Compute(**words)
    assert Compute.from_json(json.loads(json.dumps(compute.to_json()))) == compute
