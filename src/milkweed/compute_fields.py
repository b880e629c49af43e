"""How each word of a Compute is read: one function for each kind of value, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil
from typing import Any, cast

from .errors import SpecError
from .image import Image, check_image, read_variables
from .labels import (
    check_annotations,
    check_dns_label,
    check_dns_subdomain,
    check_label_key,
    check_label_value,
    check_labels,
)
from .quantities import parse_quantity, render_quantity
from .spec import check_host_count, suggest
from .units import parse_duration

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
_PRODUCTS = {NVIDIA: "nvidia.com/gpu.product", AMD: "amd.com/gpu.product-name"}
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS = ("Equal", "Exists", "Gt", "Lt")
_TOLERATION = ("effect", "key", "operator", "tolerationSeconds", "value")
_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A Secret or a PersistentVolumeClaim that is there already, and where hosts see it."""

    name: str
    path: str | None = None
    """The folder it is seen in. A Secret without one gives its keys as variables."""
    read_only: bool = False


def gpu_resource(gpu_type: str | None) -> str:
    """What a kind of GPU is counted as: `amd.com/gpu` for what AMD's name begins, else `nvidia.com/gpu`."""
    word = (gpu_type or "").partition(":")[0].lower()
    return AMD if word.startswith("amd") or word.partition("/")[0].endswith(".amd.com") else NVIDIA


def gpu_label(gpu_type: str | None) -> dict[str, str]:
    """The label of nodes that have this kind of GPU; none where only the maker is named."""
    if not gpu_type or gpu_type.lower() in {"nvidia", "amd", NVIDIA, AMD}:
        return {}
    key, colon, value = gpu_type.partition(":")
    return {key.strip(): value.strip()} if colon else {_PRODUCTS[gpu_resource(gpu_type)]: gpu_type}


def _read_text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{field}: {value!r} is not text")
    return value.strip()


def _read_gpus(value: object, field: str) -> int:
    amount = parse_quantity(value, field=field)
    if amount.denominator != 1:
        raise SpecError(f"{field}: {value!r} is not a whole number of GPUs")
    return int(amount)


def _read_cpus(value: object, field: str) -> str:
    amount = parse_quantity(value, field=field)
    if amount < Fraction(1, 1000):
        raise SpecError(f"{field}: {value!r} is less than a thousandth of a CPU")
    return render_quantity(Fraction(ceil(amount * 1000), 1000))


def _read_size(value: object, field: str) -> str:
    """Whole bytes; a number without a unit is almost always a mistake, and so is `256m`."""
    size = ceil(parse_quantity(value, field=field))
    if size < _MEBIBYTE:
        raise SpecError(
            f"{field}: {value!r} is {size} bytes", hint="give it a unit: Mi, Gi, M or G"
        )
    return render_quantity(size, binary=not isinstance(value, str) or value.rstrip().endswith("i"))


def _read_gpu_type(value: object, field: str) -> str:
    text = _read_text(value, field)
    for key, label in gpu_label(text).items():
        check_label_key(key, field=field)
        check_label_value(label, field=field)
    return text


def _read_replicas(value: object, field: str) -> int:
    check_host_count(value, where=field)
    return cast("int", value)


def _read_image(value: object, field: str) -> Image:
    if isinstance(value, str):
        return Image().from_docker(check_image(value, field=field))
    if not isinstance(value, Image):
        raise SpecError(
            f"{field}: {value!r} is not an image", hint="give milkweed's Image, or a name"
        )
    return value


