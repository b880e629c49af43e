"""Whether a machine is what a jobspec requires; what cannot be looked up is refused, not assumed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping

from ...errors import SpecError
from ...options import Data

GPU_ENV = "CUDA_VISIBLE_DEVICES"
CPU, GPU = "cpu.target", "hardware.gpu.available"
_SAME = {"gpu.available": GPU}
_FAMILIES = (
    ("x86_64", "amd64"),
    ("aarch64", "arm64"),
    ("ppc64le",),
    ("riscv64",),
    ("s390x",),
)
"""The names of each kind of machine."""
_KEYS = frozenset({"name", "field", "value", "match"})


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


def read_machines(requires: Data) -> tuple[str, ...]:
    """How a machine that work requires may call itself; nothing where any will do.

    A place that nobody can ask before the work starts takes `cpu.target`, which is looked at there, and the
    word that no GPU is needed. Any other requirement is refused.
    """
    found: tuple[str, ...] = ()
    for field, wanted, is_plain in _read_items(requires):
        if is_plain and field == CPU:
            names = _family_of(wanted)
            if found and found != names:
                raise SpecError(f"requires: no machine is {found[0]} and {names[0]}")
            found = names
        elif not (is_plain and field == GPU and wanted == "no"):
            said = f"{field}: {wanted}" if field == GPU else repr(field)
            hint = f"these can: {CPU}, and {GPU}: no; ask for GPUs by their number"
            raise SpecError(f"requires: {said} cannot be asked for here", hint=hint)
    return found


def _read_items(requires: Data) -> Iterator[tuple[str, str, bool]]:
    """Each requirement: what it is about, what that must be, and whether that is all it says."""
    for item in requires if isinstance(requires, list) else []:
        if isinstance(item, dict):
            field = str(item.get("field"))
            wanted = str(item.get("value", item.get("match")))
            yield _SAME.get(field, field), wanted, not set(item) - _KEYS


def _family_of(wanted: str) -> tuple[str, ...]:
    for names in _FAMILIES:
        if wanted in names:
            return names
    known = ", ".join(name for names in _FAMILIES for name in names)
    raise SpecError(f"requires: {CPU} {wanted!r} is not known", hint=f"known: {known}")


def check_requirements(requires: Data) -> None:
    """Refuse requirements that this machine does not meet, or that nobody can look up here."""
    for field, wanted, is_plain in _read_items(requires):
        _check(field, wanted, is_plain=is_plain)


def _check(field: str, wanted: str, *, is_plain: bool) -> None:
    facts = _facts()
    if field not in facts or not is_plain:
        known = ", ".join(sorted(facts))
        raise SpecError(f"requires: {field!r} cannot be looked up here", hint=f"these can: {known}")
    if not _is_met(field, wanted, facts):
        raise SpecError(f"requires: {field} is {facts[field]!r} here, not {wanted!r}")


def _is_met(field: str, wanted: str, facts: Mapping[str, str]) -> bool:
    if field == CPU and wanted != facts[field]:
        return any({wanted, facts[field]} <= {*family} for family in _FAMILIES)
    if field == GPU:
        return wanted == "no" or facts[field] == wanted
    return wanted == facts[field]


def _facts() -> dict[str, str]:
    """What is known of this machine."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return {
        CPU: os.uname().machine,
        GPU: "yes" if list_gpus() else "no",
        "os.name": release.get("PRETTY_NAME", ""),
        "os.release": release.get("VERSION_ID", ""),
        "os.vendor": release.get("ID", ""),
    }
