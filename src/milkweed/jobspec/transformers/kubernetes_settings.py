"""What a person says of Kubernetes beside the graph: an image, a namespace, and which cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from ...errors import SpecError
from ...kube.config import load_config
from ...labels import check_dns_label, check_dns_subdomain, check_label_key
from ...options import Data
from ...quantities import parse_quantity
from ...spec import suggest

IN_FILE = ("image", "memory", "service_account", "pull_policy", "pull_secret")
"""What a jobspec may say of its own work, under `attributes.user.kubernetes`."""
_POLICIES = ("Always", "IfNotPresent", "Never")
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it; what was not said is empty."""

    image: str = ""
    """The container image in which work runs."""
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    service_account: str = ""
    """Whose rights work has in the cluster; without it, none, and no token."""
    pull_policy: str = ""
    pull_secret: str = ""
    """The Secret of the namespace that has the password for the image's registry."""
    memory: str = ""
    """What each pod asks for, and may use: `4Gi`."""
    gpu: str = "nvidia.com/gpu"
    """The resource that is a GPU."""
    keep: bool = False
    """Whether objects stay in the cluster for a week after the end."""


def read_settings(said: Mapping[str, Data]) -> Settings:
    """Check every setting; SpecError names the one that is wrong."""
    known = [each.name for each in fields(Settings)]
    for key in said:
        if key not in known:
            raise SpecError(f"setting {key!r}: is not known", hint=suggest(key, known))
    texts = {key: _text(key, value) for key, value in said.items() if key != "keep"}
    given: dict[str, Any] = {key: value for key, value in texts.items() if value}
    found = Settings(**given, keep=_flag(said.get("keep", False)))
    _check(found)
    return found


def _text(key: str, value: Data) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise SpecError(f"setting {key!r}: {value!r} is not text")


def _flag(value: Data) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise SpecError(f"setting 'keep': {value!r} is neither true nor false")


def _check(found: Settings) -> None:
    if found.image != found.image.strip() or any(each.isspace() for each in found.image):
        raise SpecError(f"setting 'image': {found.image!r} is no name of an image")
    if found.namespace:
        check_dns_label(found.namespace, field="setting 'namespace'")
    for key in ("service_account", "pull_secret"):
        if value := getattr(found, key):
            check_dns_subdomain(value, field=f"setting {key!r}")
    if found.pull_policy and found.pull_policy not in _POLICIES:
        raise SpecError(f"setting 'pull_policy': it is one of: {', '.join(_POLICIES)}")
    if found.memory:
        parse_quantity(found.memory, field="setting 'memory'")
    check_label_key(found.gpu, field="setting 'gpu'")


def read_own(settings: Mapping[str, Data], user: Any) -> Settings:
    """The settings of one work: what its file says, under what the person says beside it."""
    said: Mapping[str, Any] = {}
    if user is not None:
        said = _read_user(user)
    return read_settings({**said, **settings})


def _read_user(user: Any) -> Mapping[str, Any]:
    found = cast("dict[str, Any]", user) if isinstance(user, dict) else {}
    said = found.get("kubernetes")
    for key in found:
        if key != "kubernetes":
            raise SpecError(f"attributes.user.{key}: the transformer 'kubernetes' does not know it")
    if not isinstance(said, dict):
        raise SpecError("attributes.user.kubernetes: is no mapping", hint="write {image: …}")
    for key in cast("dict[str, Any]", said):
        if key not in IN_FILE:
            hint = suggest(key, IN_FILE)
            raise SpecError(f"attributes.user.kubernetes.{key}: is not known there", hint=hint)
    return cast("dict[str, Any]", said)


def resolve(settings: Mapping[str, Data]) -> dict[str, Data]:
    """The settings with the cluster and the namespace that are meant now, so that a run stays with them."""
    said = read_settings(settings)
    found: dict[str, Data] = {
        key: value for key, value in settings.items() if value not in (None, "")
    }
    if kubeconfig := said.kubeconfig or _only_file(os.environ.get("KUBECONFIG", "")):
        found["kubeconfig"] = os.path.abspath(os.path.expanduser(kubeconfig))
    try:
        config = load_config(said.context or None, str(found.get("kubeconfig") or "") or None)
    except SpecError:  # a plan can be looked at where no cluster is; whoever runs it hears of it
        found.setdefault("namespace", "default")
        return found
    found.setdefault("namespace", config.namespace)
    if config.context:
        found.setdefault("context", config.context)
    return found


def _only_file(paths: str) -> str:
    found = [path for path in paths.split(os.pathsep) if path]
    return found[0] if len(found) == 1 and os.path.isfile(os.path.expanduser(found[0])) else ""
