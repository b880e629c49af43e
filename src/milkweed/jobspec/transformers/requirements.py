"""Whether this machine is what a jobspec requires; what cannot be looked up is refused, not assumed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping

from ...errors import SpecError
from ...options import Data

GPU_ENV = "CUDA_VISIBLE_DEVICES"
_FAMILIES = (
    frozenset({"x86_64", "amd64"}),
    frozenset({"aarch64", "arm64"}),
    frozenset({"ppc64le"}),
)


def list_gpus(
    environment: Mapping[str, str] = os.environ,
    count_gpus: Callable[[Mapping[str, str]], int] | None = None,
) -> list[str]:
    """The GPUs of this machine that a program would see, as CUDA_VISIBLE_DEVICES names them."""
    from ...worker import devices

    count = (count_gpus or devices.count_gpus)(environment)
    if count and (mask := environment.get(GPU_ENV)):
        return [word.strip() for word in mask.split(",")][:count]
    return [str(number) for number in range(count)]


def check_requirements(requires: Data) -> None:
    """Refuse requirements that this machine does not meet, or that nobody can look up here."""
    for item in requires if isinstance(requires, list) else []:
        if isinstance(item, dict):
            _check(item)


def _check(item: Mapping[str, Data]) -> None:
    field, wanted = item.get("field"), item.get("value", item.get("match"))
    facts = _facts()
    if field not in facts or set(item) - {"name", "field", "value", "match"}:
        known = ", ".join(sorted(facts))
        raise SpecError(f"requires: {field!r} cannot be looked up here", hint=f"these can: {known}")
    if not _is_met(str(field), str(wanted), facts):
        raise SpecError(f"requires: {field} is {facts[str(field)]!r} here, not {wanted!r}")


def _is_met(field: str, wanted: str, facts: Mapping[str, str]) -> bool:
    if field == "cpu.target":
        return (
            any({wanted, facts[field]} <= family for family in _FAMILIES) or wanted == facts[field]
        )
    if field == "hardware.gpu.available":
        return wanted == "no" or facts[field] == wanted
    return wanted == facts[field]


def _facts() -> dict[str, str]:
    """What is known of this machine."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return {
        "cpu.target": os.uname().machine,
        "hardware.gpu.available": "yes" if list_gpus() else "no",
        "os.name": release.get("PRETTY_NAME", ""),
        "os.release": release.get("VERSION_ID", ""),
        "os.vendor": release.get("ID", ""),
    }
