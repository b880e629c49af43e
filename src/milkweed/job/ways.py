"""How a client goes to an allocation that is there: as it declares now, whatever the one before it declared."""

from __future__ import annotations

from dataclasses import replace

from ..backends.base import Backend, Reroutes
from ..spec import JobSpec
from ..state import Record, StateFile


def reroute(backend: Backend, record: Record, spec: JobSpec) -> Record:
    """The record of an allocation with the way to it that is declared; the rest of it stays."""
    if not isinstance(backend, Reroutes) or spec.backend != record.spec.backend:
        return record
    handle = backend.reroute(record.handle or {}, spec)
    if handle == record.handle:
        return record
    client = {key: value for key, value in record.spec.client.items() if key not in backend.WAYS}
    client |= {key: spec.client[key] for key in backend.WAYS if key in spec.client}
    return replace(record, handle=dict(handle), spec=replace(record.spec, client=client))


def note_way(record: Record, file: StateFile) -> tuple[Record, StateFile]:
    """Have the file record the way by which an allocation was reached, where it has another one."""
    known = file.load()
    if known and known.apply_id == record.apply_id and known.handle != record.handle:
        file.save(record)
    return record, file
