"""Which step comes after which; names that nobody has, and circles, are found here."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import JobspecError
from ..spec import suggest
from .graph import (
    NEED_KINDS,
    WORKING,
    Auth,
    Batch,
    Graph,
    Group,
    Need,
    Position,
    RunFile,
    Stage,
    Step,
    Submit,
    Write,
)

MAX_NAME = 63
MAX_REPLICAS = 10_000
"""Each is a job of its own, and stands in the plan."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something wrong with one step, and with one of its needs if one is named."""

    step: Step
    message: str
    hint: str = ""
    need: str = ""
    is_name: bool = False
    """True when its name is what is wrong."""


def check_steps(steps: Sequence[Step]) -> list[Complaint]:
    """Everything that is wrong with steps, and with those in their groups."""
    found: list[Complaint] = []
    levels: deque[tuple[str | None, Sequence[Step]]] = deque([(None, steps)])
    while levels:
        parent, level = levels.popleft()
        found += _check_level(parent, level)
        levels += [(step.id, step.steps) for step in level if isinstance(step, Group)]
    return found


def _check_level(parent: str | None, level: Sequence[Step]) -> list[Complaint]:
    found: list[Complaint] = []
    seen: dict[str, Step] = {}
    for step in level:
        found += _check_name(step, parent)
        if step.id in seen:
            other = f" in line {seen[step.id].at.line}" if seen[step.id].at else ""  # pyright: ignore[reportOptionalMemberAccess] looked at just before
            message = f"the name {step.name!r} is taken{other}"
            found.append(Complaint(step, message, "give each step a name of its own", is_name=True))
        seen.setdefault(step.id, step)
        if isinstance(step, Submit) and step.replicas < 1:
            found.append(Complaint(step, f"{step.replicas} replicas are less than 1"))
        if isinstance(step, Submit) and step.replicas > MAX_REPLICAS:
            hint = "let each of them do more, or make several files of it"
            message = f"{step.replicas:,} replicas are more than {MAX_REPLICAS:,}"
            found.append(Complaint(step, message, hint))
    unknown = [bad for step in level for bad in _check_needs(step, seen)]
    return found + unknown + ([] if unknown else _circle(level))


def _check_name(step: Step, parent: str | None) -> list[Complaint]:
    if step.parent != parent:
        return [
            Complaint(step, f"the id {step.id!r} is not that of a step of {parent or 'the top'!r}")
        ]
    return [Complaint(step, text, is_name=True) for text in flaws_of_name(step.name)]


def flaws_of_name(name: str) -> list[str]:
    """What is wrong with the name of a step; ids become names of files and jobs."""
    if len(name) > MAX_NAME:
        return [f"the name {name[:20]!r}… has more than {MAX_NAME} characters"]
    if not _NAME.fullmatch(name):
        return [
            f"{name!r} is no name: letters, digits, dots, dashes and underscores, a letter or digit first"
        ]
    return []


def flaws_of_filename(name: str) -> list[str]:
    """What is wrong with the name of a file of the run: it stays inside the run's folder."""
    if len(name) > MAX_NAME:
        return [f"the file name {name[:20]!r}… has more than {MAX_NAME} characters"]
    if not _FILE.fullmatch(name):
        return [f"{name!r} is no plain file name: letters, digits, dots, dashes and underscores"]
    return []


def _check_needs(step: Step, level: Mapping[str, Step]) -> list[Complaint]:
    return [bad for need in step.needs for bad in _check_need(step, need, level)]


def _check_need(step: Step, need: Need, level: Mapping[str, Step]) -> list[Complaint]:
    name = need.id if step.parent is None else need.id.removeprefix(f"{step.parent}/")
    if need.id == step.id:
        return [Complaint(step, f"{step.name!r} depends on itself", need=name)]
    if need.kind not in NEED_KINDS:
        return [Complaint(step, f"{need.kind!r} is not one of: {', '.join(NEED_KINDS)}", need=name)]
    if need.id not in level:
        known = [other.name for other in level.values() if other.id != step.id]
        hint = suggest(name, known) if known else "there is no other step beside it"
        if "/" in name:
            hint = "a step depends on steps and groups beside it, not on what is inside them"
        return [Complaint(step, f"no step beside it is named {name!r}", hint, need=name)]
    return []


