"""The compspec language 0.0.1: one task with scripts, and the steps that prepare and submit it, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...options import Data
from ..graph import (
    WORKING,
    Auth,
    Batch,
    Custom,
    Graph,
    Need,
    RunFile,
    Stage,
    Step,
    Submit,
    Word,
    Work,
    Write,
)
from ..reading import Spot
from ..scripts import script_argv
from ..source import Source
from .flux_parts import read_count, read_resources, read_system

TOP = ("version", "resources", "task", "attributes")
TASK = ("command", "slot", "count", "scripts", "resources", "transform")
ATTRIBUTES = ("system", "parameter", "user")


@dataclass
class _Task:
    """The task while its steps are read."""

    source: Source
    work: Work
    scripts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    command: tuple[str, ...] = ()
    written: set[str] = field(default_factory=set[str])
    uses_command: bool = False
    ids: dict[str, int] = field(default_factory=dict[str, int])


def parse(source: Source) -> Graph | None:
    """Read the task; each step comes after the one before it."""
    keys = source.top.keys(TOP, ("version", "resources", "task"))
    if "version" in keys:
        keys["version"].check_version()
    work = Work(argv=())
    if "resources" in keys:
        work = read_resources(keys["resources"], loose=True)
    name = ""
    if "attributes" in keys and keys["attributes"].data is not None:
        work, name = _read_attributes(keys["attributes"], work)
    steps = _read_task(keys["task"], work, source) if "task" in keys else ()
    if source.problems or not steps:
        return None
    return Graph(steps=steps, name=name, dialect="compspec-0.0.1", source=source.filename)


def _read_attributes(spot: Spot, work: Work) -> tuple[Work, str]:
    keys = spot.keys(ATTRIBUTES)
    name = ""
    if "system" in keys:
        if "files" in keys["system"].entries():
            keys["system"].inside("files", None).refuse(
                "unknown key", "put files under task.scripts", at_key=True
            )
        work, name = read_system(keys["system"], work)
    for key in ("parameter", "user"):
        if key in keys and keys[key].entries():
            work = replace(work, attributes={**work.attributes, key: keys[key].plain()})
    return work, name


def _read_task(spot: Spot, work: Work, source: Source) -> tuple[Step, ...]:
    keys = spot.keys(TASK)
    if "count" in keys:
        work = replace(work, shape=read_count(keys["count"], work.shape, strict=False))
    if "slot" in keys and (slot := keys["slot"].text()) and slot != work.slot:
        hint = f"the slot's label is {work.slot!r}" if work.slot else "the resources have no slot"
        keys["slot"].refuse(f"no slot is labelled {slot!r}", hint)
    if "resources" in keys and (needed := _read_requires(keys["resources"])):
        work = replace(work, attributes={**work.attributes, "requires": needed})
    task = _Task(source, work)
    if "scripts" in keys:
        task.scripts = _read_scripts(keys["scripts"])
    if "command" in keys:
        task.command = keys["command"].command()
    if "transform" not in keys:
        return _read_bare(spot, keys, task)
    steps = _read_steps(keys["transform"], task)
    _check_used(keys, task)
    return steps


def _read_bare(spot: Spot, keys: Mapping[str, Spot], task: _Task) -> tuple[Step, ...]:
    """A task without steps is its command, submitted."""
    if "command" not in keys:
        spot.refuse("has neither a command nor steps", "add `transform:` with steps, or `command:`")
        return ()
    if task.scripts:
        keys["scripts"].refuse(
            "no step writes these scripts", "add `transform:` with steps", at_key=True
        )
    at = task.source.position(keys["command"].path)
    return (Submit(id="submit-1", work=replace(task.work, argv=task.command), at=at),)


def _read_requires(spot: Spot) -> list[Data]:
    """What the place must have, as a list of names and what each must be."""
    found: list[Data] = []
    for name, inner in spot.entries().items():
        for key, value in inner.entries().items():
            found.append({"name": name, "field": key, "value": value.text()})
    return found


def _read_scripts(spot: Spot) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for item in spot.items():
        keys = item.keys(("name", "content"), ("name", "content"))
        name = keys["name"].filename() if "name" in keys else ""
        if name in found:
            keys["name"].refuse(f"a second script named {name!r}")
        if "content" in keys:
            content = keys["content"]
            text = content.data if content.data == "" else content.text()
            found[name] = text.encode() if isinstance(text, str) else b""
    return found


def _check_used(keys: Mapping[str, Spot], task: _Task) -> None:
    """Nothing that is said is left out without a word."""
    if task.command and not task.uses_command:
        hint = "let a submit step be without filename, or name the script in the command"
        keys["command"].refuse("no step runs this command", hint, at_key=True)
    for at, name in enumerate(task.scripts):
        if name not in task.written and "scripts" in keys:
            hint = "add {step: write, filename: " + name + "}"
            spot = keys["scripts"]
            spot.inside(at, None).refuse(f"no step writes the script {name!r}", hint)


def _read_steps(spot: Spot, task: _Task) -> tuple[Step, ...]:
    steps: list[Step] = []
    for item in spot.items(minimum=1):
        data = item.data
        if not isinstance(data, dict) or "step" not in data:
            item.keys(("step", "filename"), ("step",))
            continue
        kind = item.inside("step", data["step"]).name()
        reader = _READERS.get(kind, _read_custom)
        step = reader(item, task)
        needs = (_need(steps[-1]),) if steps else ()
        at = task.source.position(item.path)
        steps.append(replace(step, id=_make_id(step, task), needs=needs, at=at))
    return tuple(steps)


def _need(before: Step) -> Need:
    if isinstance(before, WORKING) and not before.wait:
        return Need(before.id, "submitted")
    return Need(before.id)


def _make_id(step: Step, task: _Task) -> str:
    """What it does and with what; the second of a kind has a number."""
    kind = step.step if isinstance(step, Custom) else step.kind
    name = _subject(step)
    base = f"{kind}-{name}"[:50] if name else kind
    task.ids[base] = task.ids.get(base, 0) + 1
    return base if name and task.ids[base] == 1 else f"{base}-{task.ids[base]}"


def _subject(step: Step) -> str:
    if isinstance(step, Write | Stage | Batch):
        return step.filename
    if isinstance(step, Auth):
        return step.secret
    if isinstance(step, Submit):
        files = [word.name for word in step.work.argv if isinstance(word, RunFile)]
        return files[0] if len(files) == 1 else ""
    return ""


def _read_write(spot: Spot, task: _Task) -> Step:
    keys = spot.keys(("step", "filename", "executable"), ("filename",))
    name = _read_script_name(keys, task)
    task.written.add(name)
    return Write(
        id="",
        filename=name,
        content=task.scripts.get(name, b""),
        executable="executable" in keys and keys["executable"].flag(),
    )


def _read_script_name(keys: Mapping[str, Spot], task: _Task, *, written: bool = False) -> str:
    if "filename" not in keys:
        return ""
    name = keys["filename"].filename()
    if name and name not in task.scripts:
        known = ", ".join(task.scripts) or "none"
        keys["filename"].refuse(f"no script is named {name!r}", f"the scripts are: {known}")
    elif name and written and name not in task.written:
        hint = "put {step: write, filename: " + name + "} before it"
        keys["filename"].refuse(f"no step before this one writes {name!r}", hint)
    return name


def _read_stage(spot: Spot, task: _Task) -> Step:
    keys = spot.keys(("step", "filename"), ("filename",))
    return Stage(id="", filename=_read_script_name(keys, task, written=True))


def _read_submit(spot: Spot, task: _Task) -> Step:
    keys = spot.keys(("step", "filename", "wait", "watch"))
    name = _read_script_name(keys, task, written=True)
    if not name and not task.command and "filename" not in keys:
        spot.refuse("has nothing to submit", "add `filename:`, or `command:` to the task")
    argv: tuple[Word, ...] = script_argv(name, task.scripts.get(name, b""))
    if not name or name in task.command:
        task.uses_command = task.uses_command or bool(task.command)
        files = {name} if name else task.written
        argv = tuple(_word(word, files) for word in task.command) or argv
    return Submit(id="", work=replace(task.work, argv=argv), **_read_waiting(keys))


def _word(word: str, files: set[str]) -> Word:
    plain = word.removeprefix("./")
    return RunFile(plain) if plain in files else word


def _read_waiting(keys: Mapping[str, Spot]) -> dict[str, Any]:
    watch = "watch" in keys and keys["watch"].flag()
    return {"wait": watch or ("wait" in keys and keys["wait"].flag()), "watch": watch}


def _read_batch(spot: Spot, task: _Task) -> Step:
    keys = spot.keys(("step", "filename", "wait", "watch"), ("filename",))
    name = _read_script_name(keys, task, written=True)
    argv = script_argv(name, task.scripts.get(name, b""))
    return Batch(id="", work=replace(task.work, argv=argv), filename=name, **_read_waiting(keys))


def read_auth(spot: Spot, first: str) -> Auth:
    """A secret and whence it comes; `first` is the key that names the step."""
    ways = ("variable", "command", "file")
    keys = spot.keys((first, "secret", *ways, "export"), ("secret",))
    if sum(way in keys for way in ways) != 1:
        hint = "write one of: `variable: NAME`, `command: [program]`, `file: path`"
        spot.refuse("says not exactly once where the secret comes from", hint)
    said: dict[str, Any] = {"file": keys["file"].text()} if "file" in keys else {}
    if "command" in keys:
        said["command"] = keys["command"].command()
    said |= {name: keys[name].variable() for name in ("variable", "export") if name in keys}
    return Auth(id="", secret=keys["secret"].filename() if "secret" in keys else "", **said)


def _read_auth(spot: Spot, _task: _Task) -> Step:
    return read_auth(spot, "step")


def _read_custom(spot: Spot, _task: _Task) -> Step:
    entries = spot.entries()
    options = {key: inner.plain() for key, inner in entries.items() if key != "step"}
    return Custom(id="", step=entries["step"].text(), options=options)


_READERS: Mapping[str, Callable[[Spot, _Task], Step]] = {
    "write": _read_write,
    "stage": _read_stage,
    "submit": _read_submit,
    "batch": _read_batch,
    "auth": _read_auth,
}


def make(graph: Graph, lacking: list[str]) -> dict[str, Data]:
    """Write the steps in their order."""
    from .compspec_0_0_1_render import make_document

    return make_document(graph, lacking)
