"""`logs`: what hosts have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import JobArgument
from ..edge import leave_with_reader

if TYPE_CHECKING:
    from ...backends.base import Backend, Handle, LogLine


def logs(
    job: JobArgument = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until the job ends.")
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Only this host, such as trainers/3; `client` is the program of a detached run.",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="N", min=0, help="Only the last N lines of each.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what a job's hosts have written. Each line has its host before it."""
    from ..choose import choose
    from ..look import require_allocation, require_handle

    backend, handle = require_handle(require_allocation(choose(job)))
    if follow:
        leave_with_reader()
    for line in read_lines(backend, handle, host, follow=follow, tail=tail):
        typer.echo(line.text if host else f"[{line.host}] {line.text}")


def read_lines(
    backend: Backend, handle: Handle, host: str | None, *, follow: bool, tail: int | None
) -> Iterator[LogLine]:
    """The lines, or the last ones of each host and all that come after them."""
    if tail is None:
        yield from backend.logs(handle, host, follow=follow)
        return
    written = Counter(line.host for line in backend.logs(handle, host, follow=False))
    read: Counter[str] = Counter()
    for line in backend.logs(handle, host, follow=follow):
        read[line.host] += 1
        if read[line.host] > written[line.host] - tail:
            yield line
