"""Looking twice before something is ended that somebody waited for in a queue."""

from __future__ import annotations

from ..backends.base import Backend, LooksAgain
from ..backends.standing import poll_standing
from ..errors import UnreachableError
from ..plan import Plan
from ..state import Record
from ..status import Liveness


def look_again(plan: Plan, backend: Backend, record: Record, *, moves: bool = False) -> None:
    """What took a queue to get ends for what nobody declared only when two looks agree on it.

    The second follows at once, so it must not go by what the first was told. A follow-up that has taken the place
    of what has ended would end with it, unless that is left for it: `moves`.
    """
    if plan.changes or record.handle is None or not backend.capabilities.queued:
        return
    look = backend.look_again if isinstance(backend, LooksAgain) else backend.poll
    found = poll_standing(backend, record.handle, look=look)
    gone = found.before.lost_hosts or found.before.liveness is Liveness.ENDED
    if not gone or (found.handle != record.handle and not moves):
        raise UnreachableError(
            f"two looks at the allocation of job {record.spec.name!r} differ",
            seen=f"{'; '.join(plan.reasons)}; and a moment later: {found.status.describe()}",
            hint="nothing was changed; ask again",
        )
