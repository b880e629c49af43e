"""Writing a graph as the compspec language 0.0.1: a chain of steps around one task."""

from __future__ import annotations

from dataclasses import replace

from ...options import Data
from ..graph import (
    WORKING,
    Auth,
    Batch,
    Custom,
    Graph,
    Group,
    Need,
    RunFile,
    Stage,
    Step,
    Submit,
    Word,
    Work,
    Write,
)
from ..scripts import script_argv
from .flux_parts import label_of, make_count, make_resources, make_system

_KNOWN = frozenset(
    {
        "preemptible-after",
        "dependencies",
        "constraints",
        "shell.options",
        "units",
        "user",
        "parameter",
        "requires",
    }
)


def make_document(graph: Graph, lacking: list[str]) -> dict[str, Data]:
    """The task with its scripts and steps."""
    _check_chain(graph, lacking)
    scripts = _collect_scripts(graph, lacking)
    work, command = _collect_work(graph, scripts, lacking)
    steps: list[Data] = [_make_step(step, scripts, command, lacking) for step in graph.steps]
    task: dict[str, Data] = {}
    if command:
        task["command"] = list(command)
    task |= {"slot": label_of(work), "count": make_count(work.shape)}
    if "requires" in work.attributes:
        task["resources"] = _make_requires(work.attributes["requires"], lacking)
    if scripts:
        task["scripts"] = [
            {"name": name, "content": text} for name, text in _texts(scripts, lacking)
        ]
    task["transform"] = steps
    document: dict[str, Data] = {
        "version": 1,
        "resources": make_resources(work),
        "task": task,
    }
    return document | _make_attributes(work, graph.name)


def _check_chain(graph: Graph, lacking: list[str]) -> None:
    before: Step | None = None
    for step in graph.steps:
        wanted: tuple[Need, ...] = ()
        if before is not None:
            free = isinstance(before, WORKING) and not before.wait
            wanted = (Need(before.id, "submitted" if free else "afterok"),)
        if step.needs != wanted:
            names = ", ".join(f"{need.kind}:{need.id}" for need in step.needs) or "nothing"
            lacking.append(
                f"that {step.id!r} needs {names}: each step comes after the one before it"
            )
        before = step


def _collect_scripts(graph: Graph, lacking: list[str]) -> dict[str, bytes]:
    scripts: dict[str, bytes] = {}
    for step in graph.steps:
        if not isinstance(step, Write):
            continue
        if scripts.setdefault(step.filename, step.content) != step.content:
            lacking.append(f"two contents of the file {step.filename!r}")
    return scripts


def _texts(scripts: dict[str, bytes], lacking: list[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, content in scripts.items():
        try:
            found.append((name, content.decode()))
        except UnicodeDecodeError:
            lacking.append(f"the file {name!r}, which is not text")
    return found


def _collect_work(
    graph: Graph, scripts: dict[str, bytes], lacking: list[str]
) -> tuple[Work, list[str]]:
    """What all jobs share, and the one command that is no script of its own."""
    works = [step for step in graph.steps if isinstance(step, WORKING)]
    first = works[0].work if works else Work(argv=())
    commands: list[tuple[Word, ...]] = []
    for step in works:
        if replace(step.work, argv=()) != replace(first, argv=()):
            lacking.append(f"that {step.id!r} has resources or attributes of its own")
        if not _is_script(step.work.argv, scripts) and step.work.argv not in commands:
            commands.append(step.work.argv)
    lacking += [f"the attribute {key!r}" for key in sorted(set(first.attributes) - _KNOWN)]
    if len(commands) > 1:
        lacking.append("more than one command: one task has one")
    words = commands[0] if commands else ()
    return first, [word.name if isinstance(word, RunFile) else word for word in words]


def _is_script(argv: tuple[Word, ...], scripts: dict[str, bytes]) -> bool:
    last = argv[-1] if argv else ""
    return isinstance(last, RunFile) and argv == script_argv(last.name, scripts.get(last.name, b""))


def _make_step(
    step: Step, scripts: dict[str, bytes], command: list[str], lacking: list[str]
) -> Data:
    if isinstance(step, Write):
        more: dict[str, Data] = {"executable": True} if step.executable else {}
        return {"step": "write", "filename": step.filename, **more}
    if isinstance(step, Stage):
        if step.path:
            lacking.append(f"that {step.id!r} stages {step.path!r}, which is no script")
        return {"step": "stage", "filename": step.filename}
    if isinstance(step, Submit):
        return {"step": "submit", **_make_submit(step, scripts, command, lacking)}
    if isinstance(step, Batch):
        if step.work.argv != script_argv(step.filename, scripts.get(step.filename, b"")):
            lacking.append(f"the command of the batch step {step.id!r}")
        return {"step": "batch", "filename": step.filename, **_make_waiting(step)}
    if isinstance(step, Auth):
        return {"step": "auth", **make_auth(step)}
    if isinstance(step, Custom):
        return {"step": step.step, **step.options}
    if isinstance(step, Group):
        lacking.append(f"the group {step.id!r}")
    return {}


def _make_submit(
    step: Submit, scripts: dict[str, bytes], command: list[str], lacking: list[str]
) -> dict[str, Data]:
    if step.local:
        lacking.append(f"{step.id!r}, which runs without a job of its own")
    if step.replicas != 1:
        lacking.append(f"the {step.replicas} replicas of {step.id!r}")
    argv = step.work.argv
    last = argv[-1] if argv else ""
    named: dict[str, Data] = {}
    if _is_script(argv, scripts) and isinstance(last, RunFile):
        named = {"filename": last.name}
        if last.name in command:
            lacking.append(f"that {step.id!r} runs {last.name!r} without the task's command")
    return named | _make_waiting(step)


def _make_waiting(step: Submit | Batch) -> dict[str, Data]:
    if step.watch:
        return {"wait": True, "watch": True}
    return {"wait": True} if step.wait else {}


def make_auth(step: Auth) -> dict[str, Data]:
    """Whence a secret comes and where it goes, as it is written."""
    found: dict[str, Data] = {"secret": step.secret}
    for way in ("variable", "file", "export"):
        if value := getattr(step, way):
            found[way] = value
    if step.command:
        found["command"] = list(step.command)
    return found


def _make_requires(requires: Data, lacking: list[str]) -> Data:
    found: dict[str, Data] = {}
    for item in requires if isinstance(requires, list) else []:
        if not isinstance(item, dict) or set(item) != {"name", "field", "value"}:
            lacking.append("a requirement with other keys than name, field and value")
            continue
        inner = found.setdefault(str(item["name"]), {})
        if isinstance(inner, dict):
            inner[str(item["field"])] = item["value"]
    return found


def _make_attributes(work: Work, name: str) -> dict[str, Data]:
    system = make_system(work, name)
    if work.duration_s is None:
        del system["duration"]
    found: dict[str, Data] = {"system": system} if system else {}
    for key in ("parameter", "user"):
        if key in work.attributes:
            found[key] = work.attributes[key]
    return {"attributes": found} if found else {}
