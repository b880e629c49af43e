"""From what is declared and what is seen to what will be done: a frozen value that is shown, then executed."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .spec import JobSpec
from .status import HostStatus, Liveness, Status

ON_CHANGE = ("ask", "repair", "replace", "new")


class Action(enum.StrEnum):
    """What a plan does."""

    CREATE = "create"  # ask the scheduler for a new allocation
    REUSE = "reuse"  # connect to the allocation that is there
    RESIZE = "resize"  # change the size of meshes, touch nothing else
    RENEW = "renew"  # ask for a follow-up allocation before the time limit of this one is reached
    MOVE = "move"  # go over to the follow-up allocation, and end the old one
    REPLACE = "replace"  # end the allocation that is there, then create
    NOTHING = "nothing"  # leave everything as it is


class Renewal(enum.StrEnum):
    """How an allocation with a time limit stands with the one that is to follow it."""

    NONE = "none"  # there is none, and none is due
    DUE = "due"  # it is time to ask for one
    WAITING = "waiting"  # one was asked for
    READY = "ready"  # one has hosts that serve, and these are the declared ones
    FAILED = "failed"  # one has ended, or is broken, before it was used; another may be due later


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a job's allocation before planning."""

    spec: JobSpec | None = None
    """The declaration it was made from; None when there is no record of one."""
    status: Status | None = None
    """None when nothing was ever asked of a scheduler, or it has no trace of it."""
    apply_id: str | None = None
    renewal: Renewal = Renewal.NONE
    follow: Status | None = None
    """The follow-up, where it was looked at: it has taken the place of this one, or has failed."""
    unfinished: bool = False
    """A change of sizes was begun, and not recorded: hosts may be there that nobody declares, or be given back."""

    @property
    def standing(self) -> Status | None:
        """What there is of the job: its follow-up, where that has taken the place of this one."""
        if self.status is not None and is_followed(self.status, self.renewal):
            return self.follow or _FOLLOWING[self.renewal]
        return self.status


_FOLLOWING = {
    Renewal.WAITING: Status(liveness=Liveness.PENDING),
    Renewal.READY: Status(liveness=Liveness.RUNNING),
}


def is_followed(status: Status, renewal: Renewal) -> bool:
    """Whether a follow-up has taken the place of an allocation: that has ended, or ends while the other serves."""
    if status.liveness is Liveness.ENDED:
        return renewal in _FOLLOWING
    return status.ending and renewal is Renewal.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field in which the declaration and the allocation differ."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.field}: {self.after}"
        if self.after is None:
            return f"- {self.field}: {self.before}"
        return f"~ {self.field}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be done, and why."""

    action: Action
    reasons: tuple[str, ...]
    spec: JobSpec
    changes: tuple[Change, ...] = ()
    apply_id: str | None = None
    """The allocation it is about; None for one that does not exist yet."""
    approved: bool = True
    """False when a person must say `on_change` first."""
    blocked: bool = False
    """True when nothing may be done because nothing is known."""
    repairable: bool = False
    """True when others could take the place of what was lost, and the rest would go on."""
    keeps_old: bool = False
    """True when the old allocation is left running beside the new one."""
    moves: bool = False
    """True when the record goes over to the follow-up first, whatever is done then."""
    renewal: Renewal = Renewal.NONE
    """How it stands with a follow-up, whatever is done about it now."""
    inside: bool = False
    """True when who asks runs for that very allocation, and so must not end it."""

    @property
    def words(self) -> tuple[str, ...]:
        """What a person may say to it."""
        return ("repair", "replace", "new") if self.repairable else ("replace", "new")

    def render(self) -> str:
        """The plan as a person reads it."""
        hosts = ", ".join(f"{name}={size}" for name, size in self.spec.sizes.items())
        lines = [f"{self.action.value}: job {self.spec.name!r} on {self.spec.backend} ({hosts})"]
        lines += [f"  because {reason}" for reason in self.reasons]
        lines += [f"  {change}" for change in self.changes]
        words = [word for word in self.words if word == "repair" or not self.inside]
        if words and not self.approved:
            said = ", or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
            lines.append(f"  needs your word: on_change {said}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "action": self.action.value,
            "reasons": list(self.reasons),
            "changes": [
                {"field": c.field, "before": c.before, "after": c.after} for c in self.changes
            ],
            "apply_id": self.apply_id,
            "approved": self.approved,
            "blocked": self.blocked,
            "job": self.spec.name,
            "backend": self.spec.backend,
            "meshes": self.spec.sizes,
        }


