"""From what a person said to a pod template: plain JSON, as the API takes it. Nothing is asked of a cluster.

| said | becomes |
|---|---|
| `resources`, `cpus`, `memory`, `disk_size`, `gpus` | requests and limits, which are the same |
| `gpu_type` | a node selector: see `Compute` |
| `gpu_memory` | the annotation `gpu-memory`, in MiB, which schedulers that share GPUs read |
| `shared_memory_size`, `shared_memory_limit` | memory at /dev/shm |
| `secrets`, `volumes` | variables or files; claims |
| `queue_name` | the label `kueue.x-k8s.io/queue-name` |
| `enable_fuse` | a privileged container that sees /dev/fuse |

What a person gives as a whole pod is taken as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, cast

from ...compute import Compute, Mount
from ...compute_fields import AMD, NVIDIA
from ...errors import SpecError
from ...image import DEFAULT_IMAGE, check_image
from ...kube.meshes import WORKER
from ...labels import check_dns_label, check_label_key
from ...quantities import parse_quantity, tidy_quantity
from ...spec import suggest
from .names import make_object_name
from .pod_models import Json, parse_model

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GPU_MEMORY_NOTE = "gpu-memory"
SHM, FUSE = "dev-shm", "dev-fuse"
SHM_PATH = "/dev/shm"  # noqa: S108  where POSIX has shared memory

_GPU_NODE_LABELS = (
    *("nvidia.com/gpu", "nvidia.com/gpu.present", "amd.com/gpu.product-name"),
    *("eks.amazonaws.com/instance-gpu-count", "cloud.google.com/gke-accelerator"),
)
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_MEBIBYTE = 2**20

Template = Json
"""A pod template: `metadata` and `spec`."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """A container image for workers, and what each of them needs.

    Example:
        ImageSpec("ghcr.io/meta-pytorch/monarch:latest", resources={"nvidia.com/gpu": 4})
    """

    image: str
    resources: Mapping[str, str | int] | None = None
    """By Kubernetes' names; requests and limits are the same."""
    enable_fuse: bool = False
    """Run the container privileged, with /dev/fuse of its node. The cluster must allow that."""
    shared_memory_size: str | None = None
    """The size of /dev/shm."""

    def __post_init__(self) -> None:
        check_image(self.image, field="image_spec.image")
        check_resources(self.resources or {}, field="image_spec.resources")
        if self.shared_memory_size is not None:
            _check_positive(self.shared_memory_size, "image_spec.shared_memory_size")


def check_resources(resources: Mapping[str, Any], *, field: str) -> dict[str, str]:
    """Refuse resources that Kubernetes has not, or amounts that it would not take."""
    found: dict[str, str] = {}
    for name, amount in resources.items():
        where = f"{field}.{name}"
        check_label_key(name, field=field)
        if "/" not in name and name not in _RESOURCES and not name.startswith("hugepages-"):
            known = [*_RESOURCES, NVIDIA, AMD]
            raise SpecError(f"{where}: unknown resource", hint=suggest(name, known))
        _check_positive(amount, where)
        if "/" in name and parse_quantity(amount, field=where).denominator != 1:
            raise SpecError(f"{where}: {amount!r} is not a whole number", hint="say whole devices")
        found[name] = tidy_quantity(amount, field=where)
    return found


def _check_positive(amount: object, field: str) -> None:
    if parse_quantity(amount, field=field) <= 0:
        raise SpecError(
            f"{field}: {amount!r} is not more than zero",
            hint="give a larger number, or leave it out",
        )


# From what was said to a template


def make_from_image(spec: ImageSpec) -> Template:
    """The template of pods with one container of this image."""
    volumes: list[Json] = []
    mounts: list[Json] = []
    if spec.enable_fuse:
        device = {"path": "/dev/fuse", "type": "CharDevice"}
        volumes.append({"name": FUSE, "hostPath": device})
        mounts.append({"name": FUSE, "mountPath": "/dev/fuse"})
    if spec.shared_memory_size is not None:
        volumes.append(_shared_memory(spec.shared_memory_size))
        mounts.append({"name": SHM, "mountPath": SHM_PATH})
    resources = check_resources(spec.resources or {}, field="image_spec.resources")
    container = {
        "name": WORKER,
        "image": spec.image,
        "resources": _same(resources),
        "volumeMounts": mounts,
        "securityContext": {"privileged": True} if spec.enable_fuse else _least_privilege(),
    }
    said = {"tolerations": _tolerate_gpus(resources)}
    return {"metadata": {}, "spec": {**_pod_defaults(), **_said(said), **_pod(container, volumes)}}


def make_from_compute(compute: Compute) -> Template:
    """The template of pods that are what a Compute says."""
    said = {
        **_pod_defaults(token=compute.service_account_name is not None),
        "serviceAccountName": compute.service_account_name,
        "priorityClassName": compute.priority_class_name,
        "nodeSelector": compute.selector,
        "tolerations": _tolerate_gpus(compute.resources, compute.tolerations),
        "affinity": _affinity(compute),
        **_pod(_compute_container(compute), _compute_volumes(compute)),
    }
    return {"metadata": _compute_metadata(compute), "spec": _said(said)}


