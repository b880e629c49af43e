"""Looking at runs from elsewhere: what they print while steps begin, and how what nobody drives ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

from ..errors import MilkweedError
from .progress import Progress
from .runs import Run
from .transformer import TransformerBase

_Line = tuple[str, str]
LOOK_S = 0.2


def is_part(step_id: str, wanted: str | None) -> bool:
    """Whether a step is the one that is meant, or inside it."""
    return wanted is None or step_id == wanted or step_id.startswith(f"{wanted}/")


def read_logs(place: TransformerBase, run: Run, wanted: str | None = None) -> Iterator[_Line]:
    """What the work of a run has printed so far."""
    check_step(run, wanted)
    progress = run.progress()
    for step_id, entry in progress.entries.items():
        if entry.handle is not None and is_part(step_id, wanted):
            yield from place.make_step(run, step_id, progress).logs(entry.handle, follow=False)


def check_step(run: Run, wanted: str | None) -> None:
    """Refuse a step that the run does not have."""
    from ..errors import StateError
    from ..spec import suggest

    known = [action.id for action in run.plan.actions]
    if wanted is not None and not any(is_part(each, wanted) for each in known):
        raise StateError(f"run {run.id} has no step {wanted!r}", hint=suggest(wanted, known))


def follow_logs(
    place: TransformerBase,
    run: Run,
    wanted: str | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[_Line]:
    """What the work of a run prints, all steps at once and those that begin later, until the run is over."""
    check_step(run, wanted)
    if place.is_quiet(run):  # nothing will come, so there is an order
        yield from read_logs(place, run, wanted)
        return
    lines: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
    begun: set[str] = set()
    ended = 0
    while True:
        over = place.is_quiet(run)
        progress = run.progress()
        for step_id, entry in progress.entries.items():
            if entry.handle is not None and step_id not in begun and is_part(step_id, wanted):
                begun.add(step_id)
                step = place.make_step(run, step_id, progress)
                _start(step.logs(entry.handle, follow=True), lines)
        while not lines.empty() or (over and ended < len(begun)):
            line = lines.get()
            if line is None:
                ended += 1
            else:
                yield line
        if over:
            return
        sleep(LOOK_S)


def _start(source: Iterator[_Line], lines: queue.SimpleQueue[_Line | None]) -> None:
    def read() -> None:
        try:
            for line in source:
                lines.put(line)
        except MilkweedError as error:
            lines.put(("milkweed", str(error)))
        finally:
            lines.put(None)

    threading.Thread(target=read, daemon=True).start()


def note_ends(run: Run) -> Progress:
    """Write down how steps ended that nobody drives any more, by one look at each."""
    from .discovery import load_transformer

    progress = run.progress()
    if progress.over or run.is_driven():
        return progress
    place = load_transformer(run.plan.transformer, **run.plan.settings)
    seen = place.status(run)
    if not seen.over:
        return progress
    with run.hold():
        for step_id, entry in seen.entries.items():
            status = entry.status
            if not progress.entries[step_id].status.state.over:
                run.journal.write(
                    "state",
                    id=step_id,
                    state=status.state.value,
                    code=status.code,
                    reason=status.reason,
                )
        place.finish(run)
    return run.progress()
