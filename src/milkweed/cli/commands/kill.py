"""`kill`: ending allocations, with their records or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import BackendError, MilkweedError
from ..arguments import JobArgument, OnOption
from ..edge import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...backends.base import Backend
    from ...registry import Entry
    from ..look import Allocation


def kill(
    ctx: typer.Context,
    job: JobArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="End all recorded jobs; with --on, all on that backend.")
    ] = False,
    on: OnOption = None,
) -> None:
    """End a job's allocation, and forget it.

    Everything that runs on its hosts ends, and its logs are removed. Gone already is fine.
    """
    from ..choose import choose, load_listed
    from ..look import load_allocation

    if everything and job is not None:
        ctx.fail("give a JOB or --all, not both")
    if everything:
        kill_all(load_listed(on))
        return
    chosen = choose(job, on)
    found = load_allocation(chosen)
    if found is None:
        say(f"job {chosen.name!r} has no allocation: nothing to end")
        return
    end(found)
    typer.echo(f"killed {found.name} ({found.short_id})")


def kill_all(entries: Iterable[Entry]) -> None:
    """End allocations one by one; one that cannot be ended does not stop the others."""
    from ..look import of_entry

    failed = 0
    for entry in entries:
        found = of_entry(entry)
        try:
            end(found)
        except MilkweedError as error:
            say(f"{found.name} ({found.short_id}): {error}")
            failed += 1
        else:
            typer.echo(f"killed {found.name} ({found.short_id})")
    if failed:
        raise typer.Exit(1)


def end(found: Allocation) -> None:
    """End an allocation and forget it; what nobody can be sure of is kept."""
    if found.record is None:
        _end_lost(found)
        return
    from ...job import lifecycle
    from ...job.observing import observe
    from ..look import load_backend_of

    backend = load_backend_of(found)
    with found.file.lock():
        # Looking first completes a record that was cut short, and refuses another machine's.
        record, _observed = observe(backend, found.record, None)
        recorded = found.file.load()
        same = recorded is not None and recorded.apply_id == found.apply_id
        lifecycle.end(backend, record or found.record, found.file if same else None)


def _end_lost(found: Allocation) -> None:
    """Without a record, the id alone finds it."""
    from ...registry import remove_entry

    for backend in _candidates(found):
        handle = backend.find(found.apply_id)
        if handle is not None:
            backend.cancel(handle)
            break
    remove_entry(found.apply_id)


def _candidates(found: Allocation) -> list[Backend]:
    """The backend that is listed, or all of them when the entry is damaged, too."""
    from ...backends import backend_names, load_backend
    from ...registry import DAMAGED
    from ..look import load_backend_of

    if found.backend != DAMAGED:
        return [load_backend_of(found)]
    try:
        return [load_backend(name) for name in backend_names()]
    except BackendError as error:
        raise BackendError(
            f"the entry of {found.apply_id} is damaged, and not every backend can be asked",
            seen=str(error),
        ) from error