def make_from_pod_spec(pod_spec: object, *, field: str = "pod_spec") -> Template:
    """The template of pods with this spec: a V1PodSpec, or a mapping in either spelling."""
    spec = parse_model(pod_spec, field=field)
    if "containers" not in spec and "spec" in spec:
        raise SpecError(f"{field}: it is a pod template", hint="give it as pod_template")
    _check_containers(spec, field)
    return {"metadata": {}, "spec": spec}


def make_from_pod_template(pod_template: object, *, field: str = "pod_template") -> Template:
    """The template as it was given: a V1PodTemplateSpec, or a mapping in either spelling."""
    template = parse_model(pod_template, field=field)
    if "spec" not in template:
        hint = (
            "give it as pod_spec" if "containers" in template else "write {spec: {containers: […]}}"
        )
        raise SpecError(f"{field}: it has no spec", hint=hint)
    spec = parse_model(template["spec"], field=f"{field}.spec")
    metadata = parse_model(template.get("metadata", {}), field=f"{field}.metadata")
    _check_containers(spec, f"{field}.spec")
    return {**template, "metadata": metadata, "spec": spec}


def _check_containers(spec: Json, field: str) -> None:
    """What the cluster would refuse only when the first pod is made."""
    containers = _check_list(spec, "containers", field)
    if not containers:
        raise SpecError(f"{field}.containers: a pod has at least one container", hint="name one")
    _check_list(spec, "volumes", field)
    _check_list(spec, "initContainers", field)
    seen: set[str] = set()
    for at, container in enumerate(containers):
        where = f"{field}.containers[{at}]"
        name = check_dns_label(container.get("name"), field=f"{where}.name")
        if name in seen:
            raise SpecError(f"{where}.name: {name!r} is there twice", hint="give it another name")
        if not container.get("image"):
            raise SpecError(f"{where}.image: the container {name!r} has no image", hint="name one")
        for part in ("env", "ports", "volumeMounts"):
            _check_list(container, part, where)
        seen.add(name)


def _check_list(holder: Json, name: str, field: str) -> list[Json]:
    value: Any = holder.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):  # pyright: ignore[reportUnknownVariableType] JSON
        raise SpecError(
            f"{field}.{name}: it is not a list of mappings", hint="begin each with a dash"
        )
    return cast("list[Json]", value)


# The parts of a template


def _pod(container: Json, volumes: Sequence[Json]) -> Json:
    return _said({"containers": [_said(container)], "volumes": list(volumes)})


def _pod_defaults(*, token: bool = False) -> Json:
    """A pod of ours asks nothing of the cluster, and needs no variables about its services."""
    return {
        "enableServiceLinks": False,
        **({} if token else {"automountServiceAccountToken": False}),
    }


def _said(values: Mapping[str, Any]) -> Json:
    """Without what is empty; False and 0 are said."""
    return {key: value for key, value in values.items() if value not in (None, {}, [], "")}


