"""What a pod template would let somebody do, held against a rule. What is not known is not allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from .compare import parse_amount
from .policy import Rule, matches
from .reading import items, mapping, pick, text

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
GPUS = ("*/gpu", "*/gpu.*", "nvidia.com/mig-*", "gpu.intel.com/*")
"""Resources that are GPUs, or parts of one."""

Complaint = tuple[str, str]
"""A field, and what is wrong with it."""

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_POD = frozenset(
    {
        *("containers", "initContainers", "volumes", "nodeSelector", "affinity"),
        *("tolerations", "topologySpreadConstraints", "restartPolicy"),
        *("terminationGracePeriodSeconds", "activeDeadlineSeconds", "securityContext"),
        *("imagePullSecrets", "serviceAccountName", "automountServiceAccountToken"),
        *("priorityClassName", "dnsPolicy", "dnsConfig", "enableServiceLinks"),
        *("schedulingGates", "readinessGates", "setHostnameAsFQDN", "shareProcessNamespace"),
    }
)
_CONTAINER = frozenset(
    {
        *("name", "image", "imagePullPolicy", "command", "args", "workingDir", "env"),
        *("envFrom", "ports", "resources", "resizePolicy", "restartPolicy", "volumeMounts"),
        *("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"),
        *("terminationMessagePath", "terminationMessagePolicy", "securityContext", "stdin"),
        *("stdinOnce", "tty"),
    }
)
_SECURITY = frozenset(
    {
        *("runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "fsGroupChangePolicy"),
        *("supplementalGroups", "supplementalGroupsPolicy", "seccompProfile"),
        *("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"),
    }
)
_UNCONFINED = "container.apparmor.security.beta.kubernetes.io/"
"""Annotations by which old clusters let containers out of their confinement."""
_SOURCES = frozenset({"configMap", "downwardAPI", "secret", "serviceAccountToken"})


def check_template(
    template: Any, rule: Rule, path: str = "spec.podTemplate"
) -> Iterator[Complaint]:
    """Everything in a template that a rule does not allow."""
    for key in mapping(template, "metadata"):
        if key not in {"labels", "annotations"}:
            yield f"{path}.metadata.{key}", "is not allowed"
    pod, where = mapping(template, "spec"), f"{path}.spec"
    yield from _check_names(pod, rule, where)
    if not rule.privileged:
        for key in mapping(template, "metadata", "annotations"):
            if key.startswith(_UNCONFINED):
                yield f"{path}.metadata.annotations.{key}", "is not allowed"
        yield from _check_keys(pod, _POD, where)
        yield from _check_security(
            mapping(pod, "securityContext"), rule, f"{where}.securityContext"
        )
    for index, volume in enumerate(items(pod, "volumes")):
        yield from _check_volume(volume, rule, f"{where}.volumes[{index}]")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(items(pod, kind)):
            yield from _check_container(container, rule, f"{where}.{kind}[{index}]")


def _check_keys(
    found: Mapping[str, Any], allowed: frozenset[str], path: str
) -> Iterator[Complaint]:
    for key, value in found.items():
        if key not in allowed and value:
            yield f"{path}.{key}", "is not allowed"


def _check_word(word: str, patterns: Sequence[str], path: str) -> Iterator[Complaint]:
    if not matches(word, patterns):
        yield path, f"{word!r} is not among {_list(patterns)}"


def _list(patterns: Sequence[str]) -> str:
    return ", ".join(patterns) if patterns else "those that are allowed: none is"


def _check_names(pod: Mapping[str, Any], rule: Rule, path: str) -> Iterator[Complaint]:
    for key in ("serviceAccountName", "serviceAccount"):
        if word := text(pod, key):
            yield from _check_word(word, rule.pod_service_accounts, f"{path}.{key}")
    if not text(pod, "serviceAccountName"):
        yield from _check_word("default", rule.pod_service_accounts, f"{path}.serviceAccountName")
    if word := text(pod, "priorityClassName"):
        yield from _check_word(word, rule.priority_classes, f"{path}.priorityClassName")
    for index, secret in enumerate(items(pod, "imagePullSecrets")):
        name = text(secret, "name")
        yield from _check_word(name, rule.secrets, f"{path}.imagePullSecrets[{index}].name")


def _check_security(found: Mapping[str, Any], rule: Rule, path: str) -> Iterator[Complaint]:
    yield from _check_keys(found, _SECURITY, path)
    if text(found, "seccompProfile", "type") not in {"", "RuntimeDefault"}:
        yield f"{path}.seccompProfile.type", "only RuntimeDefault is allowed"
    for word in items(found, "capabilities", "add"):
        yield from _check_word(str(word), rule.capabilities, f"{path}.capabilities.add")


def _check_volume(volume: Any, rule: Rule, path: str) -> Iterator[Complaint]:
    for kind in mapping(volume):
        if kind == "secret":
            name = text(volume, "secret", "secretName")
            yield from _check_word(name, rule.secrets, f"{path}.secret.secretName")
        elif kind == "projected":
            yield from _check_projected(volume, rule, path)
        elif kind != "name":
            yield from _check_word(kind, rule.volumes, path)


def _check_projected(volume: Any, rule: Rule, path: str) -> Iterator[Complaint]:
    for index, source in enumerate(items(volume, "projected", "sources")):
        where = f"{path}.projected.sources[{index}]"
        yield from _check_keys(mapping(source), _SOURCES, where)
        if name := text(source, "secret", "name"):
            yield from _check_word(name, rule.secrets, f"{where}.secret.name")


def _check_container(container: Any, rule: Rule, path: str) -> Iterator[Complaint]:
    yield from _check_word(text(container, "image"), rule.images, f"{path}.image")
    yield from _check_env(container, rule, path)
    yield from _check_amounts(container, path)
    if rule.privileged:
        return
    yield from _check_keys(mapping(container), _CONTAINER, path)
    yield from _check_security(
        mapping(container, "securityContext"), rule, f"{path}.securityContext"
    )
    for index, port in enumerate(items(container, "ports")):
        if pick(port, "hostPort"):
            yield f"{path}.ports[{index}].hostPort", "is not allowed"
    hooks = {key: pick(container, key) for key in (*_PROBES, "lifecycle")}
    yield from ((f"{path}.{where}", "is not allowed") for where in _find_hosts(hooks))


def _check_amounts(container: Any, path: str) -> Iterator[Complaint]:
    """An amount that cannot be read here, and can elsewhere, would not be counted."""
    for part in ("requests", "limits"):
        for key, value in mapping(container, "resources", part).items():
            if parse_amount(value) is None:
                yield f"{path}.resources.{part}.{key}", f"{value!r} is not an amount"


def _find_hosts(found: Any, path: str = "") -> Iterator[str]:
    """Where a probe or a hook would ask another machine than the pod itself."""
    if isinstance(found, Mapping):
        for key, value in cast("Mapping[str, Any]", found).items():
            if key == "host" and value:
                yield f"{path}{key}"
            yield from _find_hosts(value, f"{path}{key}.")


def _check_env(container: Any, rule: Rule, path: str) -> Iterator[Complaint]:
    for index, variable in enumerate(items(container, "env")):
        if name := text(variable, "valueFrom", "secretKeyRef", "name"):
            yield from _check_word(
                name, rule.secrets, f"{path}.env[{index}].valueFrom.secretKeyRef"
            )
    for index, source in enumerate(items(container, "envFrom")):
        if name := text(source, "secretRef", "name"):
            yield from _check_word(name, rule.secrets, f"{path}.envFrom[{index}].secretRef")


# How much it is


def count_gpus(template: Any) -> int:
    """The GPUs of one pod: of its containers together, or of one that runs before them.

    An init container that is always restarted runs beside all others.
    """
    pod = mapping(template, "spec")
    first = items(pod, "initContainers")
    beside = [one for one in first if text(one, "restartPolicy") == "Always"]
    together = sum(_gpus_of(one) for one in items(pod, "containers"))
    before = (_gpus_of(one) for one in first if one not in beside)
    return sum(map(_gpus_of, beside)) + max(together, *before, 0)


def _gpus_of(container: Any) -> int:
    asked = mapping(container, "resources", "requests") | mapping(container, "resources", "limits")
    amounts = (parse_amount(value) for key, value in asked.items() if _is_gpu(key))
    return sum(math.ceil(amount) for amount in amounts if amount is not None)


def _is_gpu(resource: str) -> bool:
    return any(fnmatchcase(resource, pattern) for pattern in GPUS)
