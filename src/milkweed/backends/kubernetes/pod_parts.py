"""The parts of a pod and of an event, as the API gives them; what is missing or null is empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

Object = Mapping[str, Any]
"""A JSON object of the API."""


def part(holder: Object, *names: str) -> Object:
    """An object inside of an object."""
    for name in names:
        found: Object | None = holder.get(name)
        holder = {} if found is None else found
    return holder


def parts(holder: Object, name: str) -> Sequence[Object]:
    """A list of objects inside of an object."""
    found: Sequence[Object] | None = holder.get(name)
    return () if found is None else found


def text(holder: Object, name: str) -> str:
    """A text inside of an object."""
    found: str | None = holder.get(name)
    return "" if found is None else found


def condition(status: Object, kind: str) -> Object:
    """What a status says of one kind of thing: Ready, PodScheduled, DisruptionTarget."""
    for each in parts(status, "conditions"):
        if text(each, "type") == kind:
            return each
    return {}


def owner(pod: Object) -> str:
    """What makes a pod anew when it is gone: `StatefulSet/trainers`; empty when nothing does."""
    for each in parts(pod["metadata"], "ownerReferences"):
        if each.get("controller"):
            return f"{each['kind']}/{each['name']}"
    return ""


def own_status(pod: Object, container: str) -> Object:
    """The status of the container of that name; else of the one that stands first in the spec."""
    names = [text(each, "name") for each in parts(part(pod, "spec"), "containers")] or [""]
    name = container if container in names else names[0]
    found = {each["name"]: each for each in parts(part(pod, "status"), "containerStatuses")}
    return found.get(name, {"name": name})


def parse_time(when: str) -> float | None:
    """Seconds since 1970 of what the API writes; None for nothing."""
    return datetime.fromisoformat(when).timestamp() if when else None


# Events


def events_of(pod: Object, events: Iterable[Object]) -> list[Object]:
    """The events that are about a pod, the earliest first."""
    return sorted((each for each in events if _concerns(each, pod["metadata"])), key=_when)


def _concerns(event: Object, meta: Object) -> bool:
    about = part(event, "involvedObject") or part(event, "regarding")
    uids = text(about, "uid"), text(meta, "uid")
    if all(uids):
        return uids[0] == uids[1]
    return text(about, "name") == meta["name"] and about.get("kind", "Pod") == "Pod"


def _when(event: Object) -> str:
    return (
        text(part(event, "series"), "lastObservedTime")
        or text(event, "lastTimestamp")
        or text(event, "eventTime")
    )


def told(events: Iterable[Object], reason: str, *, holding: str = "") -> str:
    """What the last event of a kind says, of those that have a word in them."""
    said = [
        text(each, "message") or text(each, "note")
        for each in events
        if text(each, "reason") == reason
    ]
    return next((each for each in reversed(said) if holding in each), "")
