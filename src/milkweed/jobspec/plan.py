"""What will be done, as one frozen value: it is shown, recorded, and carried out as it stands."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import StateCorruptError
from ..options import Data
from .graph import (
    NEED_KINDS,
    WORKING,
    Auth,
    Batch,
    Custom,
    Need,
    NeedKind,
    RunFile,
    Stage,
    Step,
    Submit,
    Word,
    Work,
    Write,
)
from .yaml_text import render_yaml

VERSION = 1
_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step as a transformer will do it: plain data that holds everything, and no secret."""

    id: str
    kind: str
    """The name under which the transformer registered what does it."""
    needs: tuple[Need, ...] = ()
    wait: bool = False
    watch: bool = False
    details: Mapping[str, Data] = field(default_factory=dict[str, Data])

    def to_json(self) -> dict[str, Data]:
        """It as plain data."""
        needs: list[Data] = [{"id": need.id, "kind": need.kind} for need in self.needs]
        said: dict[str, Data] = {"id": self.id, "kind": self.kind, "needs": needs}
        return {**said, "wait": self.wait, "watch": self.watch, "details": dict(self.details)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All actions of a run, each after those that it needs."""

    run_id: str
    transformer: str
    actions: tuple[Action, ...]
    name: str = ""
    source: str = ""
    settings: Mapping[str, Data] = field(default_factory=dict[str, Data])
    """What the transformer was told beside the graph: a namespace, a partition, ...."""

    def mark(self, step_id: str) -> str:
        """What every submitted thing of this run carries, so that it is found again."""
        return make_mark(self.run_id, step_id)

    def to_json(self) -> dict[str, Data]:
        """It as plain data."""
        return {
            "version": VERSION,
            "run_id": self.run_id,
            "transformer": self.transformer,
            "name": self.name,
            "source": self.source,
            "settings": dict(self.settings),
            "actions": [action.to_json() for action in self.actions],
        }

    def render(self) -> str:
        """It as people read it."""
        title = f"# {len(self.actions)} steps on {self.transformer}, run {self.run_id}"
        return "\n".join([title, *(_render_action(action) for action in self.actions)])


def _render_action(action: Action) -> str:
    needs = ", ".join(f"{need.kind}:{need.id}" for need in action.needs)
    head = f"# {action.kind} {action.id}" + (f", {needs}" if needs else "")
    more = [word for word in ("wait", "watch") if getattr(action, word)]
    head += f" ({', '.join(more)})" if more else ""
    body = render_yaml(dict(action.details)) if action.details else ""
    return f"\n{head}\n{body}".rstrip("\n") + "\n"


def make_mark(run_id: str, step_id: str) -> str:
    """The mark of a step of a run."""
    return f"milkweed-jobspec:1:{run_id}:{step_id}"


def check_run_id(run_id: object) -> str:
    """Refuse an id that is not one of ours: it names a folder that is deleted in the end."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise StateCorruptError(
            f"{run_id!r} is not the id of a run",
            hint="`milkweed jobspec status` lists the runs there are",
        )
    return run_id


def parse_plan(data: Any) -> Plan:
    """Read a plan back; ValueError, KeyError or TypeError tell what is wrong with it."""
    if data["version"] != VERSION:
        raise ValueError(f"the plan has version {data['version']!r}, not {VERSION}")
    return Plan(
        run_id=check_run_id(data["run_id"]),
        transformer=str(data["transformer"]),
        name=str(data["name"]),
        source=str(data["source"]),
        settings=dict(data["settings"]),
        actions=tuple(_parse_action(each) for each in data["actions"]),
    )


def _parse_action(data: Any) -> Action:
    return Action(
        id=str(data["id"]),
        kind=str(data["kind"]),
        needs=tuple(Need(str(need["id"]), _parse_kind(need["kind"])) for need in data["needs"]),
        wait=bool(data["wait"]),
        watch=bool(data["watch"]),
        details=dict(data["details"]),
    )


def _parse_kind(kind: Any) -> NeedKind:
    if kind not in NEED_KINDS:
        raise ValueError(f"{kind!r} is no kind of need")
    return kind


def make_details(step: Step) -> dict[str, Data]:
    """A step as plain data: what a transformer that has nothing better shows and carries out."""
    if isinstance(step, Custom):
        return dict(step.options)
    if isinstance(step, Write):
        return {"filename": step.filename, **make_content(step), "executable": step.executable}
    if isinstance(step, Stage):
        return {"filename": step.filename} if step.filename else {"path": step.path}
    if isinstance(step, Auth):
        return make_source(step)
    if isinstance(step, WORKING):
        return {**_make_manner(step), **make_work(step.work)}
    return {}


def _make_manner(step: Submit | Batch) -> dict[str, Data]:
    if isinstance(step, Batch):
        return {"filename": step.filename}
    return {"local": True} if step.local else {}


def make_content(step: Write) -> dict[str, Data]:
    """The content of a file: text where it is text."""
    try:
        return {"content": step.content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(step.content).decode()}


def parse_content(details: Mapping[str, Any]) -> bytes:
    """The content of a file, as `make_content` gave it."""
    if "base64" in details:
        return base64.b64decode(details["base64"], validate=True)
    return str(details["content"]).encode()


def make_source(step: Auth) -> dict[str, Data]:
    """Whence a secret comes; never the secret."""
    found: dict[str, Data] = {"secret": step.secret}
    if step.variable:
        found["variable"] = step.variable
    if step.command:
        found["command"] = list(step.command)
    if step.file:
        found["file"] = step.file
    if step.export:
        found["export"] = step.export
    return found


def make_work(work: Work) -> dict[str, Data]:
    """Work as plain data, without what was not said."""
    shape = work.shape
    found: dict[str, Data] = {"argv": [make_word(word) for word in work.argv]}
    found["tasks"] = shape.tasks
    if shape.nodes is not None:
        found["nodes"] = shape.nodes
    found |= {"slots": shape.slots, "cores_per_slot": shape.cores_per_slot}
    if shape.gpus_per_slot:
        found["gpus_per_slot"] = shape.gpus_per_slot
    if shape.exclusive:
        found["exclusive"] = True
    for name in ("duration_s", "cwd", "output", "error", "queue", "bank", "project"):
        if (value := getattr(work, name)) is not None:
            found[name] = value
    if work.environment:
        found["environment"] = dict(work.environment)
    if work.attributes:
        found["attributes"] = dict(work.attributes)
    return found


def make_word(word: Word) -> Data:
    """A word as plain data; a file of the run is a mapping."""
    return {"file": word.name} if isinstance(word, RunFile) else word
