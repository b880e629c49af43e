"""Backends by name: built-in ones and those that other packages bring, all by the same entry-point group."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BackendError, UnknownBackendError
from ..spec import suggest

if TYPE_CHECKING:
    from ..options import OptionField
    from .base import Backend

GROUP = "milkweed.backends"

# What pyproject.toml declares in the group, repeated so that finding a built-in backend does not read the
# metadata of every installed package; a test compares the two.
BUILT_IN: Mapping[str, str] = {
    "fake": "milkweed.backends.fake:FakeBackend",
    "flux": "milkweed.backends.flux.backend:FluxBackend",
    "kubernetes": "milkweed.backends.kubernetes.backend:KubernetesBackend",
    "local": "milkweed.backends.local:LocalBackend",
    "process": "milkweed.backends.process:ProcessBackend",
    "slurm": "milkweed.backends.slurm.backend:SlurmBackend",
}


def backend_names() -> list[str]:
    """Every name that `on:` may have."""
    return sorted({*BUILT_IN, *_plugins()})


def load_backend(name: str) -> Backend:
    """Make the backend of that name; a broken plugin is reported by name and breaks nothing else."""
    where = BUILT_IN.get(name) or _plugins().get(name)
    if where is None:
        raise UnknownBackendError(
            f"there is no backend called {name!r}", hint=suggest(name, backend_names())
        )
    try:
        module, _, attribute = where.partition(":")
        made: Any = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # a plugin may fail in any way; its name must be in the report
        raise BackendError(
            f"the backend {name!r} is broken",
            seen=f"{where}: {type(error).__name__}: {error}",
            hint="repair or uninstall the package that brings it",
        ) from error
    return made


def option_table(name: str) -> Mapping[str, OptionField] | None:
    """The keys that a backend's block may have; None when there is no such backend."""
    try:
        backend = load_backend(name)
    except UnknownBackendError:
        return None
    return getattr(backend, "OPTIONS", {})


def _plugins() -> dict[str, str]:
    import importlib.metadata

    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point.value for point in points}
