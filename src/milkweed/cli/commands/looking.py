"""`status`, `ls` and `hosts`: reading, which changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import JobArgument, JsonOption, OnOption
from ..edge import say
from ..render import print_json, render_since, render_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...registry import Entry
    from ...status import HostStatus
    from ..choose import Chosen
    from ..look import Allocation, Seen

TAIL_LINES = 20
MOST_HOSTS = 8
"""Of how many hosts of a job that has ended the last lines are printed."""


def ls(on: OnOption = None, as_json: JsonOption = False) -> None:
    """List your jobs, on all schedulers. With --on: those of one, and what only it still knows."""
    from ..look import look_at_all, of_entry

    entries, complete = _load_entries(on)
    found = look_at_all([of_entry(entry) for entry in entries])
    if as_json:
        print_json({"jobs": [seen.to_json() for seen in found]})
    elif not found:
        say("no job is recorded" if on is None or not complete else f"there is no job on {on}")
    else:
        header = ("NAME", "BACKEND", "STATUS", "HOSTS", "AGE", "ID")
        typer.echo(render_table([_row(seen) for seen in found], header, paint=2))
    if not complete:
        raise typer.Exit(1)


def _load_entries(on: str | None) -> tuple[list[Entry], bool]:
    """What is listed, and whether it is all; a scheduler that gives no list is told of."""
    from ...registry import load_entries

    if on is None:
        return list(load_entries()), True
    from ..asked import ask

    asked = ask(on)
    if asked.problem is not None:
        say(str(asked.problem))
        say(f"only the recorded jobs on {on} are listed")
    return asked.entries, asked.problem is None


def _row(seen: Seen) -> tuple[str, ...]:
    found = seen.allocation
    age = render_since(found.created)
    return (found.name, found.backend, seen.word, seen.host_count, age, found.short_id)


def status(
    job: JobArgument = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Tell what happened, and show the end of the logs that tell why."
        ),
    ] = False,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how a job and its hosts are. Without a job in this folder: all recorded ones."""
    from ..choose import choose_all
    from ..look import load_allocation, look_at_all

    chosen = choose_all(job, on)
    found = [(one, load_allocation(one)) for one in chosen]
    seen = look_at_all([allocation for _one, allocation in found if allocation])
    if as_json:
        missing = [_none_to_json(one) for one, allocation in found if allocation is None]
        print_json({"jobs": [*missing, *(_to_json(one, why=why) for one in seen)]})
        return
    for one, allocation in found:
        if allocation is None:
            typer.echo(f"{one.name} on {one.backend}: not applied")
    for one in seen:
        _print_status(one, why=why)


def _none_to_json(chosen: Chosen) -> dict[str, Any]:
    return {"name": chosen.name, "backend": chosen.backend, "status": None, "hosts": []}


def _print_status(seen: Seen, *, why: bool) -> None:
    typer.echo(_summary(seen))
    if rows := [_host_row(host) for host in seen.status.hosts]:
        typer.echo(_indent(render_table(rows, paint=1), 2))
    if why:
        typer.echo(_render_why(seen))


def _to_json(seen: Seen, *, why: bool) -> dict[str, Any]:
    data = seen.to_json()
    if why:
        from dataclasses import asdict

        data["events"] = [asdict(event) for event in _events(seen.allocation)]
        failed = {host.host: _tail(seen, host) for host in seen.status.failed_hosts}
        data["logs"] = {**_load_last_lines(seen), **failed}
    return data


def _summary(seen: Seen) -> str:
    found = seen.allocation
    lost = ", its record is lost" if found.lost else ""
    age = f"{render_since(found.created)} old" if found.created else "of unknown age"
    described = seen.status.describe()
    return f"{found.name} on {found.backend}: {described}{lost}, {age}, id {found.short_id}"


def _host_row(host: HostStatus) -> tuple[str, str, str]:
    return (host.host, host.state.value, (host.reason.splitlines() or [""])[0])


def _events(found: Allocation) -> list[Any]:
    from ...events import Events

    return Events(found.apply_id).load()


def _render_why(seen: Seen) -> str:
    events = "\n".join(str(event) for event in _events(seen.allocation)) or "none are recorded"
    parts = ["  events", _indent(events, 4)]
    for host in seen.status.failed_hosts:
        lines = "\n".join(_tail(seen, host)) or "it wrote nothing"
        parts += [f"  {host.host}: {_host_row(host)[2]}", _indent(lines, 4)]
    ends = _load_last_lines(seen)
    for label in list(ends)[:MOST_HOSTS]:
        parts += [f"  {label}: the end of its log", _indent("\n".join(ends[label]), 4)]
    if len(ends) > MOST_HOSTS:
        parts.append(f"  and {len(ends) - MOST_HOSTS} more hosts: `milkweed logs --tail 5`")
    return "\n".join(parts)


def _load_last_lines(seen: Seen) -> Mapping[str, Sequence[str]]:
    """The end of each host's log where the job has ended, unless in order: then nobody has to ask why."""
    from ...backends.base import KeepsLogs
    from ...errors import MilkweedError
    from ...status import Liveness
    from ..look import load_backend_of

    record, status = seen.allocation.record, seen.status
    over = status.liveness is Liveness.ENDED and status.exit_code != 0
    if not over or record is None or seen.handle is None:
        return {}
    try:
        backend = load_backend_of(seen.allocation)
        if isinstance(backend, KeepsLogs):
            return backend.last_lines(seen.handle, record.spec.labels)
    except MilkweedError as error:  # what else is known of it is told all the same
        say(f"the logs of job {seen.allocation.name!r} cannot be read: {error.what}")
    return {}


def _tail(seen: Seen, host: HostStatus) -> list[str]:
    """The last lines of a failed host's log: those its reason carries, or those to be read."""
    from collections import deque

    from ...errors import MilkweedError
    from ..look import load_backend_of

    lines = host.reason.splitlines()[1:]
    if lines or seen.handle is None:
        return lines[-TAIL_LINES:]
    try:
        backend = load_backend_of(seen.allocation)
        found = backend.logs(seen.handle, host.host, follow=False)
        return list(deque((line.text for line in found), maxlen=TAIL_LINES))
    except MilkweedError as error:
        return [f"its log cannot be read: {error.what}"]


def _indent(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.splitlines())


def hosts(job: JobArgument = None, as_json: JsonOption = False) -> None:
    """List a job's hosts and their addresses."""
    from ..choose import choose
    from ..look import require_allocation, require_hosts

    found = require_allocation(choose(job))
    backend, handle, seen = require_hosts(found)
    states = {host.host: host for host in seen.hosts}
    listed = backend.hosts(handle)
    if as_json:
        data = [
            {"host": host.label, "state": _state(states.get(host.label)), **host.to_json()}
            for host in listed
        ]
        print_json({"job": found.name, "hosts": data})
        return
    if not listed:
        say(f"job {found.name!r} has no hosts of its own on {found.backend}")
        return
    rows = [
        (host.label, _state(states.get(host.label)), host.name, host.address or "-")
        for host in listed
    ]
    typer.echo(render_table(rows, ("HOST", "STATE", "NAME", "ADDRESS"), paint=1))


def _state(host: HostStatus | None) -> str:
    return host.state.value if host else "unknown"
