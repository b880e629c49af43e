"""Steps on this machine: processes stand in for nodes, and a folder of the run for what hosts share."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ... import identity
from ...errors import SpecError
from ...logs import follow_files
from ...options import Data
from .. import steps
from ..graph import WORKING, Group, Need, Step, Submit, Work, Write
from ..order import sort_steps
from ..plan import Action, make_work
from ..progress import State, StepStatus, ended
from ..runs import Run, merge_environment
from ..steps import Handle, Scene
from ..transformer import TransformerBase
from .processes import MARK_ENV, TIMED_OUT, Command, Pool, end_marked, find_marked
from .requirements import GPU_ENV, check_requirements, list_gpus

if TYPE_CHECKING:
    from ..driver import Running, Wake

SHOW_S = 0.05
LOOK_S = 0.25
UNSEEN = "nobody saw how it ended"


class Transformer(TransformerBase):
    """This machine."""

    name = "local"
    description = "processes of this machine"
    honours = frozenset(
        {"duration_s", "environment", "cwd", "output", "error", "gpus", "exclusive", "requires"}
    )
    detaches = True
    durable = False

    def __init__(self, **settings: Data) -> None:
        super().__init__(**settings)
        for name in settings:
            raise SpecError(f"{name}: unknown setting", hint=f"{self.name} has no settings")
        self.find_gpus: Callable[[], Sequence[str]] = list_gpus
        self.pool = Pool()
        self._limit = max(64, 4 * (os.cpu_count() or 1))
        self._gpus_used: dict[str, list[str]] = {}
        self._group_ends_s: dict[str, float] = {}

    def render_steps(self, steps: Sequence[Step], scene: Scene) -> Iterator[Action]:
        """A group is what is inside it, and an action that ends when all of that has; so are replicas."""
        for step in sort_steps(steps):
            if isinstance(step, Group):
                for action in self.render_steps(step.steps, scene):
                    yield replace(action, needs=(*action.needs, *step.needs))
                yield _make_join(step, [each.id for each in step.steps])
            elif isinstance(step, Submit) and step.replicas > 1:
                one = self.render_step(step, scene)
                ids = [f"{step.id}/{number}" for number in range(1, step.replicas + 1)]
                for number, each in enumerate(ids):
                    yield replace(one, id=each, details={**one.details, "replica": number})
                yield _make_join(step, ids)
            else:
                yield self.render_step(step, scene)

    def can_start(self, action: Action, running: Mapping[str, Running]) -> bool:
        """Whether so many processes more may run, and GPUs are free."""
        del running
        details: Any = action.details
        wanted = details.get("tasks", 0)
        if wanted and len(self.pool) and len(self.pool) + wanted > self._limit:
            return False
        asked = details.get("slots", 0) * details.get("gpus_per_slot", 0)
        return not asked or asked <= len(self._free_gpus())

    def _free_gpus(self) -> list[str]:
        used = {gpu for gpus in self._gpus_used.values() for gpu in gpus}
        return [gpu for gpu in self.find_gpus() if gpu not in used]

    def take_gpus(self, step_id: str, count: int) -> list[str]:
        """GPUs that no other step has until this one ends."""
        taken = self._gpus_used[step_id] = self._free_gpus()[:count]
        return taken

    def limit_s(self, details: Mapping[str, Any], now_s: float) -> float | None:
        """How long a step may run: its own limit, and what is left of those of the groups around it."""
        limits = [details["duration_s"]] if "duration_s" in details else []
        for group, duration_s in details.get("within", {}).items():
            limits.append(self._group_ends_s.setdefault(group, now_s + duration_s) - now_s)
        return min(limits, default=None)

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = 2.0
    ) -> Mapping[str, StepStatus]:
        """What ended, as soon as it does; what an earlier driver started is looked at."""
        strangers = [each for each in running if not self.pool.knows(each)]
        pause_s = SHOW_S if self.tail.is_busy else timeout_s
        found = self.pool.wait(wake, min(pause_s, LOOK_S) if strangers else pause_s)
        for step_id in found:
            self._gpus_used.pop(step_id, None)
            for path in _logs_of(running[step_id].handle).values():
                self.tail.close(path)
        for step_id in strangers:
            status = running[step_id].step.poll(running[step_id].handle)
            if status.state is State.UNKNOWN:
                found[step_id] = StepStatus(State.LOST, None, UNSEEN)
        self.tail.pump()
        return found

    def end(self, running: Mapping[str, Running]) -> None:
        """End all processes together."""
        self.pool.end(list(running))
        for step_id, each in running.items():
            if not self.pool.knows(step_id):
                each.step.cancel(each.handle)

    def finish(self, run: Run) -> None:
        """End what steps left in the background, and forget secrets."""
        end_marked(run.plan.mark(""))
        super().finish(run)


def _make_join(step: Step, ids: Sequence[str]) -> Action:
    needs = tuple(Need(each, "afterany") for each in ids)
    return Action(id=step.id, kind="group", needs=(*needs, *step.needs), details={"steps": [*ids]})


def place_file(source: Path, target: Path) -> None:
    """Copy a file, unless it is there; one that work has changed since stays as it is."""
    if target.exists() and target.stat().st_mtime_ns >= source.stat().st_mtime_ns:
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    shutil.copy2(source, beside)
    os.replace(beside, target)


def check_cwd(work: Work) -> None:
    """Refuse a folder that depends on where somebody stands."""
    if work.cwd is not None and not os.path.isabs(work.cwd):
        raise SpecError(f"cwd: {work.cwd!r} does not begin with a slash", hint="give a whole path")


class WriteStep(steps.WriterStep):
    """Write a file into the one folder that a run has here."""

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse a second content of a file: work that runs meanwhile would see the wrong one."""
        super().validate(step, scene)
        if not isinstance(step, Write):
            return
        for other in scene.graph.walk():
            if not isinstance(other, Write) or other.filename != step.filename:
                continue
            if other.content != step.content:
                hint = "give each of them a name of its own"
                raise SpecError(f"{other.id!r} writes another {step.filename!r}", hint=hint)


