"""Jobs from records, from specs, and the one that a program runs in."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from ..errors import NotAppliedError, StateCorruptError
from ..spec import JobSpec
from ..state import DEFAULT_PATH, Record, StateFile, parse_record
from ..worker.wire import STATE_ENV
from .base import JobTrait


class SpecJob(JobTrait):
    """A job made from a spec, on whatever backend it names: what job files become."""

    def __init__(self, spec: JobSpec, *, on_change: str | None = None) -> None:
        self._declare(spec, on_change=on_change)
        self._services = spec.services


def job_load(filename: str | os.PathLike[str] = DEFAULT_PATH) -> JobTrait:
    """Load a job from a file that `dump()` or `state()` wrote."""
    file = StateFile(filename)
    record = file.load()
    if record is None:
        raise FileNotFoundError(f"there is no job recorded at {os.fspath(filename)!r}")
    return make_job(record, file)


def job_loads(data: bytes) -> JobTrait:
    """Load a job from bytes that `dumps()` made; JSON only, never a pickle."""
    from .. import registry

    record = parse_record(data, "these bytes")
    path = registry.own_state_path(record.apply_id or "unknown")
    for entry in registry.load_entries():
        if entry.apply_id == record.apply_id and entry.state_path:
            path = entry.state_path
    return make_job(record, StateFile(path))


def load_current_job() -> JobTrait:
    """The job this program was started for: by `milkweed run`, or in batch mode; else the one recorded here."""
    path = os.environ.get(STATE_ENV) or _only_record()
    try:
        return job_load(path)
    except FileNotFoundError:
        raise NotAppliedError(
            "there is no current job",
            seen=f"no record at {path}",
            hint="start the program with `milkweed run`, or call state() of a job first",
        ) from None


def _only_record() -> str:
    """The usual record of this folder, or the only one that a job file has left here."""
    usual = Path(DEFAULT_PATH)
    found = sorted(usual.parent.glob("*.json"))
    return str(found[0]) if len(found) == 1 else str(usual)


def make_job(record: Record, file: StateFile) -> JobTrait:
    """The job object that a record was made of."""
    return find_class(record, str(file.path))._from_record(record, file)  # pyright: ignore[reportPrivateUsage] the loader is JobTrait's other half


def find_class(record: Record, source: str) -> type[JobTrait]:
    """The class that a record names; only a JobTrait will do."""
    module, _, name = record.job_class.partition(":")
    if not module:
        return SpecJob
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        hint = f"import {module} must work here"
        if module == "__main__":
            hint = "the class stood in a script: put it into a module that both programs import"
        raise StateCorruptError(
            f"{source} was written by the job class {record.job_class!r}, which is not here",
            seen=str(error),
            hint=hint,
        ) from error
    if not (isinstance(found, type) and issubclass(found, JobTrait)):
        raise StateCorruptError(
            f"{source} names {record.job_class!r}, which is not a job class",
            hint="load it where that name is the class that made the job, or name another file",
        )
    return found