def _circle(level: Sequence[Step]) -> list[Complaint]:
    left = {step.id: step for step in level}
    for step in sort_steps(level):
        left.pop(step.id, None)
    if not left:
        return []
    path = _follow_circle(left)
    names = [left[each].name for each in path]
    message = f"these steps wait for each other: {' → '.join([*names, names[0]])}"
    return [Complaint(left[path[0]], message, "take one of the dependencies out", need=names[1])]


def _follow_circle(left: Mapping[str, Step]) -> list[str]:
    """One circle among steps of which each needs another; the first in the file begins."""
    path: list[str] = []
    at = next(iter(left))
    while at not in path:
        path.append(at)
        at = next(need.id for need in left[at].needs if need.id in left)
    circle = path[path.index(at) :]
    first = min(range(len(circle)), key=lambda each: list(left).index(circle[each]))
    return circle[first:] + circle[:first]


def sort_steps(level: Sequence[Step]) -> list[Step]:
    """The steps of one level, each after those it needs, else as they stand; circles are left out."""
    steps = {step.id: step for step in level}
    missing = {step.id: len({need.id for need in step.needs}) for step in level}
    after = dependents(level)
    ready = deque(step.id for step in level if not missing[step.id])
    done: list[Step] = []
    while ready:
        at = ready.popleft()
        done.append(steps[at])
        for other in after.get(at, ()):
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return done


def dependents(level: Iterable[Step]) -> dict[str, list[str]]:
    """For each id, the ids of the steps that need it."""
    found: dict[str, list[str]] = {}
    for step in level:
        for need in dict.fromkeys(need.id for need in step.needs):
            found.setdefault(need, []).append(step.id)
    return found


def prepared_before(graph: Graph) -> dict[str, tuple[Step, ...]]:
    """For each step, the write, stage and auth steps that come before it, its group's included."""
    known: dict[str, dict[str, Step]] = {"": {}}
    found: dict[str, tuple[Step, ...]] = {}
    levels: deque[tuple[str, Sequence[Step]]] = deque([("", graph.steps)])
    while levels:
        parent, level = levels.popleft()
        preparing = {step.id: step for step in level if isinstance(step, Write | Stage | Auth)}
        for step in sort_steps(level):
            before = dict(known[parent])
            for need in step.needs:
                before |= known[need.id]
                if need.id in preparing:
                    before[need.id] = preparing[need.id]
            known[step.id] = before
            found[step.id] = tuple(before.values())
        levels += [(step.id, step.steps) for step in level if isinstance(step, Group)]
    return found


def check_files(graph: Graph) -> list[Complaint]:
    """Files of the run that a step names and no step before it writes."""
    found: list[Complaint] = []
    named = {step.id: names for step in graph.walk() if (names := _named_files(step))}
    before = prepared_before(graph) if named else {}
    writers = {each.filename: each for each in graph.walk() if isinstance(each, Write)}
    for step in graph.walk():
        written = {each.filename for each in before.get(step.id, ()) if isinstance(each, Write)}
        found += [
            _complain_of_file(step, name, writers.get(name))
            for name in named.get(step.id, ())
            if name not in written
        ]
    return found


def _complain_of_file(step: Step, name: str, writer: Step | None) -> Complaint:
    """What a group writes is for the steps inside it, and gone with its allocation."""
    message = f"no step before it writes the file {name!r}"
    hint = "let it need the step that writes the file"
    if writer is not None and writer.parent and writer.parent != step.parent:
        message += f": that of the group {writer.parent!r} stays inside the group"
        hint = "write it before the group, or once more after it"
    return Complaint(step, message, hint)


def _named_files(step: Step) -> list[str]:
    if isinstance(step, Stage):
        return [step.filename] if step.filename else []
    names = (
        [word.name for word in step.work.argv if isinstance(word, RunFile)]
        if isinstance(step, WORKING)
        else []
    )
    return [*names, step.filename] if isinstance(step, Batch) else names


def refuse(source: str, complaints: Sequence[Complaint]) -> None:
    """Raise what is wrong, all of it, each with its place."""
    if complaints:
        lines = [
            f"{_place(source, bad.step.at)}step {bad.step.id!r}: {bad.message}"
            for bad in complaints
        ]
        hints = dict.fromkeys(bad.hint for bad in complaints if bad.hint)
        raise JobspecError("\n".join(lines), hint="\n".join(hints))


def _place(source: str, at: Position | None) -> str:
    place = ":".join(str(part) for part in (source, at) if part)
    return f"{place}: " if place else ""