class StageStep(steps.PlainStep):
    """Copy a file to where work runs."""

    name = "stage"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """A file of this machine must be there."""
        super().validate(step, scene)
        path = getattr(step, "path", "")
        if path and not os.path.exists(os.path.expanduser(path)):
            raise SpecError(f"path: there is no {path!r} on this machine")

    def run(self, stage: Path) -> None:
        """Copy it."""
        name = self.options.get("filename")
        source = stage / name if name else Path(self.options["path"]).expanduser()
        target = self.record.host / source.name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            place_file(source, target)


class JobStep(steps.StepBase):
    """Run a command, once for each task."""

    name = "submit"
    at_once = True

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what this machine cannot give."""
        super().validate(step, scene)
        if not isinstance(step, WORKING):
            return
        work = step.work
        check_cwd(work)
        for name in ("output", "error"):
            if "{{" in (getattr(work, name) or ""):
                raise SpecError(f"{name}: only Flux fills in {{{{…}}}}", hint="give a plain path")
        if work.shape.gpus and work.shape.gpus > (there := len(list_gpus())):
            raise SpecError(f"gpus: {work.shape.gpus} are asked for, and this machine has {there}")
        check_requirements(work.attributes.get("requires"))

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """The processes: their words, how many, where, with which variables and files."""
        if not isinstance(step, WORKING):
            return {}
        found = make_work(step.work)
        if step.work.shape.exclusive:
            found["note"] = "exclusive: nothing keeps other programs off this machine"
        if not isinstance(step, Submit) or step.local:
            found["tasks"] = 1
        found |= _inherit(found, scene.around(step))
        if "cwd" not in found:
            found["cwd"] = "run" if scene.has_folder(step) else "here"
        groups = {each.id: each.work.duration_s for each in scene.around(step)}
        if within := {each: limit_s for each, limit_s in groups.items() if limit_s is not None}:
            found["within"] = dict[str, Data](within)
        if files := scene.files(step):
            found["files"] = [*files]
        if secrets := scene.secrets(step):
            found["secrets"] = {each.secret: each.export for each in secrets}
        return found

    def run(self, stage: Path) -> Handle | StepStatus:
        """Start the processes."""
        for name in self.options.get("files", ()):
            place_file(stage / name, self.record.host / name)
        limit_s = self._place.limit_s(self.options, time.monotonic())
        if limit_s is not None and limit_s <= 0:
            return ended(TIMED_OUT, "the time limit of its group passed")
        commands = self._commands()
        for command in commands:
            self._place.tail.add(command.output, command.label)
        processes = self._place.pool.start(self.action.id, commands, limit_s)
        logs: dict[str, Data] = {command.label: command.output for command in commands}
        return {"processes": processes, "logs": logs}

    @property
    def _place(self) -> Transformer:
        return cast("Transformer", self.transformer)

    def _commands(self) -> list[Command]:
        cwd = self._cwd()
        argv = [self._word(word) for word in self.options["argv"]]
        tasks, per_slot = int(self.options["tasks"]), int(self.options.get("gpus_per_slot", 0))
        slots = int(self.options["slots"]) if per_slot else 1
        gpus = self._place.take_gpus(self.action.id, slots * per_slot) if per_slot else []
        found: list[Command] = []
        for rank in range(tasks):
            slot = rank * slots // tasks
            own = gpus[slot * per_slot : (slot + 1) * per_slot]
            found.append(self._command(argv, cwd, rank, {GPU_ENV: ",".join(own)} if own else {}))
        return found

    def _cwd(self) -> str:
        places = {"run": str(self.record.host), "here": self.record.cwd}
        cwd = str(self.options["cwd"])
        return places.get(cwd, cwd)

    def _word(self, word: Any) -> str:
        return word if isinstance(word, str) else str(self.record.host / word["file"])

    def _command(self, argv: list[str], cwd: str, rank: int, gpus: Mapping[str, str]) -> Command:
        tasks = int(self.options["tasks"])
        output, error = self.options.get("output"), self.options.get("error")
        label = self.action.id if tasks == 1 else f"{self.action.id}.{rank}"
        log = str(self.record.logs / log_name(self.action.id, label))
        return Command(
            argv=argv,
            env={**self._environment(rank, tasks), **gpus},
            cwd=cwd,
            output=os.path.join(cwd, output) if output else log,
            error=os.path.join(cwd, error) if error else None,
            label=label,
        )

    def _environment(self, rank: int, tasks: int) -> dict[str, str]:
        nodes = int(self.options.get("nodes", 1))
        own = {
            MARK_ENV: f"{os.environ.get(MARK_ENV, '')} {self.mark}".strip(),
            "JOBSPEC_RUN": self.record.id,
            "JOBSPEC_STEP": self.action.id,
            "JOBSPEC_FILES": str(self.record.host),
            "JOBSPEC_TASK_RANK": str(rank),
            "JOBSPEC_TASKS": str(tasks),
            "JOBSPEC_NODE": str(rank * nodes // tasks),
            "JOBSPEC_NODES": str(nodes),
        }
        if "replica" in self.options:
            own["JOBSPEC_REPLICA"] = str(self.options["replica"])
        return merge_environment(
            os.environ, self.options.get("environment", {}), own, self._secrets()
        )

    def _secrets(self) -> dict[str, str]:
        """Secrets as variables of the processes themselves, which nobody but their owner can see."""
        found: dict[str, str] = {}
        for name, export in self.options.get("secrets", {}).items():
            found["JOBSPEC_SECRETS"] = str(self.record.secrets)
            if export:
                found[export] = os.fsdecode((self.record.secrets / name).read_bytes())
        return found

    def poll(self, handle: Handle) -> StepStatus:
        """How processes of another driver are."""
        processes: Any = handle["processes"]
        if any("started" in each and identity.is_running(each) for each in processes):
            return StepStatus(State.RUNNING)
        return StepStatus(State.UNKNOWN, None, UNSEEN)

    def cancel(self, handle: Handle) -> None:
        """End everything that carries the mark."""
        del handle
        end_marked(self.mark)

    def find(self) -> Handle | None:
        """The processes that carry the mark."""
        found = find_marked(self.mark)
        return {"processes": [*found], "logs": {}} if found else None

    def logs(self, handle: Handle, *, follow: bool) -> Iterator[tuple[str, str]]:
        """What the processes printed."""
        files = _logs_of(handle)
        alive = self.record.is_driven
        return follow_files(files, follow=follow, alive=alive)


def log_name(step_id: str, label: str) -> str:
    """The file for what a step prints under a label; no name has an @, so no other step has this one."""
    name = label if label == step_id else f"{step_id}@{label}"
    return f"{name.replace('/', '+')}.log"


def _logs_of(handle: Handle) -> dict[str, str]:
    logs: Any = handle.get("logs") or {}
    return {str(label): str(path) for label, path in logs.items()}


def _inherit(found: Mapping[str, Any], groups: Sequence[Group]) -> dict[str, Data]:
    """What the groups around work say of it, where it does not itself."""
    said: dict[str, Data] = {}
    environment: dict[str, Data] = {}
    for group in groups:
        environment |= group.work.environment
        if group.work.cwd is not None and "cwd" not in found:
            said["cwd"] = group.work.cwd
    environment |= found.get("environment", {})
    return {**said, "environment": environment} if environment else said


class JoinStep(steps.PlainStep):
    """What is over when all steps inside are; its code is that of the first of them that failed."""

    name = "group"

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """The machine around a group is this one."""
        super().validate(step, scene)
        if isinstance(step, Group):
            check_cwd(step.work)
            check_requirements(step.work.attributes.get("requires"))
            if step.work.output or step.work.error:
                raise SpecError("output: a group prints nothing", hint="say it of the steps inside")

    def run(self, stage: Path) -> StepStatus:
        """Add up."""
        del stage
        inside = [self.before[each].status for each in self.options["steps"]]
        for status in inside:
            if status.state is State.FAILED:
                return ended(status.code or 1)
        if any(status.state is State.LOST for status in inside):
            return StepStatus(State.LOST, None, UNSEEN)
        for state in (State.CANCELLED, State.SKIPPED):
            if inside and all(status.state is state for status in inside):
                return StepStatus(state)
        return ended(0)


Transformer.register_step(WriteStep)
Transformer.register_step(steps.AuthStep)
Transformer.register_step(StageStep)
Transformer.register_step(JobStep)
Transformer.register_step(JobStep, name="batch")
Transformer.register_step(JoinStep)
