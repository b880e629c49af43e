"""Which job a person means: a job file, a recorded job by name or id, or the one of this folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MilkweedError, NotAppliedError
from ..registry import Entry, load_entries
from ..spec import suggest
from ..state import DEFAULT_PATH, StateFile
from ..worker.wire import STATE_ENV
from .render import SHORT_ID, render_since, render_table

if TYPE_CHECKING:
    from ..jobfile import JobFile

MIN_ID = 4
"""Shorter words are never taken for the beginning of an id: a slip must not name a job."""
JOBFILE_SUFFIXES = (".yaml", ".yml")
ASK_HINT = "`milkweed ls --on slurm` asks the scheduler itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The job a person means, as far as files tell."""

    name: str
    backend: str
    file: StateFile
    """Where its record is, or will be."""
    jobfile: JobFile | None = None
    entry: Entry | None = None


def choose(job: str | None, on: str | None = None) -> Chosen:
    """Find the job that a word names, or without one the job of this place.

    With the name of a backend, the word is looked for among all that its scheduler knows.
    """
    if job is None:
        return _choose_here() if on is None else _raise_unnamed(on)
    # Another job than the one this program may have been started for is meant.
    os.environ.pop(STATE_ENV, None)
    if on is not None or not _is_path(job):
        return of_entry(find_entry(job, on))
    return of_record(StateFile(job)) if job.endswith(".json") else of_jobfile(Path(job))


def _is_path(job: str) -> bool:
    return os.sep in job or job.endswith(JOBFILE_SUFFIXES) or Path(job).is_file()


def _choose_here() -> Chosen:
    if (here := find_here()) is not None:
        return here
    entries = list(load_entries())
    if len(entries) == 1:
        return of_entry(entries[0])
    if not entries:
        raise make_nothing_error()
    raise MilkweedError(
        f"{len(entries)} jobs are recorded, and none was named",
        seen=render_entries(entries),
        hint="name one of them, or its id",
    )


def _raise_unnamed(on: str) -> Chosen:
    """The job of this place may be another one than the scheduler has, so it is not guessed."""
    raise MilkweedError(f"no job on {on} was named", hint=f"`milkweed ls --on {on}` lists them")


def choose_all(job: str | None, on: str | None = None) -> list[Chosen]:
    """The same for reads, which may be about several: without a job here, all recorded ones."""
    if job is not None:
        return [choose(job, on)]
    if on is not None:
        return _choose_all_on(on)
    if (here := find_here()) is not None:
        return [here]
    if found := [of_entry(entry) for entry in load_entries()]:
        return found
    raise make_nothing_error()


def _choose_all_on(on: str) -> list[Chosen]:
    if found := [of_entry(entry) for entry in load_listed(on)]:
        return found
    raise NotAppliedError(f"there is no job on {on}", hint="`milkweed apply` asks for hosts")


def find_here() -> Chosen | None:
    """The job this program was started for, or the one that this folder declares or records."""
    from ..jobfile import find_jobfile

    if inside := os.environ.get(STATE_ENV):
        return of_record(StateFile(inside))
    if found := find_jobfile(Path()):
        return of_jobfile(found)
    if Path(DEFAULT_PATH).is_file():
        return of_record(StateFile(DEFAULT_PATH))
    return None


def make_nothing_error() -> NotAppliedError:
    """The error when there is no job to be meant."""
    from ..jobfile import FILE_NAMES

    looked_for = ", ".join((*FILE_NAMES, DEFAULT_PATH))
    return NotAppliedError(
        "there is no job here",
        seen=f"this folder has none of {looked_for}, and no job is recorded",
        hint="`milkweed init` writes a job file",
    )


def of_jobfile(path: Path) -> Chosen:
    """The job that a file declares; its record lies beside the file, under the job's name."""
    from ..jobfile import load_jobfile

    found = load_jobfile(path)
    folder = Path(os.path.abspath(path)).parent
    record = folder / Path(DEFAULT_PATH).parent / f"{found.spec.name}.json"
    return Chosen(
        name=found.spec.name, backend=found.spec.backend, file=StateFile(record), jobfile=found
    )


def of_record(file: StateFile) -> Chosen:
    """The job that a state file records."""
    record = file.load()
    if record is None:
        raise NotAppliedError(
            f"there is no job recorded at {file.path}", hint="`milkweed ls` lists recorded jobs"
        )
    return Chosen(name=record.spec.name, backend=record.spec.backend, file=file)


def of_entry(entry: Entry) -> Chosen:
    """A recorded job."""
    return Chosen(name=entry.name, backend=entry.backend, file=entry.state_file(), entry=entry)


def find_entry(word: str, on: str | None = None) -> Entry:
    """The job of that name, or with that beginning of an id: recorded, or known to a scheduler."""
    entries = load_listed(on)
    found = [entry for entry in entries if entry.name == word]
    if not found and len(word) >= MIN_ID:
        found = [entry for entry in entries if entry.apply_id.startswith(word)]
    return the_one(found, word, on) if found else _raise_missing(word, entries, on)


def load_listed(on: str | None) -> list[Entry]:
    """All recorded jobs, or all jobs on one backend; an error when its scheduler does not answer."""
    if on is None:
        return list(load_entries())
    from .asked import require_entries

    return require_entries(on)


def the_one(found: Sequence[Entry], word: str, on: str | None = None) -> Entry:
    """The only entry of a list; an error that shows all when there are more."""
    if len(found) == 1:
        return found[0]
    kind = "recorded jobs" if on is None else f"jobs on {on}"
    raise MilkweedError(
        f"{len(found)} {kind} are called {word!r}",
        seen=render_entries(found),
        hint=f"name one by its id, such as {found[-1].apply_id[:SHORT_ID]}",
    )


def _raise_missing(word: str, entries: Sequence[Entry], on: str | None) -> Entry:
    names = sorted({entry.name for entry in entries})
    if on is not None:
        near = suggest(word, names) if names else ""
        hint = "with --on, a job is named by its name or id, not by a file"
        raise NotAppliedError(
            f"there is no job called {word!r} on {on}", hint=hint if _is_path(word) else near
        )
    hint = suggest(word, names) if names else "`milkweed init` writes a job file"
    raise NotAppliedError(
        f"no job called {word!r} is recorded, and there is no such job file",
        hint=f"{hint}\n{ASK_HINT}",
    )


def render_entries(entries: Sequence[Entry]) -> str:
    """Entries one below the other, with what tells them apart."""
    return render_table(
        [
            (
                entry.apply_id[:SHORT_ID],
                entry.name,
                entry.backend,
                render_since(entry.created),
                entry.state_path or "record lost",
            )
            for entry in entries
        ]
    )