def _same(amounts: Mapping[str, str]) -> Json:
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def _least_privilege(*, installs: bool = False) -> Json:
    """As little as an image can do with that may run as root.

    Commands that set up a container need what Docker gives them: without these rights apt does not work.
    """
    return _said(
        {
            "allowPrivilegeEscalation": False,
            "capabilities": {} if installs else {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    )


def _shared_memory(size: str | None) -> Json:
    return {"name": SHM, "emptyDir": _said({"medium": "Memory", "sizeLimit": size})}


def _compute_container(compute: Compute) -> Json:
    image = compute.image
    secrets = [mount.name for mount in compute.secrets if mount.path is None]
    return {
        "name": WORKER,
        "image": DEFAULT_IMAGE if image is None else image.image,
        "imagePullPolicy": compute.image_pull_policy,
        "workingDir": compute.working_dir,
        "env": [{"name": key, "value": value} for key, value in compute.env_vars.items()],
        "envFrom": [{"secretRef": {"name": name}} for name in secrets],
        "resources": _same(compute.resources),
        "volumeMounts": _compute_mounts(compute),
        # Steps may come later, on the same pods.
        "securityContext": _least_privilege(installs=True),
    }


def _compute_volumes(compute: Compute) -> list[Json]:
    claims = {
        _volume_name("claim", mount.name): {"persistentVolumeClaim": {"claimName": mount.name}}
        for mount in compute.volumes
    }
    files = {
        _volume_name("secret", mount.name): {"secret": {"secretName": mount.name}}
        for mount in compute.secrets
        if mount.path is not None
    }
    named = [{"name": name, **source} for name, source in {**claims, **files}.items()]
    return [_shared_memory(compute.shared_memory_limit), *named]


def _compute_mounts(compute: Compute) -> list[Json]:
    return [
        {"name": SHM, "mountPath": SHM_PATH},
        *(_mount("claim", each, read_only=each.read_only) for each in compute.volumes),
        *(_mount("secret", each, read_only=True) for each in compute.secrets if each.path),
    ]


def _mount(kind: str, mount: Mount, *, read_only: bool) -> Json:
    said = {"name": _volume_name(kind, mount.name), "mountPath": mount.path}
    return {**said, "readOnly": True} if read_only else said


def _volume_name(kind: str, name: str) -> str:
    """The name of a volume is a label, where those of claims and secrets are longer."""
    return make_object_name(f"{kind}-{name}")


def _compute_metadata(compute: Compute) -> Json:
    labels, annotations = dict(compute.labels), dict(compute.annotations)
    if compute.queue_name is not None:
        labels[QUEUE_LABEL] = compute.queue_name
    if compute.gpu_memory is not None:
        size = parse_quantity(compute.gpu_memory, field="gpu_memory")
        annotations[GPU_MEMORY_NOTE] = str(ceil(size / _MEBIBYTE))
    return _said({"labels": labels, "annotations": annotations})


def _tolerate_gpus(
    resources: Mapping[str, str], said: Sequence[Mapping[str, Any]] = ()
) -> list[Json]:
    """What was said, and the taint that keeps others off nodes with GPUs, where GPUs are asked for."""
    keys = {each.get("key") for each in said}
    wanted = [name for name in (NVIDIA, AMD) if name in resources and name not in keys]
    added = [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in wanted]
    return [*map(dict, said), *added]


def _affinity(compute: Compute) -> Json:
    if not compute.gpu_anti_affinity or compute.gpus or compute.gpu_memory:
        return {}
    absent = [{"key": key, "operator": "DoesNotExist"} for key in _GPU_NODE_LABELS]
    terms = {"nodeSelectorTerms": [{"matchExpressions": absent}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


# The worker in a template


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A template with the worker in it."""

    template: Template
    container: str
    """The container that runs it."""
    own_worker: bool = False
    """True when that container has a command of its own, which was kept."""


def find_worker(template: Template) -> int:
    """Which container runs the worker: the one of that name, else the first."""
    names = [container["name"] for container in template["spec"]["containers"]]
    return names.index(WORKER) if WORKER in names else 0


def has_own_worker(template: Template) -> bool:
    """Whether a person says what its container runs, so that there will be no keeper."""
    container = template["spec"]["containers"][find_worker(template)]
    return bool(container.get("command") or container.get("args"))


def inject_worker(
    template: Template,
    *,
    command: Sequence[str],
    env: Sequence[Mapping[str, Any]] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
    volumes: Sequence[Mapping[str, Any]] = (),
    ports: Sequence[Mapping[str, Any]] = (),
    probe: Mapping[str, Any] | None = None,
    field: str = "",
) -> Injected:
    """Add the worker to a template, which stays as it was; a container with a command of its own is kept.

    Variables of the worker replace a person's of the same name, and come last, in their order. A person's own
    readiness probe stays. `field` is where the template stands, for errors.
    """
    made = copy.deepcopy(template)
    _keep_last_words(made["spec"])
    container = made["spec"]["containers"][find_worker(made)]
    name = container["name"]
    if has_own_worker(made):
        return Injected(template=made, container=name, own_worker=True)
    container["command"] = list(command)
    ours = {each["name"] for each in env}
    theirs = [each for each in container.get("env", []) if each.get("name") not in ours]
    _extend(container, "env", theirs, env)
    new = _new_ports(container, ports)
    _add(container, "volumeMounts", mounts, key="mountPath", where=name, field=field)
    _add(container, "ports", new, key="name", where=name, field=field)
    _add(made["spec"], "volumes", volumes, key="name", where="the pod", field=field)
    if probe is not None:
        container.setdefault("readinessProbe", dict(probe))
    return Injected(template=made, container=name)


def _keep_last_words(spec: Json) -> None:
    """Have the end of what a container printed in its status, where everybody looks who asks why it ended."""
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _new_ports(container: Json, ports: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    known = {each.get("containerPort") for each in container.get("ports", [])}
    return [each for each in ports if each["containerPort"] not in known]


def _add(
    holder: Json, name: str, added: Sequence[Mapping[str, Any]], *, key: str, where: str, field: str
) -> None:
    """Add to a list whose items differ in one field, as the cluster wants it."""
    theirs: list[Json] = holder.get(name, [])
    taken = {each.get(key) for each in theirs}
    for each in added:
        if each[key] in taken:
            raise SpecError(
                f"{field and f'{field}.'}{name}: {where} has {each[key]!r}, which milkweed needs for itself",
                hint="choose another one",
            )
    _extend(holder, name, theirs, added)


def _extend(
    holder: Json, name: str, theirs: Sequence[Json], added: Sequence[Mapping[str, Any]]
) -> None:
    if theirs or added:
        holder[name] = [*theirs, *(dict(each) for each in added)]
