"""From what is declared and what is seen to what will be done: a frozen value that is shown, then executed."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .spec import JobSpec
from .status import HostStatus, Liveness, Status

ON_CHANGE = ("ask", "replace", "new")


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
    READY = "ready"  # one has hosts that serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a job's allocation before planning."""

    spec: JobSpec | None = None
    """The declaration it was made from; None when there is no record of one."""
    status: Status | None = None
    """None when nothing was ever asked of a scheduler, or it has no trace of it."""
    apply_id: str | None = None
    renewal: Renewal = Renewal.NONE


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
    keeps_old: bool = False
    """True when the old allocation is left running beside the new one."""
    renewal: Renewal = Renewal.NONE
    """How it stands with a follow-up, whatever is done about it now."""

    def render(self) -> str:
        """The plan as a person reads it."""
        hosts = ", ".join(f"{name}={size}" for name, size in self.spec.sizes.items())
        lines = [f"{self.action.value}: job {self.spec.name!r} on {self.spec.backend} ({hosts})"]
        lines += [f"  because {reason}" for reason in self.reasons]
        lines += [f"  {change}" for change in self.changes]
        if not self.approved:
            lines.append("  needs your word: on_change replace, or new")
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
    live = observed.status.liveness
    at = observed.apply_id
    if follow := _follow(spec, observed):
        return follow
    if live is Liveness.ENDED:
        why = observed.status.reason or "no reason was given"
        return _plan(Action.CREATE, f"the recorded allocation has ended: {why}", spec)
    if live is Liveness.UNKNOWN:
        why = observed.status.reason or "the scheduler did not answer"
        reason = f"nothing is known about the recorded allocation: {why}"
        return Plan(action=Action.NOTHING, reasons=(reason,), spec=spec, apply_id=at, blocked=True)
    changes = diff_specs(observed.spec, spec)
    if changes:
        resize = _resize(spec, observed, changes) if can_resize else None
        return resize or _changed(spec, changes, at, _describe_change(spec, observed), word)
    if lost := observed.status.lost_hosts:
        return _changed(spec, changes, at, f"hosts were lost: {_describe(lost)}", word)
    action = Action.NOTHING if held else Action.REUSE
    return _plan(action, f"the allocation is {live.value} and nothing changed", spec, at)


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


def _follow(spec: JobSpec, observed: Observed) -> Plan | None:
    """What is to be done about a follow-up allocation, if anything."""
    status, renewal, at = observed.status, observed.renewal, observed.apply_id
    if status is None or observed.spec is None or diff_specs(observed.spec, spec):
        return None
    asked = renewal in {Renewal.WAITING, Renewal.READY}
    if asked and status.liveness is Liveness.ENDED:
        return _plan(Action.MOVE, f"its follow-up is {renewal.value}: {status.reason}", spec, at)
    if renewal is Renewal.READY:
        return _plan(Action.MOVE, "the hosts of its follow-up are ready", spec, at)
    if renewal is Renewal.DUE and status.liveness is Liveness.RUNNING:
        left = status.details.get("time_left_s", "few")
        return _plan(Action.RENEW, f"its time limit is reached in {left} s", spec, at)
    return None


def _changed(
    spec: JobSpec, changes: tuple[Change, ...], apply_id: str | None, reason: str, word: str
) -> Plan:
    return Plan(
        action=Action.CREATE if word == "new" else Action.REPLACE,
        reasons=(f"{reason}; the old allocation is kept" if word == "new" else reason,),
        spec=spec,
        changes=changes,
        apply_id=apply_id,
        approved=word != "ask",
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
    words = ((host.host, host.reason.partition("\n")[0]) for host in lost)
    return ", ".join(f"{host} ({reason})" if reason else host for host, reason in words)


def _plan(action: Action, reason: str, spec: JobSpec, apply_id: str | None = None) -> Plan:
    return Plan(action=action, reasons=(reason,), spec=spec, apply_id=apply_id)


def _only_sizes(changes: tuple[Change, ...], before: JobSpec, after: JobSpec) -> bool:
    sizes = {f"meshes.{name}.hosts" for name in before.sizes.keys() & after.sizes.keys()}
    return sizes.issuperset(change.field for change in changes)
