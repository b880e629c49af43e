"""What pods may have that the endpoint makes, how much they are, and what a request looks like."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from milkweed.operator.admission import (
    REQUESTED_BY,
    RULE_LABEL,
    Usage,
    check_shape,
    measure,
    measure_rule,
)
from milkweed.operator.podcheck import check_template, count_gpus
from milkweed.operator.policy import Rule
from unit.operator_asked import gpu_mesh, make_rule
from unit.operator_runs import make_mesh, make_template

# Pods


def check(rule: Rule | None = None, container: Any = None, **spec: Any) -> list[str]:
    """What a rule has against a pod."""
    template = copy.deepcopy(make_template())
    template["spec"] |= spec
    template["spec"]["containers"][0] |= container or {}
    return [field for field, _text in check_template(template, rule or make_rule())]


POD = "spec.podTemplate.spec"
FORBIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "host network": ({"hostNetwork": True}, f"{POD}.hostNetwork"),
    "host processes": ({"hostPID": True}, f"{POD}.hostPID"),
    "host memory": ({"hostIPC": True}, f"{POD}.hostIPC"),
    "a node": ({"nodeName": "n1"}, f"{POD}.nodeName"),
    "a scheduler": ({"schedulerName": "mine"}, f"{POD}.schedulerName"),
    "a runtime": ({"runtimeClassName": "x"}, f"{POD}.runtimeClassName"),
    "claims": ({"resourceClaims": [{"name": "x"}]}, f"{POD}.resourceClaims"),
    "something new": ({"brandNew": {"x": 1}}, f"{POD}.brandNew"),
    "host path": ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, f"{POD}.volumes[0]"),
    "claim": ({"volumes": [{"name": "a", "persistentVolumeClaim": {}}]}, f"{POD}.volumes[0]"),
    "csi": ({"volumes": [{"name": "a", "csi": {"driver": "x"}}]}, f"{POD}.volumes[0]"),
    "secret": (
        {"volumes": [{"name": "a", "secret": {"secretName": "keys"}}]},
        f"{POD}.volumes[0].secret.secretName",
    ),
    "projected secret": (
        {"volumes": [{"name": "a", "projected": {"sources": [{"secret": {"name": "keys"}}]}}]},
        f"{POD}.volumes[0].projected.sources[0].secret.name",
    ),
    "projected news": (
        {"volumes": [{"name": "a", "projected": {"sources": [{"brandNew": {"x": 1}}]}}]},
        f"{POD}.volumes[0].projected.sources[0].brandNew",
    ),
    "account": ({"serviceAccountName": "admin"}, f"{POD}.serviceAccountName"),
    "account's old name": ({"serviceAccount": "admin"}, f"{POD}.serviceAccount"),
    "pull secret": (
        {"imagePullSecrets": [{"name": "keys"}]},
        f"{POD}.imagePullSecrets[0].name",
    ),
    "kernel settings": (
        {"securityContext": {"sysctls": [{"name": "x"}]}},
        f"{POD}.securityContext.sysctls",
    ),
    "no seccomp": (
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        f"{POD}.securityContext.seccompProfile.type",
    ),
}
IN_CONTAINER: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"image": "evil:1"}, "image"),
    "no image": ({"image": ""}, "image"),
    "privileged": ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
    "capability": (
        {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
        "securityContext.capabilities.add",
    ),
    "proc": ({"securityContext": {"procMount": "Unmasked"}}, "securityContext.procMount"),
    "host port": ({"ports": [{"containerPort": 1, "hostPort": 1}]}, "ports[0].hostPort"),
    "devices": ({"volumeDevices": [{"name": "x"}]}, "volumeDevices"),
    "variable": (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys"}}}]},
        "env[0].valueFrom.secretKeyRef",
    ),
    "variables": ({"envFrom": [{"secretRef": {"name": "keys"}}]}, "envFrom[0].secretRef"),
    "probe elsewhere": (
        {"readinessProbe": {"httpGet": {"host": "10.0.0.1", "port": 1}}},
        "readinessProbe.httpGet.host",
    ),
    "hook elsewhere": (
        {"lifecycle": {"preStop": {"httpGet": {"host": "10.0.0.1"}}}},
        "lifecycle.preStop.httpGet.host",
    ),
    "amount": (
        {"resources": {"limits": {"nvidia.com/gpu": "+8"}}},
        "resources.limits.nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_pods_may_not_have(name: str) -> None:
    """Whatever gives hold of a node, of a secret or of somebody else's rights, or is not known."""
    spec, field = FORBIDDEN[name]
    assert field in check(**spec)


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("name", IN_CONTAINER)
def test_what_containers_may_not_have(name: str, kind: str) -> None:
    """The same for those that run before."""
    container, field = IN_CONTAINER[name]
    spec: dict[str, Any] = {"name": "x", "image": "worker:1", **container}
    assert f"{POD}.{kind}[0].{field}" in check(**{kind: [spec]})