def diff_specs(before: JobSpec, after: JobSpec) -> tuple[Change, ...]:
    """The fields that define an allocation and differ, in a stable order."""
    old, new = _leaves(before.identity()), _leaves(after.identity())
    return tuple(
        Change(field=key, before=_hide(key, old.get(key)), after=_hide(key, new.get(key)))
        for key in sorted({*old, *new})
        if json.dumps(old.get(key), sort_keys=True) != json.dumps(new.get(key), sort_keys=True)
    )


def _leaves(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings within settings by their own names, so that a small change is shown as one."""
    found: dict[str, Any] = {}
    for key, value in fields.items():
        items = dict(enumerate(value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] JSON
        if isinstance(items, Mapping) and items and _is_nested(value):
            inner = cast("Mapping[Any, Any]", items)
            found |= _leaves({f"{key}.{name}": each for name, each in inner.items()})
        else:
            found[key] = value
    return found


def _is_nested(value: Any) -> bool:
    """Whether it has parts with names; a list of words is one thing."""
    if isinstance(value, Mapping):
        return True
    return any(isinstance(each, Mapping) for each in cast("list[Any]", value))


def _hide(key: str, value: Any) -> Any:
    """Values of variables may be secrets: a plan shows that they differ, not what they are."""
    return value if ".env." not in key or value is None else "(value hidden)"


def make_plan(
    spec: JobSpec,
    observed: Observed,
    *,
    can_resize: bool = False,
    can_repair: bool = False,
    queued: bool = True,
    on_change: str | None = None,
    held: bool = False,
) -> Plan:
    """Decide what to do; pure, so that what is shown is what is done.

    `queued` says that allocations took a queue to get, so replacing one needs a person's word.
    `held` says that this client is connected to the allocation already.
    """
    word = on_change or ("ask" if queued else "replace")
    if observed.spec is None:
        return _plan(Action.CREATE, "there is no allocation", spec)
    if observed.status is None:
        return _plan(Action.CREATE, "the recorded allocation was never started", spec)

    def decide(seen: Observed) -> Plan:
        return _decide(
            spec, seen, can_resize=can_resize, can_repair=can_repair, word=word, held=held
        )

    if is_followed(observed.status, observed.renewal):
        return _follow(observed, decide)
    plan = decide(observed)
    if observed.renewal is Renewal.FAILED and observed.follow and plan.apply_id:
        reason = f"its follow-up has failed: {_first_line(observed.follow.reason)}"
        return replace(plan, reasons=(*plan.reasons, reason))
    return plan


def _follow(observed: Observed, decide: Callable[[Observed], Plan]) -> Plan:
    """Where a follow-up has taken the place of what was before, it is what the declaration is compared with."""
    before = observed.status.reason if observed.status else ""
    plan = decide(replace(observed, status=observed.standing, renewal=Renewal.NONE))
    reason = f"its follow-up is {observed.renewal.value}: {before}"
    if plan.apply_id is None or plan.blocked:
        return plan
    if plan.action in {Action.REUSE, Action.NOTHING}:
        return replace(plan, action=Action.MOVE, reasons=(reason,), moves=True)
    return replace(plan, reasons=(*plan.reasons, reason), moves=True)


def _decide(
    spec: JobSpec, observed: Observed, *, can_resize: bool, can_repair: bool, word: str, held: bool
) -> Plan:
    """What to do about the one allocation that there is; docs/design.md has it as a table."""
    status, at = observed.status, observed.apply_id
    if observed.spec is None or status is None or status.liveness is Liveness.ENDED:
        why = (status and status.reason) or "no reason was given"
        return _plan(Action.CREATE, f"the recorded allocation has ended: {why}", spec)
    if status.liveness is Liveness.UNKNOWN:
        why = status.reason or "the scheduler did not answer"
        reason = f"nothing is known about the recorded allocation: {why}"
        return Plan(action=Action.NOTHING, reasons=(reason,), spec=spec, apply_id=at, blocked=True)
    changes = diff_specs(observed.spec, spec)
    if changes:
        resize = _resize(spec, observed, changes) if can_resize else None
        return resize or _changed(spec, changes, at, _describe_change(spec, observed), word)
    if observed.renewal is Renewal.READY:
        reason = "the hosts of its follow-up are ready"
        return replace(_plan(Action.MOVE, reason, spec, at), moves=True)
    if observed.renewal is Renewal.DUE and status.liveness is Liveness.RUNNING:
        left = status.details.get("time_left_s", "few")
        return _plan(Action.RENEW, f"its time limit is reached in {left} s", spec, at)
    if can_resize and observed.unfinished:
        return _plan(Action.RESIZE, "a change of sizes was not finished", spec, at)
    if lost := _lost(observed):
        reason = f"hosts were lost: {_describe(lost)}"
        if can_repair and word == "repair":
            return _plan(Action.RESIZE, f"{reason}; others take their place", spec, at)
        if observed.renewal is Renewal.WAITING:
            reason = f"its follow-up is waiting, and {reason}"
            return replace(_plan(Action.MOVE, reason, spec, at), moves=True)
        return replace(_changed(spec, changes, at, reason, word), repairable=can_repair)
    action = Action.NOTHING if held else Action.REUSE
    return _plan(action, f"the allocation is {status.liveness.value} and nothing changed", spec, at)


def _lost(observed: Observed) -> list[HostStatus]:
    """The declared hosts that will not come back."""
    labels = observed.spec.labels if observed.spec else ()
    lost = observed.status.lost_hosts if observed.status else ()
    return [host for host in lost if host.host in labels]


def _resize(spec: JobSpec, observed: Observed, changes: tuple[Change, ...]) -> Plan | None:
    """The plan for other sizes; None when more than sizes changed, or when what would be left is lost."""
    at = observed.apply_id
    if observed.spec is None or not _only_sizes(changes, observed.spec, spec):
        return None
    if risky := _stuck(spec, observed, unheard=True):
        reason = f"a smaller mesh would keep hosts of which nothing is known: {_describe(risky)}"
        return Plan(action=Action.NOTHING, reasons=(reason,), spec=spec, apply_id=at, blocked=True)
    if _stuck(spec, observed):
        return None
    reason = "only the sizes of meshes changed"
    return Plan(action=Action.RESIZE, reasons=(reason,), spec=spec, changes=changes, apply_id=at)


def _describe_change(spec: JobSpec, observed: Observed) -> str:
    live = observed.status.liveness.value if observed.status else ""
    reason = f"the declaration differs from the {live} allocation"
    if stuck := _stuck(spec, observed):
        reason += f", and a smaller one would keep hosts that were lost: {_describe(stuck)}"
    return reason


def _changed(
    spec: JobSpec, changes: tuple[Change, ...], apply_id: str | None, reason: str, word: str
) -> Plan:
    return Plan(
        action=Action.CREATE if word == "new" else Action.REPLACE,
        reasons=(f"{reason}; the old allocation is kept" if word == "new" else reason,),
        spec=spec,
        changes=changes,
        apply_id=apply_id,
        approved=word in {"replace", "new"},
        keeps_old=word == "new",
    )


def _stuck(after: JobSpec, observed: Observed, *, unheard: bool = False) -> list[HostStatus]:
    """Lost hosts, or those only not heard, that would be part of what is left of a mesh that gets smaller.

    Others do not stand in the way: a mesh may grow beside them, and those at its end go first.
    """
    before = observed.spec.sizes if observed.spec else {}
    found: list[HostStatus] = []
    for host in observed.status.failed_hosts if observed.status else ():
        mesh, _, rank = host.host.rpartition("/")
        smaller = int(rank) < after.sizes.get(mesh, 0) < before.get(mesh, 0)
        if smaller and host.unheard is unheard:
            found.append(host)
    return found


def _describe(lost: Sequence[HostStatus]) -> str:
    words = ((host.host, _first_line(host.reason)) for host in lost)
    return ", ".join(f"{host} ({reason})" if reason else host for host, reason in words)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _plan(action: Action, reason: str, spec: JobSpec, apply_id: str | None = None) -> Plan:
    return Plan(action=action, reasons=(reason,), spec=spec, apply_id=apply_id)


def _only_sizes(changes: tuple[Change, ...], before: JobSpec, after: JobSpec) -> bool:
    sizes = {f"meshes.{name}.hosts" for name in before.sizes.keys() & after.sizes.keys()}
    return sizes.issuperset(change.field for change in changes)
