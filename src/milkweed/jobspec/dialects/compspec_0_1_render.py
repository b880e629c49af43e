"""Writing a graph as the compspec language 0.1: tasks and groups, and the resources that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...options import Data
from ..graph import Auth, Custom, Graph, Group, RunFile, Shape, Stage, Step, Submit, Work
from .compspec_0_0_1_render import make_auth
from .compspec_resources import make_resource


@dataclass
class _Names:
    """The resources that were given names so far."""

    lacking: list[str]
    known: dict[str, dict[str, Data]] = field(default_factory=dict[str, dict[str, Data]])

    def name(self, work: Work) -> str:
        """The name of the resources of some work; the same ones have one name."""
        made = make_resource(work.shape, work.attributes.get("requires"), self.lacking)
        if work.attributes.get("schedule") is False:
            made["schedule"] = False
        for name, known in self.known.items():
            if known == made:
                return name
        name = f"resources-{len(self.known) + 1}"
        self.known[name] = made
        return name


def make_document(graph: Graph, lacking: list[str]) -> dict[str, Data]:
    """The whole file."""
    names = _Names(lacking)
    level = _make_level(graph.steps, None, names)
    resources: dict[str, Data] = {**names.known}
    found: dict[str, Data] = {"version": 1}
    if graph.name:
        found["name"] = graph.name
    if resources:
        found["resources"] = resources
    return found | level


def _make_level(steps: Sequence[Step], outer: Shape | None, names: _Names) -> dict[str, Data]:
    """The tasks of one level, and the groups that they stand for."""
    tasks: list[Data] = []
    groups: list[Data] = []
    barriers: list[str] = []
    for step in steps:
        lost = [each for each in barriers if each not in {need.id for need in step.needs}]
        if lost:
            names.lacking.append(
                f"that {step.id!r} does not wait for {lost[0]!r}, which runs in place"
            )
        tasks.append(_make_entry(step, outer, names))
        if isinstance(step, Group):
            groups.append(_make_group(step, names))
        if isinstance(step, Submit) and step.local:
            barriers.append(step.id)
    found: dict[str, Data] = {"groups": groups} if groups else {}
    return {**found, "tasks": tasks}


def _make_entry(step: Step, outer: Shape | None, names: _Names) -> Data:
    needs: dict[str, Data] = {}
    if step.needs:
        needs = {"depends_on": [need.id.rpartition("/")[2] for need in step.needs]}
    names.lacking += [
        f"that {step.id!r} needs {need.kind}:{need.id}: it knows afterok only"
        for need in step.needs
        if need.kind != "afterok"
    ]
    if isinstance(step, Group):
        return {"group": step.name, **needs}
    if isinstance(step, Submit):
        return {"name": step.name, **needs, **_make_task(step, outer, names)}
    return {"name": step.name, **needs, "steps": [_make_step(step, names.lacking)]}


def _make_step(step: Step, lacking: list[str]) -> Data:
    if isinstance(step, Stage) and step.path:
        return {"name": "stage", "path": step.path}
    if isinstance(step, Auth):
        return {"name": "auth", **make_auth(step)}
    if isinstance(step, Custom):
        return {"name": step.step, **step.options}
    lacking.append(f"the step {step.id!r}, which is a {step.kind}")
    return {}


def _make_task(step: Submit, outer: Shape | None, names: _Names) -> dict[str, Data]:
    work = step.work
    found: dict[str, Data] = {}
    bare = not set(work.attributes) & {"requires", "schedule"}
    default = Shape() if step.local or outer is None else outer
    if not (bare and work.shape == default and (step.local or outer is not None)):
        found["resources"] = names.name(work)
    if step.local:
        found["local"] = True
    if step.replicas != 1:
        found["replicas"] = step.replicas
    if step.wait != step.watch:
        names.lacking.append(f"`wait` of {step.id!r} without `watch`")
    found["command"] = [_make_word(word, step, names.lacking) for word in work.argv]
    return found | _make_attributes(work, step, names.lacking, watch=step.watch)


def _make_word(word: str | RunFile, step: Step, lacking: list[str]) -> str:
    if isinstance(word, RunFile):
        lacking.append(f"that {step.id!r} uses the file {word.name!r} of the run")
        return word.name
    return word


def _make_group(step: Group, names: _Names) -> Data:
    found: dict[str, Data] = {"name": step.name, "resources": names.name(step.work)}
    found |= _make_attributes(step.work, step, names.lacking, watch=False)
    return found | _make_level(step.steps, step.work.shape, names)


def _make_attributes(work: Work, step: Step, lacking: list[str], *, watch: bool) -> dict[str, Data]:
    known: dict[str, Data] = {}
    if work.duration_s is not None:
        known["duration"] = make_duration(work.duration_s)
    if work.cwd is not None:
        known["cwd"] = work.cwd
    if work.environment:
        known["environment"] = _plain(work.environment)
    if watch:
        known["watch"] = True
    rest = {key for key in ("output", "error", "queue", "bank", "project") if getattr(work, key)}
    rest |= set(work.attributes) - {"requires", "schedule"}
    lacking += [f"{key!r} of {step.id!r}" for key in sorted(rest)]
    return {"attributes": known} if known else {}


def _plain(environment: Mapping[str, str | None]) -> dict[str, Data]:
    return dict(environment)


def make_duration(seconds: float) -> str:
    """Seconds with their unit, so that they are read back as they were."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds:.9f}".rstrip("0") + "s"