ORDINARY: dict[str, Any] = {
    "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "x"}}],
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1}],
    "securityContext": {"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "hostNetwork": False,
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "initContainers": [{"name": "i", "image": "worker:2"}],
}
IN_ORDINARY: dict[str, Any] = {
    "command": ["python"],
    "env": [{"name": "A", "value": "1"}],
    "ports": [{"containerPort": 26600}],
    "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Ti"}},
    "readinessProbe": {"tcpSocket": {"port": 26600}},
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
}


def test_ordinary_pods_are_ordinary() -> None:
    """What programs need for their work is nobody's concern."""
    assert check(container=IN_ORDINARY, **ORDINARY) == []


def test_what_a_rule_names_is_allowed() -> None:
    """Each by its own key."""
    rule = make_rule(
        volumes=["hostPath"],
        secrets=["keys"],
        podServiceAccounts=["admin"],
        capabilities=["IPC_LOCK"],
    )
    container = {
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys"}}}],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    spec = {
        "volumes": [{"name": "a", "hostPath": {"path": "/dev/infiniband"}}],
        "serviceAccountName": "admin",
        "imagePullSecrets": [{"name": "keys"}],
    }
    assert check(rule, container, **spec) == []


def test_an_account_that_is_not_said_is_the_default_one() -> None:
    """Where that is not allowed, another one must be named."""
    rule = make_rule(podServiceAccounts=["worker"])
    assert check(rule) == [f"{POD}.serviceAccountName"]
    assert check(rule, serviceAccountName="worker") == []


def test_the_privileged_still_have_limits() -> None:
    """They may do with nodes what they like; images, accounts, secrets and volumes are still named."""
    rule = make_rule(privileged=True)
    container = {"securityContext": {"privileged": True}, "volumeDevices": [{"name": "x"}]}
    assert check(rule, container, hostNetwork=True, nodeName="n1") == []
    assert check(rule, {"image": "evil:1"}) == [f"{POD}.containers[0].image"]
    assert check(rule, volumes=[{"name": "a", "hostPath": {}}]) == [f"{POD}.volumes[0]"]


def test_annotations_do_not_set_containers_free() -> None:
    """The way that old clusters knew is closed, too."""
    key = "container.apparmor.security.beta.kubernetes.io/worker"
    template = make_template() | {"metadata": {"annotations": {key: "unconfined", "mine": "x"}}}
    fields = [field for field, _text in check_template(template, make_rule())]
    assert fields == [f"spec.podTemplate.metadata.annotations.{key}"]
    assert list(check_template(template, make_rule(privileged=True))) == []


def test_a_template_has_labels_and_annotations_only() -> None:
    """Finalizers and owners would keep pods alive, or end them."""
    template = make_template() | {"metadata": {"labels": {}, "finalizers": ["x"]}}
    fields = [field for field, _ in check_template(template, make_rule())]
    assert fields == ["spec.podTemplate.metadata.finalizers"]


# How much it is


