"""Pods as people have them, as plain JSON: models of the official package, or mappings in either spelling.

The package is not imported: its models say by themselves how their fields are called in JSON. Generations of it
were generated in three ways, and all have `attribute_map`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, cast

from ...errors import SpecError

Json = dict[str, Any]

_SPELLED = {
    "container_id": "containerID",
    "dataset_uuid": "datasetUUID",
    "disk_uri": "diskURI",
    "downward_api": "downwardAPI",
    "host_i_ps": "hostIPs",
    "host_ip": "hostIP",
    "host_ipc": "hostIPC",
    "host_ips": "hostIPs",
    "host_pid": "hostPID",
    "image_id": "imageID",
    "pd_id": "pdID",
    "pod_i_ps": "podIPs",
    "pod_ip": "podIP",
    "pod_ips": "podIPs",
    "resource_id": "resourceID",
    "scale_io": "scaleIO",
    "set_hostname_as_fqdn": "setHostnameAsFQDN",
    "storage_policy_id": "storagePolicyID",
    "target_ww_ns": "targetWWNs",
    "target_wwns": "targetWWNs",
    "volume_id": "volumeID",
}
"""Fields whose JSON name does not follow from their Python name."""

_FREE = frozenset(
    {
        *("allocatedResources", "annotations", "labels", "limits", "matchLabels", "nodeSelector"),
        *("options", "overhead", "requests", "userAnnotations", "volumeAttributes"),
    }
)
"""Fields whose keys are a person's own words, to be left as they are."""


def parse_model(value: object, *, field: str) -> Json:
    """Read a model or a mapping as the JSON object that the API takes; what is None is left out."""
    found = _parse(value, field)
    if not isinstance(found, dict):
        raise SpecError(
            f"{field}: {type(value).__name__} is not a part of a pod",
            hint="give a model of the package kubernetes, or a mapping",
        )
    return cast("Json", found)


def _parse(value: object, field: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return _parse_mapping(cast("Mapping[object, object]", value), field)
    if isinstance(value, list | tuple):
        items = enumerate(cast("list[object]", value))
        return [_parse(item, f"{field}[{at}]") for at, item in items]
    if isinstance(value, date):
        return value.isoformat()
    return _parse_object(value, field)


def _parse_mapping(value: Mapping[object, object], field: str) -> Json:
    found: Json = {}
    free = field.rpartition(".")[2] in _FREE
    for key, item in value.items():
        if not isinstance(key, str):
            raise SpecError(f"{field}: the key {key!r} is not text", hint="put it in quotes")
        name = key if free else spell(key)
        if item is None:
            continue
        if name in found:
            raise SpecError(
                f"{field}.{name}: it is there twice, in two spellings", hint="say it once"
            )
        found[name] = _parse(item, f"{field}.{name}")
    return found


def spell(name: str) -> str:
    """The JSON name of a field: `termination_grace_period_seconds` is `terminationGracePeriodSeconds`."""
    if name in _SPELLED:
        return _SPELLED[name]
    first, *rest = name.strip("_").split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _parse_object(value: object, field: str) -> Any:
    """A generated model; `attribute_map` has the JSON name of each of its attributes."""
    names = getattr(type(value), "attribute_map", None)
    if isinstance(names, Mapping):
        pairs = cast("Mapping[str, str]", names).items()
        said = {name: getattr(value, attribute, None) for attribute, name in pairs}
        return _parse_mapping(cast("Mapping[object, object]", said), field)
    for method, options in (("model_dump", {"by_alias": True}), ("to_dict", {})):
        dump = getattr(value, method, None)
        if callable(dump):
            return _parse(dump(**options), field)
    raise SpecError(
        f"{field}: {type(value).__name__} is not plain data", hint="give mappings, lists and texts"
    )
