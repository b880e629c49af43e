"""Waiting until every host of a job is ready, without the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import AllocationEndedError, DeadlineError, HostFailedError
from ..status import Liveness, Status

if TYPE_CHECKING:
    from ..job.base import JobTrait

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 2.0


def wait_ready(
    job: JobTrait,
    timeout_s: float | None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    """Wait until every host is ready; the first that fails ends the wait. Nothing is cancelled."""
    from ..job.progress import Progress

    name = job.spec.name
    progress = Progress(f"waiting for the hosts of job {name!r}", clock=clock)
    pause_s = FIRST_PAUSE_S
    while not (status := job.status()).ready:
        _raise_over(status, name)
        progress.see(status.describe())
        if timeout_s is not None and progress.waited_s >= timeout_s:
            raise DeadlineError(
                f"the hosts of job {name!r} were not ready after {timeout_s:g} s",
                seen=status.describe(),
                hint="nothing was cancelled: apply again to go on waiting, or `milkweed kill`",
            )
        sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
    return status


def _raise_over(status: Status, name: str) -> None:
    if status.liveness is Liveness.ENDED:
        raise AllocationEndedError(
            f"the allocation of job {name!r} has ended",
            seen=status.reason,
            hint="`milkweed status --why` tells what happened",
        )
    if not status.failed_hosts:
        return
    first, *others = status.failed_hosts
    reason, _, tail = first.reason.partition("\n")
    more = f" ({len(others)} more failed)" if others else ""
    raise HostFailedError(
        f"host {first.host} did not start: {reason or 'no reason was given'}{more}",
        seen=tail,
        hint="`milkweed status --why` tells more; `milkweed kill` ends the others",
    )