@pytest.mark.parametrize(
    ("containers", "before", "count"),
    [
        ([{"limits": {"nvidia.com/gpu": 8}}], [], 8),
        ([{"limits": {"nvidia.com/gpu": "4"}}, {"limits": {"amd.com/gpu": 2}}], [], 6),
        ([{"requests": {"nvidia.com/gpu": 3}}], [], 3),
        ([{"requests": {"nvidia.com/gpu": 3}, "limits": {"nvidia.com/gpu": 4}}], [], 4),
        ([{"limits": {"nvidia.com/mig-1g.5gb": 2, "cpu": 9}}], [], 2),
        ([{"limits": {"nvidia.com/gpu.shared": 1}}], [], 1),
        ([{"limits": {"gpu.intel.com/i915": 1}}], [], 1),
        ([{}], [{"limits": {"nvidia.com/gpu": 5}}], 5),
        ([{"limits": {"nvidia.com/gpu": "500m"}}], [], 1),
        ([{"limits": {"memory": "8Gi"}}], [], 0),
    ],
)
def test_gpus_are_counted(containers: list[Any], before: list[Any], count: int) -> None:
    """Of all makers and kinds, as the scheduler would: together, or those of one that runs before."""
    spec = {
        "containers": [{"resources": one} for one in containers],
        "initContainers": [{"resources": one} for one in before],
    }
    assert count_gpus({"spec": spec}) == count


def test_gpus_beside_are_counted_too() -> None:
    """An init container that is always restarted has its GPUs as long as the pod lives."""
    eight = {"resources": {"limits": {"nvidia.com/gpu": 8}}}
    spec = {"containers": [eight], "initContainers": [eight | {"restartPolicy": "Always"}, eight]}
    assert count_gpus({"spec": spec}) == 16


def test_meshes_are_measured_by_rule() -> None:
    """All hosts together, and only those that the rule made."""
    meshes = [gpu_mesh(2, 8), gpu_mesh(3, 1), gpu_mesh(5, 1)]
    for mesh, rule in zip(meshes, ("a", "a", "b"), strict=True):
        mesh["metadata"]["labels"] = {RULE_LABEL: rule}
    assert measure(meshes[0]) == Usage(2, 16)
    assert measure_rule(meshes, "a") == Usage(5, 19)
    assert measure_rule(meshes, "c") == Usage()


# The shape of a request


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda m: m.update(status={}), "status"),
        (lambda m: m["metadata"].update(ownerReferences=[]), "metadata.ownerReferences"),
        (lambda m: m["metadata"].update(finalizers=["x"]), "metadata.finalizers"),
        (lambda m: m["metadata"].update(generateName="x"), "metadata.generateName"),
        (lambda m: m["metadata"].pop("name"), "metadata.name"),
        (lambda m: m["metadata"].update(namespace="other"), "metadata.namespace"),
        (lambda m: m["metadata"].update(labels={RULE_LABEL: "x"}), f"metadata.labels.{RULE_LABEL}"),
        (
            lambda m: m["metadata"].update(annotations={REQUESTED_BY: "x"}),
            f"metadata.annotations.{REQUESTED_BY}",
        ),
        (lambda m: m["spec"].update(replicas=0), "spec.replicas"),
        (lambda m: m["spec"].update(replicas="4"), "spec.replicas"),
        (lambda m: m["spec"].update(replicas=True), "spec.replicas"),
        (lambda m: m["spec"].update(brandNew=1), "spec.brandNew"),
        (lambda m: m["spec"].pop("podTemplate"), "spec.podTemplate.spec.containers"),
        (lambda m: m.pop("spec"), "spec.replicas"),
    ],
)
def test_requests_that_are_out_of_shape(change: Any, field: str) -> None:
    """What a request may not say, whoever makes it."""
    mesh = make_mesh()
    change(mesh)
    assert field in [one for one, _ in check_shape(mesh, "team")]


def test_a_request_in_shape() -> None:
    """Nothing is wrong with it."""
    assert list(check_shape(make_mesh(labels={"a": "b"}), "team")) == []
