"""Looking twice before something is ended that somebody waited for in a queue."""

from __future__ import annotations

from ..backends.base import Backend, LooksAgain
from ..errors import UnreachableError
from ..plan import Plan
from ..state import Record
from ..status import Liveness


def look_again(plan: Plan, backend: Backend, record: Record) -> None:
    """What took a queue to get ends for what nobody declared only when two looks agree on it.

    The second follows at once, so it must not go by what the first was told.
    """
    if plan.changes or record.handle is None or not backend.capabilities.queued:
        return
    look = backend.look_again if isinstance(backend, LooksAgain) else backend.poll
    status = look(record.handle)
    if not status.lost_hosts and status.liveness is not Liveness.ENDED:
        raise UnreachableError(
            f"two looks at the allocation of job {record.spec.name!r} differ",
            seen=f"{'; '.join(plan.reasons)}; and a moment later: {status.describe()}",
            hint="nothing was changed; ask again",
        )
