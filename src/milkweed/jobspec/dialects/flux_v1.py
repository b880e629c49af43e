"""Flux's canonical jobspec, version 1 (RFC 25): one command, its resources, its attributes."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import replace

from ...options import Data, describe
from ..graph import Graph, Need, RunFile, Step, Submit, Word, Work, Write
from ..reading import Spot
from ..source import Source
from .flux_parts import (
    label_of,
    make_count,
    make_resources,
    make_system,
    read_count,
    read_resources,
    read_system,
)

TOP = ("version", "resources", "tasks", "attributes")
KNOWN = frozenset(
    {
        "preemptible-after",
        "dependencies",
        "constraints",
        "shell.options",
        "templates",
        "units",
        "user",
    }
)
"""The attributes of work that this dialect has."""
_TEMPLATE = "{{"
"""What Flux fills in begins so, and there is no way to write it as it is."""
_TMPDIR = "{{tmpdir}}/"
_ID = "job"
_REGULAR = 0o100000
_KIND = 0o170000


def parse(source: Source) -> Graph | None:
    """Read it more strictly than Flux does: a wrong label or too many tasks are found here."""
    keys = source.top.keys(TOP, TOP)
    if "version" in keys:
        keys["version"].check_version()
    work = read_resources(keys["resources"]) if "resources" in keys else Work(argv=())
    if "tasks" in keys:
        work = _read_task(keys["tasks"], work)
    writes: list[Write] = []
    name = ""
    if "attributes" in keys:
        work, name, writes = _read_attributes(keys["attributes"], work, source)
    if source.problems:
        return None
    names = {step.filename for step in writes}
    work = replace(work, argv=tuple(_read_word(word, names) for word in work.argv))
    if _has_templates(work):
        work = replace(work, attributes={**work.attributes, "templates": True})
    job = Submit(
        id=_ID,
        work=work,
        needs=tuple(Need(step.id) for step in writes),
        at=source.position(("tasks", 0)),
    )
    return Graph(steps=(*writes, job), name=name, dialect="flux-v1", source=source.filename)


def _read_word(word: Word, names: set[str]) -> Word:
    if isinstance(word, str) and word.startswith(_TMPDIR) and word.removeprefix(_TMPDIR) in names:
        return RunFile(word.removeprefix(_TMPDIR))
    return word


def _has_templates(work: Work) -> bool:
    return any(isinstance(word, str) and _TEMPLATE in word for word in work.argv)


def _read_task(spot: Spot, work: Work) -> Work:
    tasks = spot.items(minimum=1)
    if len(tasks) > 1:
        tasks[1].refuse("a second task", "version 1 has exactly one task")
    if not tasks:
        return work
    keys = tasks[0].keys(("command", "slot", "count"), ("command", "slot", "count"))
    shape = work.shape
    if "count" in keys:
        shape = read_count(keys["count"], shape, strict=True)
    if "slot" in keys and (slot := keys["slot"].text()) and work.slot and slot != work.slot:
        keys["slot"].refuse(f"no slot is labelled {slot!r}", f"the slot's label is {work.slot!r}")
    return replace(work, argv=_read_command(keys.get("command")), shape=shape)


def _read_command(spot: Spot | None) -> tuple[str, ...]:
    if spot is None:
        return ()
    if isinstance(spot.data, str):
        spot.refuse(f"{describe(spot.data)} is not a list", "write a list of words")
        return ()
    return spot.command()


def _read_attributes(spot: Spot, work: Work, source: Source) -> tuple[Work, str, list[Write]]:
    keys = spot.keys(("system", "user"), ("system",))
    if "user" in keys and keys["user"].entries():
        work = replace(work, attributes={**work.attributes, "user": keys["user"].plain()})
    if "system" not in keys:
        return work, "", []
    system = keys["system"]
    if isinstance(system.data, dict) and "duration" not in system.data:
        hint = "say how many seconds it may take; 0 is no limit"
        system.inside("duration", None).refuse("is missing", hint, at_key=True)
    work, name = read_system(system, work)
    return work, name, read_files(system, source)


def read_files(system: Spot, source: Source) -> list[Write]:
    """The files that travel in the jobspec."""
    if not isinstance(system.data, dict) or "files" not in system.data:
        return []
    found: list[Write] = []
    for name, spot in system.inside("files", system.data["files"]).entries().items():
        spot.inside(name, name).filename()
        keys = spot.keys(("mode", "data", "encoding"), ("data",))
        if "data" in keys:
            write = Write(
                id=f"write-{name}",
                filename=name,
                content=_read_content(keys),
                executable=_read_mode(keys.get("mode")),
                at=source.position(spot.path),
            )
            found.append(write)
    return found


def _read_content(keys: Mapping[str, Spot]) -> bytes:
    spot = keys["data"]
    if "encoding" not in keys:
        return (
            spot.data.encode() if isinstance(spot.data, str) else json.dumps(spot.plain()).encode()
        )
    encoding = keys["encoding"].text("utf-8", "base64")
    text = spot.data if spot.data == "" else spot.text()
    if encoding == "base64" and isinstance(text, str):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            spot.refuse("is not base64")
    return text.encode() if isinstance(text, str) else b""


def _read_mode(spot: Spot | None) -> bool:
    if spot is None:
        return False
    mode = spot.count(minimum=0)
    if mode & _KIND not in (0, _REGULAR):
        spot.refuse(f"{mode:o} is not the mode of a plain file", "write 33188, which is 0100644")
    return bool(mode & 0o100)


def make(graph: Graph, lacking: list[str]) -> dict[str, Data]:
    """Write one job with its files; whatever else a graph has is lacking."""
    jobs: list[Submit] = []
    writes: list[Write] = []
    for step in graph.steps:
        if isinstance(step, Submit):
            jobs.append(step)
        elif isinstance(step, Write):
            writes.append(step)
        else:
            lacking.append(f"the step {step.id!r}, which is a {step.kind}")
    if len(jobs) != 1:
        lacking.append(f"{len(jobs)} jobs: it has exactly one")
        return {}
    job = jobs[0]
    _note_lacking(job, writes, lacking)
    return make_document(graph, job, writes)


def _note_lacking(job: Submit, writes: list[Write], lacking: list[str]) -> None:
    shape = job.work.shape
    if job.wait or job.watch:
        lacking.append(f"`wait` and `watch` of {job.id!r}: whoever submits it says so")
    if job.local:
        lacking.append(f"{job.id!r}, which runs without a job of its own")
    if job.replicas != 1:
        lacking.append(f"the {job.replicas} replicas of {job.id!r}")
    if shape.tasks_per_slot != 1:
        lacking.append(f"{shape.tasks_per_slot} tasks in a slot")
    if shape.tasks_total is not None and shape.tasks_total > shape.slots:
        lacking.append(f"{shape.tasks_total} tasks in {shape.slots} slots")
    if _has_templates(job.work) and "templates" not in job.work.attributes:
        lacking.append(f"a word of {job.id!r} with {{{{ in it, which Flux would fill in")
    lacking += [f"the attribute {key!r}" for key in sorted(set(job.work.attributes) - KNOWN)]
    first: list[Step] = [step for step in writes if not step.needs]
    if len(first) != len(writes) and any(
        need.kind != "afterok" for step in writes for need in step.needs
    ):
        lacking.append("files that are written at different times")


def make_document(graph: Graph, job: Submit, writes: list[Write]) -> dict[str, Data]:
    """The jobspec of one job with its files; whether it can say all of that job is looked at elsewhere."""
    system = make_system(job.work, graph.name)
    if writes:
        system["files"] = {step.filename: make_file(step) for step in writes}
    attributes: dict[str, Data] = {"system": system}
    if "user" in job.work.attributes:
        attributes["user"] = job.work.attributes["user"]
    task: dict[str, Data] = {
        "command": [_make_word(word) for word in job.work.argv],
        "slot": label_of(job.work),
        "count": make_count(job.work.shape),
    }
    resources = make_resources(job.work)
    return {"version": 1, "resources": resources, "tasks": [task], "attributes": attributes}


def _make_word(word: Word) -> str:
    return _TMPDIR + word.name if isinstance(word, RunFile) else word


def make_file(step: Write) -> dict[str, Data]:
    """A file as it travels in a jobspec: text as it is, anything else as base64."""
    mode = _REGULAR | (0o700 if step.executable else 0o600)
    try:
        text = step.content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # text that holds one ends there for Flux
        data = base64.b64encode(step.content).decode()
        return {"mode": mode, "data": data, "encoding": "base64"}
    return {"mode": mode, "data": text, "encoding": "utf-8"}
