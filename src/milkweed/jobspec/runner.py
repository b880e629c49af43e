"""A process of its own for a run that nobody waits for: `python -m milkweed.jobspec.runner FOLDER`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BackendError
from ..logs import read_tail
from .plan import Plan
from .progress import Progress, State
from .runs import Run, load_run
from .tail import Show, Tail

if TYPE_CHECKING:
    from .transformer import TransformerBase


_ROOT = Path(__file__).parents[2]


def start_runner(run: Run) -> None:
    """Start it in a session of its own, and wait until it holds the run."""
    read, write = os.pipe()
    with (run.logs / ".runner.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  this very program
            [sys.executable, "-m", __name__, str(run.folder), str(write)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        if answer.read(1) == b"1":
            process.returncode = 0  # it goes on by itself; nobody waits for it here
            return
    raise BackendError(
        f"the process that should carry on run {run.id} did not start",
        seen=read_tail(run.logs / ".runner.log"),
        hint="run it with --wait, which needs no such process",
    )


def ensure_driven(
    transformer: TransformerBase, run: Run, start: Callable[[Run], None] = start_runner
) -> None:
    """See to it that somebody carries a run on, if it needs that."""
    if not transformer.needs_driver(run):
        return
    try:
        start(run)
    except BackendError:
        if not run.is_driven():  # else somebody was quicker
            raise


def _python_path() -> str:
    """The same milkweed, and whatever else this process can import."""
    return os.pathsep.join(dict.fromkeys([str(_ROOT), *(path for path in sys.path if path)]))


def follow(
    run: Run,
    show: Show | None,
    *,
    until_over: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Progress:
    """Look on until what says `wait` is over, and the rest is begun or waits for work that nobody waits for.

    `until_over`: until everything is over.
    """
    tail = Tail(show)
    everything = {action.id for action in run.plan.actions}
    waits = everything if until_over else {each.id for each in run.plan.actions if each.wait}
    soon = everything if until_over else find_soon(run.plan)
    progress, offset = Progress.of(run.plan), 0
    while True:
        driven = run.is_driven()
        lines, offset = run.journal.read(offset)
        for line in lines:
            progress.add(line)
            _follow_logs(line, waits, tail)
        tail.pump()
        states = {step_id: entry.status.state for step_id, entry in progress.entries.items()}
        left = [each for each in soon if states[each] is State.WAITING]
        if not driven or not (left or any(not states[each].over for each in waits & soon)):
            tail.pump(last=True)
            return progress
        sleep(0.02)


def find_soon(plan: Plan) -> set[str]:
    """The steps that come without waiting for work that nobody waits for."""
    quick = {action.id: action.wait or "argv" not in action.details for action in plan.actions}
    soon: set[str] = set()
    for action in plan.actions:
        if all(
            need.id in soon and (need.kind == "submitted" or quick[need.id])
            for need in action.needs
        ):
            soon.add(action.id)
    return soon


def _follow_logs(line: dict[str, Any], watched: set[str], tail: Tail) -> None:
    if line.get("id") in watched and line["event"] == "submitted":
        for label, path in line["handle"].get("logs", {}).items():
            tail.add(path, label)


def main(argv: list[str]) -> int:
    """Carry a run on to its end; its exit code is that of the run."""
    from .discovery import load_transformer
    from .driver import drive_here

    folder, ready = Path(argv[0]), int(argv[1])
    run = load_run(folder)
    transformer = load_transformer(run.plan.transformer, **run.plan.settings)
    drive_here(transformer, run, until_over=True, held=lambda: _say_ready(ready))
    return run.progress().exit_code()


def _say_ready(fd: int) -> None:
    os.write(fd, b"1")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