def _read_bool(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{field}: {value!r} is not True or False")
    return value


def _read_policy(value: object, field: str) -> str:
    if value not in _PULL_POLICIES:
        raise SpecError(f"{field}: {value!r} is not one of: {', '.join(_PULL_POLICIES)}")
    return str(value)


def _read_folder(value: object, field: str) -> str:
    text = _read_text(value, field)
    if not text.startswith("/") or ":" in text:
        raise SpecError(f"{field}: {value!r} is not an absolute path")
    return text


def _read_mounts(value: object, field: str) -> tuple[Mount, ...]:
    return tuple(
        _read_mount(each, f"{field}[{at}]") for at, each in enumerate(_items(value, field))
    )


def _items(value: object, field: str) -> Iterable[object]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise SpecError(f"{field}: {value!r} is not a list", hint="write a list: [first, second]")
    return cast("Iterable[object]", value)


def _read_mount(value: object, field: str) -> Mount:
    """`name`, `name:/folder`, `name:/folder:ro`, a mapping of the same, or a Mount."""
    if isinstance(value, str):
        name, *rest = value.split(":")
        if len(rest) > 2 or rest[1:] not in ([], ["ro"]):
            raise SpecError(
                f"{field}: {value!r} is not read", hint="write name:/folder, or name:/folder:ro"
            )
        value = Mount(name=name, path=rest[0] if rest else None, read_only=len(rest) == 2)
    elif isinstance(value, Mapping):
        value = _mount_of(cast("Mapping[str, Any]", value), field)
    if not isinstance(value, Mount):
        raise SpecError(
            f"{field}: {type(value).__name__} is not read; milkweed makes no secrets and no volumes",
            hint="make it in the cluster, and give its name: name:/folder",
        )
    check_dns_subdomain(value.name, field=field)
    if value.path is not None:
        _read_folder(value.path, field)
    return value


def _mount_of(words: Mapping[str, Any], field: str) -> Mount:
    known = {item.name for item in fields(Mount)} | {"mount_path"}
    for word in words:
        if word not in known:
            raise SpecError(f"{field}.{word}: unknown word", hint=suggest(word, known))
    path = words.get("path", words.get("mount_path"))
    read_only = _read_bool(words.get("read_only", False), f"{field}.read_only")
    return Mount(name=words.get("name", ""), path=path, read_only=read_only)


def _read_volumes(value: object, field: str) -> tuple[Mount, ...]:
    mounts = _read_mounts(value, field)
    return tuple(
        Mount(name=each.name, path=each.path or f"/mnt/{each.name}", read_only=each.read_only)
        for each in mounts
    )


def _read_tolerations(value: object, field: str) -> tuple[Mapping[str, Any], ...]:
    given = enumerate(_items(value, field))
    return tuple(_read_toleration(each, f"{field}[{at}]") for at, each in given)


def _read_toleration(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{field}: {value!r} is not a mapping", hint='write {"key": "gpu", …}')
    words = {
        "tolerationSeconds" if key == "toleration_seconds" else key: each
        for key, each in cast("Mapping[str, Any]", value).items()
        if each is not None
    }
    for word in words:
        if word not in _TOLERATION:
            raise SpecError(f"{field}.{word}: unknown word", hint=suggest(word, _TOLERATION))
    _check_toleration(words, field)
    return words


def _check_toleration(words: Mapping[str, Any], field: str) -> None:
    """As the cluster would check it, before anything is asked of it."""
    operator = words.get("operator", "Equal")
    problem = ""
    if operator not in _OPERATORS:
        problem = f"operator: {operator!r} is not one of: {', '.join(_OPERATORS)}"
    elif words.get("effect", _EFFECTS[0]) not in _EFFECTS:
        problem = f"effect: {words['effect']!r} is not one of: {', '.join(_EFFECTS)}"
    elif operator == "Exists" and words.get("value"):
        problem = "value: it must be empty when the operator is Exists"
    elif operator != "Exists" and not words.get("key"):
        problem = "key: without one, the operator must be Exists"
    elif "tolerationSeconds" in words and words.get("effect") != "NoExecute":
        problem = "tolerationSeconds: only the effect NoExecute has them"
    if problem:
        raise SpecError(f"{field}.{problem}")
    if words.get("key"):
        check_label_key(words["key"], field=f"{field}.key")


Read = Callable[[object, str], Any]


def _named(check: Callable[..., Any]) -> Read:
    """A check of another module, which takes the field by name."""
    return lambda value, field: check(value, field=field)


_read_duration = _named(cast("Callable[..., Any]", parse_duration))

READERS: Mapping[str, tuple[Read, Any]] = {
    "gpus": (_read_gpus, None),
    "cpus": (_read_cpus, None),
    "memory": (_read_size, None),
    "disk_size": (_read_size, None),
    "gpu_type": (_read_gpu_type, None),
    "replicas": (_read_replicas, 1),
    "image": (_read_image, None),
    "env_vars": (_named(read_variables), {}),
    "secrets": (_read_mounts, ()),
    "node_selector": (_named(check_labels), {}),
    "tolerations": (_read_tolerations, ()),
    "labels": (_named(check_labels), {}),
    "annotations": (_named(check_annotations), {}),
    "queue_name": (_named(check_dns_subdomain), None),
    "priority_class_name": (_named(check_dns_subdomain), None),
    "service_account_name": (_named(check_dns_subdomain), None),
    "volumes": (_read_volumes, ()),
    "shared_memory_limit": (_read_size, None),
    "launch_timeout": (_read_duration, None),
    "inactivity_ttl": (_read_duration, None),
    "gpu_memory": (_read_size, None),
    "image_pull_policy": (_read_policy, None),
    "working_dir": (_read_folder, None),
    "namespace": (_named(check_dns_label), None),
    "gpu_anti_affinity": (_read_bool, False),
}
"""How each field is read, and what it is when nobody says it."""
