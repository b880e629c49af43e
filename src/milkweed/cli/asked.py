"""Asking a scheduler itself which allocations there are: what helps when every local file is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..backends import load_backend
from ..backends.base import Lists
from ..errors import MilkweedError, UnsupportedError
from ..registry import DAMAGED, Entry, load_entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The allocations on one backend, as far as records and its scheduler tell."""

    entries: list[Entry]
    problem: MilkweedError | None = None
    """Why the scheduler gave no list: then only recorded ones are here."""


def ask(name: str) -> Asked:
    """Everything on a backend: what is recorded, and what only its scheduler knows."""
    backend = _load_lister(name)
    listed: Mapping[str, str] = {}
    problem = None
    try:
        listed = backend.allocations()
    except MilkweedError as error:
        problem = error
    # Read after the scheduler was asked: entries are written before it is, so none looks lost that is not.
    return Asked(entries=_merge(name, listed, list(load_entries())), problem=problem)


def require_entries(name: str) -> list[Entry]:
    """The same for those who must know all of it; an error when the scheduler gave no list."""
    asked = ask(name)
    if asked.problem is not None:
        raise asked.problem
    return asked.entries


def _load_lister(name: str) -> Lists:
    backend = load_backend(name)
    if isinstance(backend, Lists):
        return backend
    raise UnsupportedError(
        f"backend {name!r} cannot be asked for its allocations", hint="recorded ones: `milkweed ls`"
    )


def _merge(name: str, listed: Mapping[str, str], entries: list[Entry]) -> list[Entry]:
    """Recorded ones, then the others by name; of a damaged entry the scheduler knows more."""
    recorded = [
        entry
        for entry in entries
        if entry.backend == name or (entry.apply_id in listed and entry.backend != DAMAGED)
    ]
    known = {entry.apply_id for entry in recorded}
    lost = [
        Entry(apply_id=apply_id, name=job, backend=name, state_path="", created=0.0)
        for apply_id, job in sorted(listed.items(), key=lambda item: (item[1], item[0]))
        if apply_id not in known
    ]
    return recorded + lost
