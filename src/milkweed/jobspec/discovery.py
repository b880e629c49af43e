"""Transformers by name: ours, those of the entry-point group, and installed packages named `jobspec_*`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ..errors import TransformerError
from ..options import Data
from ..spec import suggest
from .transformer import TransformerBase

GROUP = "milkweed.transformers"
PREFIX = "jobspec_"
UNREADABLE = "entry_points.txt: "

# What pyproject.toml declares in the group, repeated so that finding one of ours does not read the metadata of
# every installed package; a test compares the two.
BUILT_IN: Mapping[str, str] = {
    "flux": "milkweed.jobspec.transformers.flux:Transformer",
    "kubernetes": "milkweed.jobspec.transformers.kubernetes:Transformer",
    "local": "milkweed.jobspec.transformers.local:Transformer",
    "slurm": "milkweed.jobspec.transformers.slurm:Transformer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A transformer that is installed, working or not."""

    name: str
    where: str
    """Module and class."""
    description: str = ""
    problem: str = ""
    """What is wrong with it; nothing when it works."""


def transformer_names() -> list[str]:
    """Every name that `--transformer` may have; nothing is imported to find out."""
    return sorted(_places())


def list_transformers() -> list[Found]:
    """All transformers; a broken one is told as such, and breaks nothing else."""
    found: list[Found] = []
    for name, where in sorted(_places().items()):
        try:
            cls = _load_class(name, where)
            found.append(Found(name=name, where=where, description=cls.description))
        except TransformerError as error:
            found.append(Found(name=name, where=where, problem=error.seen or error.what))
    return found


def load_transformer(name: str, **settings: Data) -> TransformerBase:
    """The transformer of that name."""
    places = _places() if name not in BUILT_IN else BUILT_IN
    if name not in places:
        hint = suggest(name, places)
        raise TransformerError(f"there is no transformer called {name!r}", hint=hint)
    made = _load_class(name, places[name])(**settings)
    made.found_as = name  # a plugin's class may call itself otherwise
    return made


def _load_class(name: str, where: str) -> type[TransformerBase]:
    try:
        if where.startswith(UNREADABLE):
            raise ValueError("its metadata cannot be read")  # noqa: TRY301  told as any other flaw
        module, _, attribute = where.partition(":")
        made: Any = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a plugin may fail in any way; it is reported
        raise TransformerError(
            f"the transformer {name!r} is broken",
            seen=f"{where}: {type(error).__name__}: {error}",
            hint="repair or uninstall the package that brings it; all others work",
        ) from error
    return _check_class(name, where, made)


def _check_class(name: str, where: str, made: Any) -> type[TransformerBase]:
    if _is_transformer(made):
        if made.name and made.description and made.steps:
            return made
        problem = "it needs a name, a description and registered steps"
    else:
        problem = "it is no class made from milkweed.jobspec.TransformerBase"
    hint = "repair or uninstall the package that brings it; all others work"
    raise TransformerError(
        f"the transformer {name!r} is broken", seen=f"{where}: {problem}", hint=hint
    )


def _is_transformer(made: Any) -> TypeGuard[type[TransformerBase]]:
    return isinstance(made, type) and issubclass(made, TransformerBase)


def _places() -> dict[str, str]:
    """Where each name is found; ours win over others, and declared ones over those found by name."""
    return {**_by_name(), **_declared(), **BUILT_IN}


def _declared() -> dict[str, str]:
    import importlib.metadata

    try:
        points = importlib.metadata.entry_points(group=GROUP)
        return {point.name: point.value for point in points}
    except _BAD_METADATA:
        return _declared_one_by_one()


_BAD_METADATA = (AttributeError, KeyError, OSError, TypeError, ValueError)


def _declared_one_by_one() -> dict[str, str]:
    """The same where the metadata of some package cannot be read: that one is named, and breaks nothing else."""
    import importlib.metadata

    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        try:
            points = package.entry_points.select(group=GROUP)
            found |= {point.name: point.value for point in points}
        except _BAD_METADATA as error:
            text = package.read_text("entry_points.txt") or ""
            if GROUP in text:
                found[package.name] = f"{UNREADABLE}{type(error).__name__}: {error}"
    return found


def _by_name() -> dict[str, str]:
    """Packages and modules whose names begin as the document says; they are not imported for that."""
    import pkgutil

    return {
        found.name.removeprefix(PREFIX).replace("_", "-"): f"{found.name}:Transformer"
        for found in pkgutil.iter_modules()
        if found.name.startswith(PREFIX) and len(found.name) > len(PREFIX)
    }
