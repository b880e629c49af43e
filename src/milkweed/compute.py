"""What each host of a mesh should be, in Kubetorch's words: `Compute(gpus=8, memory="256Gi", image=Image(…))`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from .compute_fields import READERS, Mount, gpu_label, gpu_resource
from .errors import SpecError
from .image import Image, Step, first_changed
from .quantities import Amount
from .spec import suggest

__all__ = ["Compute", "Image", "Mount", "Step", "first_changed"]

_REFUSED = {
    "allowed_serialization": "the engine chooses how messages are written",
    "endpoint": "hosts are reached at their own addresses",
    "freeze": "nothing is synced into hosts that run, so there is nothing to freeze",
    "kubeconfig_path": "the job knows the cluster, not its compute: give it to the job",
    "logging_config": "the job shows what hosts print: see its stream_logs",
    "selector": "give it to the job: it is for pods that are there already",
    "service_template": "give the job a whole pod_template instead",
}
"""Words of Kubetorch that have no meaning here, and what to do instead."""
_ALIASES = {"gpu": "gpus", "cpu": "cpus"}


@dataclass(frozen=True, slots=True, init=False)
class Compute:
    """What each host of a mesh should be, and how many there are.

    Example:
        Compute(gpu=8, cpu="32", memory="256Gi", replicas=4, image=Image().pip_install(["torch"]))
    """

    gpus: int | None
    cpus: str | None
    memory: str | None
    disk_size: str | None
    gpu_type: str | None
    replicas: int
    image: Image | None
    env_vars: Mapping[str, str]
    secrets: tuple[Mount, ...]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    queue_name: str | None
    priority_class_name: str | None
    service_account_name: str | None
    volumes: tuple[Mount, ...]
    shared_memory_limit: str | None
    launch_timeout: float | None
    inactivity_ttl: float | None
    gpu_memory: str | None
    image_pull_policy: str | None
    working_dir: str | None
    namespace: str | None
    gpu_anti_affinity: bool

    def __init__(
        self,
        *,
        gpus: str | int | None = None,
        cpus: Amount | None = None,
        memory: str | int | None = None,
        disk_size: str | int | None = None,
        gpu_type: str | None = None,
        replicas: int | None = 1,
        image: Image | str | None = None,
        env_vars: Mapping[str, str | int | float] | None = None,
        secrets: Iterable[str | Mapping[str, Any] | Mount] | None = None,
        node_selector: Mapping[str, str] | None = None,
        tolerations: Iterable[Mapping[str, Any]] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        queue_name: str | None = None,
        priority_class_name: str | None = None,
        service_account_name: str | None = None,
        volumes: Iterable[str | Mapping[str, Any] | Mount] | None = None,
        shared_memory_limit: str | int | None = None,
        launch_timeout: str | float | None = None,
        inactivity_ttl: str | float | None = None,
        gpu_memory: str | int | None = None,
        image_pull_policy: str | None = None,
        working_dir: str | None = None,
        namespace: str | None = None,
        gpu_anti_affinity: bool | None = False,
        gpu: str | int | None = None,
        cpu: Amount | None = None,
        **others: object,
    ) -> None:
        """Say what a host should be; SpecError lists all that is wrong.

        Args:
            gpus: GPUs of each host; `gpu` is the same.
            cpus: CPUs of each host: 32, "0.5", "500m"; `cpu` is the same.
            memory: memory of each host: "256Gi".
            disk_size: room on the node's own disk.
            gpu_type: the kind of GPU: the product's name as nodes are labelled with it, or any label
                as "key: value". A product or key of AMD asks for `amd.com/gpu`, else it is `nvidia.com/gpu`.
            replicas: how many hosts.
            image: an Image, or the name of a container image.
            env_vars: variables of the container.
            secrets: Secrets that are there: "name" gives variables, "name:/folder" files.
            node_selector: labels that nodes must have.
            tolerations: taints that are put up with, as Kubernetes writes them.
            labels: labels of the pods.
            annotations: annotations of the pods.
            queue_name: the LocalQueue of Kueue that admits the hosts.
            priority_class_name: the priority class.
            service_account_name: the service account; without one, hosts get no token of the cluster.
            volumes: PersistentVolumeClaims that are there: "name:/folder", "name:/folder:ro"; "name" is
                seen in /mnt/name.
            shared_memory_limit: the size of /dev/shm; else what memory allows.
            launch_timeout: how long to wait for the hosts: seconds, or "10m".
            inactivity_ttl: hosts end when nobody was connected for this long.
            gpu_memory: a share of one GPU by its memory, for schedulers that give shares.
            image_pull_policy: Always, IfNotPresent or Never.
            working_dir: the container's working folder.
            namespace: the namespace.
            gpu_anti_affinity: keep off nodes with GPUs, when no GPUs are asked for.
            gpu: see gpus.
            cpu: see cpus.
            others: what Kubetorch has and milkweed has not; refused with what to do instead.
        """
        said = {
            "gpus": gpus,
            "cpus": cpus,
            "memory": memory,
            "disk_size": disk_size,
            "gpu_type": gpu_type,
            "replicas": replicas,
            "image": image,
            "env_vars": env_vars,
            "secrets": secrets,
            "node_selector": node_selector,
            "tolerations": tolerations,
            "labels": labels,
            "annotations": annotations,
            "queue_name": queue_name,
            "priority_class_name": priority_class_name,
            "service_account_name": service_account_name,
            "volumes": volumes,
            "shared_memory_limit": shared_memory_limit,
            "launch_timeout": launch_timeout,
            "inactivity_ttl": inactivity_ttl,
            "gpu_memory": gpu_memory,
            "image_pull_policy": image_pull_policy,
            "working_dir": working_dir,
            "namespace": namespace,
            "gpu_anti_affinity": gpu_anti_affinity,
        }
        for name, value in _read_all(said, {"gpu": gpu, "cpu": cpu}, others).items():
            object.__setattr__(self, name, value)

    @property
    def gpu_resource(self) -> str:
        """What GPUs are counted as: `nvidia.com/gpu`, or `amd.com/gpu`."""
        return gpu_resource(self.gpu_type)

    @property
    def selector(self) -> dict[str, str]:
        """The labels that nodes must have, with the one that says the kind of GPU."""
        return {**self.node_selector, **gpu_label(self.gpu_type)}

    @property
    def resources(self) -> dict[str, str]:
        """What each host is given, by Kubernetes' names."""
        said = {
            "cpu": self.cpus,
            "memory": self.memory,
            "ephemeral-storage": self.disk_size,
            self.gpu_resource: str(self.gpus) if self.gpus else None,
        }
        return {name: amount for name, amount in said.items() if amount is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back; what was not said is not in it."""
        blank = Compute()
        names = [item.name for item in fields(self)]
        said = [name for name in names if getattr(self, name) != getattr(blank, name)]
        return {name: _plain(getattr(self, name)) for name in said}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Compute:
        """Read what `to_json` wrote."""
        said = dict(data)
        if "image" in said:
            said["image"] = Image.from_json(said["image"])
        return cls(**said)


def _plain(value: Any) -> Any:
    if isinstance(value, Image):
        return value.to_json()
    if isinstance(value, Mount):
        return asdict(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[Any, ...]", value)]
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value


def _read_all(
    said: Mapping[str, Any], aliases: Mapping[str, Any], others: Mapping[str, object]
) -> dict[str, Any]:
    """Read every field; all that is wrong is told at once."""
    problems: list[SpecError] = list(_check_others(others))
    found: dict[str, Any] = {}
    for name, value in said.items():
        try:
            found[name] = _read_field(name, value, aliases)
        except SpecError as error:
            problems.append(error)
    if not problems:
        problems += _check_together(found)
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        raise SpecError("\n".join(problem.what for problem in problems), hint="\n".join(hints))
    return found


def _check_others(others: Mapping[str, object]) -> Iterable[SpecError]:
    for name, value in others.items():
        if name not in _REFUSED:
            known = [*READERS, *_ALIASES]
            yield SpecError(f"compute.{name}: unknown word", hint=suggest(name, known))
        elif value is not None and value is not False:
            yield SpecError(f"compute.{name}: milkweed has no such thing", hint=_REFUSED[name])


def _read_field(name: str, value: Any, aliases: Mapping[str, Any]) -> Any:
    read, missing = READERS[name]
    found = copy(missing) if value is None else read(value, f"compute.{name}")
    alias = next((short for short, full in _ALIASES.items() if full == name), "")
    other = aliases.get(alias)
    if other is None:
        return found
    same = read(other, f"compute.{alias}")
    if value is not None and same != found:
        raise SpecError(f"compute.{alias}: {other!r}, but {name} is {value!r}", hint="give one")
    return same


def _check_together(found: Mapping[str, Any]) -> Iterable[SpecError]:
    if found["gpus"] and found["gpu_memory"]:
        yield SpecError(
            "compute.gpu_memory: whole GPUs are asked for, too",
            hint="give gpus, or gpu_memory for a share of one",
        )
    for key, value in gpu_label(found["gpu_type"]).items():
        if found["node_selector"].get(key, value) != value:
            yield SpecError(
                f"compute.gpu_type: {value!r}, but node_selector says {found['node_selector'][key]!r}",
                hint=f"give one value for {key}",
            )
    yield from _check_paths({name: found[name] for name in ("volumes", "secrets")})


def _check_paths(mounts: Mapping[str, Iterable[Mount]]) -> Iterable[SpecError]:
    seen = {"/dev/shm": "shared memory"}  # noqa: S108  where POSIX has it
    for field, mount in ((field, mount) for field, each in mounts.items() for mount in each):
        if mount.path is None:
            continue
        place = mount.path.rstrip("/")
        if place in seen:
            yield SpecError(
                f"compute.{field}: {mount.name!r} and {seen[place]!r} are both seen in {mount.path}",
                hint="give each a folder of its own",
            )
        seen[place] = mount.name
