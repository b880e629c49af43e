"""How long before a time limit something is done about it, as people say it."""

from __future__ import annotations

from ..errors import SpecError
from ..units import parse_duration

BEFORE_LIMIT = "before time limit"
SHORTEST_LEAD_S = 300.0
LONGEST_LEAD_S = 3600.0


def check_renew(renew: str | None) -> None:
    """Refuse what says no time."""
    if renew and renew != BEFORE_LIMIT:
        try:
            parse_duration(renew, field="renew")
        except SpecError as error:
            hint = f"write {BEFORE_LIMIT!r}, or how long before it: 30m"
            raise SpecError(error.what, hint=hint) from None


def lead_time_s(renew: str, limit_s: float) -> float:
    """How long before the time limit a renewal is due: a tenth of it, unless it was said."""
    if renew != BEFORE_LIMIT:
        return parse_duration(renew, field="renew")
    return min(max(SHORTEST_LEAD_S, limit_s / 10), LONGEST_LEAD_S, limit_s / 2)
