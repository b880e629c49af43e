"""Where every allocation of this user is listed, so that it can be found again with its own file gone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .errors import StateError
from .state import StateFile, check_apply_id, ensure_folder, save_private

HOME_ENV = "MILKWEED_HOME"
DAMAGED = "?"
"""The name and backend of an entry that cannot be read."""


def home() -> Path:
    """The folder of this user's records."""
    if chosen := os.environ.get(HOME_ENV):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "milkweed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One allocation: who it is, and where its record is."""

    apply_id: str
    name: str
    backend: str
    state_path: str
    """Empty when nobody knows where its record was."""
    created: float
    """0 when nobody knows."""

    @property
    def folder(self) -> Path:
        """The allocation's own folder: its entry, its events, and its record when no path was asked for."""
        return folder_of(self.apply_id)

    def state_file(self) -> StateFile:
        """The record."""
        return StateFile(self.state_path)


def folder_of(apply_id: str) -> Path:
    """The folder of an allocation; it is deleted with it, so the id must be a plain name."""
    check_apply_id(apply_id)
    return home() / "jobs" / apply_id


def own_state_path(apply_id: str) -> Path:
    """Where the record lives when no path was asked for."""
    return folder_of(apply_id) / "state.json"


def resizing_path(apply_id: str) -> Path:
    """A file that is there from before the sizes of an allocation change until that is recorded."""
    return folder_of(apply_id) / "resizing"


def note_resizing(apply_id: str) -> None:
    """Make that file. Where its folder is gone nobody lists the allocation, so nobody reads that either."""
    path = resizing_path(apply_id)
    if path.parent.is_dir() and not path.exists():
        save_private(path, b"", what=f"the note {path}")


def save_entry(entry: Entry) -> None:
    """List an allocation; done before the scheduler is asked for it."""
    for folder in (home(), home() / "jobs"):
        ensure_folder(folder)  # each by itself, so that none of them is open to others
    data = json.dumps(asdict(entry)).encode() + b"\n"
    save_private(entry.folder / "entry.json", data, what=f"the record of job {entry.name!r}")


def load_entries() -> Iterator[Entry]:
    """All allocations, the newest last; a damaged entry is shown as such, never dropped or repaired."""
    found: list[Entry] = []
    for path in _list_folders():
        try:
            found.append(_load_entry(path))
        except (OSError, ValueError, TypeError, RecursionError, StateError):
            if path.is_dir():  # else it was forgotten meanwhile
                found.append(_make_damaged(path.name))
    yield from sorted(found, key=lambda entry: entry.created)


def is_listed(apply_id: str) -> bool:
    """Whether an allocation is on the list."""
    return (folder_of(apply_id) / "entry.json").exists()


def load_state_path(apply_id: str) -> str:
    """Where the record of a listed allocation is; empty where nobody knows."""
    try:
        return _load_entry(folder_of(apply_id)).state_path
    except (OSError, ValueError, TypeError, RecursionError, StateError):
        return ""


def _list_folders() -> list[Path]:
    """The folders of all allocations; with the last of them the one that holds them goes, at any moment."""
    try:
        return sorted(path for path in (home() / "jobs").iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _make_damaged(apply_id: str) -> Entry:
    return Entry(apply_id=apply_id, name=DAMAGED, backend=DAMAGED, state_path="", created=0.0)


def _load_entry(folder: Path) -> Entry:
    """The entry, or what the record says when a crash came before the entry was written."""
    path = folder / "entry.json"
    own = StateFile(folder / "state.json")
    if not path.exists() and (record := own.load()) is not None:
        spec = record.spec
        return Entry(
            apply_id=folder.name,
            name=spec.name,
            backend=spec.backend,
            state_path=str(own.target),
            created=record.created,
        )
    return _parse_entry(path)


def _parse_entry(path: Path) -> Entry:
    data: Any = json.loads(path.read_bytes())
    entry = Entry(**data)
    texts = [value for key, value in data.items() if key != "created"]
    if entry.apply_id != path.parent.name or not all(isinstance(text, str) for text in texts):
        raise ValueError("this is not the entry of its folder")
    return replace(entry, created=float(entry.created))


def remove_entry(apply_id: str) -> None:
    """Forget an allocation that is gone."""
    shutil.rmtree(folder_of(apply_id), ignore_errors=True)
    for folder in (home() / "jobs", home()):
        try:
            folder.rmdir()
        except OSError:
            return
