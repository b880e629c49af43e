"""`plan` and `apply`: showing what would be done, and doing what was shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import ChangedError, NotAppliedError
from ..arguments import JobArgument, JsonOption, OnChangeOption
from ..render import print_json

if TYPE_CHECKING:
    from ...job.base import JobTrait
    from ...plan import Action, Plan
    from ..choose import Chosen

_HINT = "--on-change replace ends it and makes another; --on-change new keeps both"
_LOST_HINT = "--on-change repair asks for others in place of what was lost; "


def plan(
    job: JobArgument = None, on_change: OnChangeOption = None, as_json: JsonOption = False
) -> None:
    """Show what `apply` would do, and why."""
    from ..choose import choose

    chosen = choose(job)
    made = open_job(chosen, on_change).plan(chosen.file.path)
    if as_json:
        print_json(made.to_json())
    else:
        typer.echo(made.render())


def apply(
    job: JobArgument = None,
    on_change: OnChangeOption = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long to wait for hosts, such as 90s or 2h; then nothing is cancelled.",
            show_default=False,
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until the hosts are ready.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask for the declared hosts and wait for them. When they are there, nothing is done."""
    from ...units import parse_duration
    from ..choose import choose

    timeout_s = None if timeout is None else parse_duration(timeout, field="--timeout")
    chosen = choose(job)
    opened = open_job(chosen, on_change)
    made = approve(opened, chosen, quiet=as_json)
    if not as_json:
        typer.echo(made.render())
    carry_out(opened, chosen, made)
    status = opened.status() if no_wait else opened.wait(timeout_s, until="running")
    if as_json:
        hosts = [{"host": host.host, "state": host.state.value} for host in status.hosts]
        seen = {"status": status.liveness.value, "reason": status.reason, "hosts": hosts}
        print_json({"plan": made.to_json(), "apply_id": opened.apply_id, **seen})
    else:
        typer.echo(f"job {chosen.name!r} is {status.describe()}")


def open_job(chosen: Chosen, on_change: str | None) -> JobTrait:
    """The job object of a job file or of a record."""
    from ...job.load import SpecJob, job_load

    if chosen.jobfile is not None:
        word = on_change or chosen.jobfile.on_change
        return SpecJob(chosen.jobfile.spec, on_change=word)
    if chosen.file.load() is None:
        raise NotAppliedError(
            f"the record of job {chosen.name!r} is gone, and with it what was declared",
            seen=f"no record at {chosen.file.path}",
            hint="name its job file; `milkweed kill` ends what still runs",
        )
    opened = job_load(chosen.file.path)
    if on_change is not None:
        opened.on_change = on_change
    return opened


def approve(opened: JobTrait, chosen: Chosen, *, quiet: bool) -> Plan:
    """The plan that will be carried out; where it needs a person's word, ask for it."""
    made = opened.plan(chosen.file.path)
    if made.approved:
        return made
    if not quiet:
        typer.echo(made.render(), err=True)
    if quiet or not _can_ask():
        raise ChangedError(
            f"job {chosen.name!r} has an allocation that differs from what is declared now",
            seen=made.render() if quiet else "",
            hint=(_LOST_HINT if made.repairable else "") + _HINT,
        )
    first = "repair it, " if made.repairable else ""
    question = f"{first}replace it, make a new one beside it, or stop?"
    answer = typer.prompt(question, default="stop", err=True)
    if answer not in {*made.words}:
        raise ChangedError("nothing was done", hint=f"answer {' or '.join(made.words)} to go on")
    opened.on_change = answer
    return opened.plan(chosen.file.path)


def _can_ask() -> bool:
    import sys

    return sys.stdin.isatty()


def carry_out(
    opened: JobTrait, chosen: Chosen, made: Plan, client_script: tuple[str, ...] = ()
) -> Action:
    """Do what was shown; when the world changed meanwhile, nothing is done."""
    return opened._apply(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] the step below state(), which connects
        chosen.file, keep=True, client_script=client_script, shown=made
    )
