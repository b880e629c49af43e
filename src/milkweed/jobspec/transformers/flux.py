"""Steps on a Flux instance: a job for each piece of work, whose dependencies Flux itself keeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...backends.flux import commands
from ...backends.flux.nodes import inventory
from ...errors import BackendError, SpecError, UnreachableError
from ...options import Data
from .. import steps
from ..graph import Stage, Step, Submit
from ..plan import Action, Plan
from ..progress import StepStatus
from ..runs import Run
from ..steps import Scene
from ..tail import Show
from . import local
from .flux_check import check_plan
from .flux_files import archive_name, make_entries
from .flux_output import Keeper
from .flux_steps import FluxStep, GroupStep, JobStep, SeveralStep
from .here import ElsewhereTransformer, HereStep, is_here

if TYPE_CHECKING:
    from ..driver import Running, Wake

_ELSEWHERE = "`-t local` runs a jobspec on this machine"


class Transformer(ElsewhereTransformer):
    """A Flux instance, by the `flux` command."""

    name = "flux"
    description = "jobs of a Flux instance"
    honours = frozenset(
        {
            "bank",
            "constraints",
            "cwd",
            "dependencies",
            "duration_s",
            "environment",
            "error",
            "exclusive",
            "gpus",
            "output",
            "preemptible-after",
            "project",
            "queue",
            "shell.options",
            "templates",
            "units",
            "user",
        }
    )
    knows = ("uri", "queue", "bank")

    def __init__(self, **settings: Data) -> None:
        super().__init__(**settings)
        self.keeper = Keeper()
        """Keeps what jobs print."""
        self.sleep: Callable[[float], object] = time.sleep

    @property
    def uri(self) -> str:
        """The address of the instance that gets new jobs."""
        return commands.resolve(str(self.settings.get("uri", "")))

    def render_step(self, step: Step, scene: Scene) -> Action:
        """Replicas are several jobs of one step."""
        action = super().render_step(step, scene)
        is_several = isinstance(step, Submit) and step.replicas > 1
        return replace(action, kind=SeveralStep.name) if is_several else action

    def run(self, plan: Plan, *, wait: bool = False, show: Show | None = None) -> Run:
        """See that there is an instance, and that it has what is asked for; then carry out the plan."""
        self.check_instance()
        found = inventory(self.uri)
        check_plan(plan, found.nodes(), found.queues())
        return super().run(plan, wait=wait, show=show)

    def check_instance(self) -> None:
        """Refuse to begin where there is no Flux, or no instance of it that answers."""
        try:
            commands.check_version()
            _ = self.uri
        except BackendError as error:
            hint = f"{error.hint}; {_ELSEWHERE}" if error.hint else _ELSEWHERE
            raise type(error)(error.what, seen=error.seen, hint=hint) from error

    def poll(
        self, running: Mapping[str, Running], wake: Wake, timeout_s: float = 2.0
    ) -> Mapping[str, StepStatus]:
        """One look at the list of jobs for all; processes of this machine are heard of as they end."""
        found = self.poll_here(running, wake, timeout_s)
        for name, each in running.items():
            if isinstance(each.step, FluxStep):
                found[name] = each.step.poll(each.handle)
                if found[name].state.over:
                    each.step.save(each.handle)
        self.keeper.pump()
        self.tail.pump()
        return found

    def end(self, running: Mapping[str, Running]) -> None:
        """End all jobs."""
        for each in self.end_here(running):
            each.step.cancel(each.handle)

    def let_go(self) -> None:
        """Follow nobody any more."""
        self.keeper.close()

    def finish(self, run: Run) -> None:
        """Take the archives out of the instance."""
        for action in run.plan.actions:
            for name in archives_of(action):
                self._remove_archive(name)
        super().finish(run)

    def _remove_archive(self, name: str) -> None:
        try:
            commands.run(["archive", "remove", "--force", f"--name={name}"], uri=self.uri)
        except BackendError:  # an instance that is gone took it along
            return

    def create_archive(self, name: str, path: str) -> None:
        """Put a file or folder of this machine where all jobs of the instance can get it."""
        source = Path(os.path.abspath(os.path.expanduser(path)))
        words = [
            "archive",
            "create",
            "--overwrite",
            f"--name={name}",
            f"--directory={source.parent}",
        ]
        try:
            commands.run([*words, "--", source.name], uri=self.uri, timeout_s=600.0)
        except UnreachableError:
            raise
        except BackendError as error:
            raise BackendError(
                f"{path} could not be put into an archive of the instance",
                seen=error.seen,
                hint="only its owner can: use an instance of your own (flux alloc), or a folder all nodes see",
            ) from error


def archives_of(action: Action) -> list[str]:
    """The archives that an action makes."""
    stages = action.details.get("stage", [])
    found = (
        [str(each["archive"]) for each in stages if isinstance(each, dict)]
        if isinstance(stages, list)
        else []
    )
    archive = action.details.get("archive")
    return [*found, archive] if isinstance(archive, str) else found


class StageStep(local.StageStep):
    """A file on every node of the jobs that come after: small ones travel in their jobspecs."""

    @classmethod
    def render(cls, step: Step, scene: Scene) -> dict[str, Data]:
        """How it travels."""
        found = super().render(step, scene)
        if not isinstance(step, Stage):
            return found
        if step.path and make_entries(step, scene.run_id) is None:
            found["archive"] = archive_name(scene.run_id, step.id)
        needs_it = any(is_here(each) for each in scene.graph.steps)
        return {**found, "here": True} if needs_it else found

    def run(self, stage: Path) -> None:
        """Archive what is too large for a jobspec."""
        if self.options.get("here"):
            super().run(stage)
        if "archive" in self.options:
            place = self.transformer
            if not isinstance(place, Transformer):
                raise SpecError("an archive of Flux is made by Flux")
            place.create_archive(self.options["archive"], self.options["path"])


class WorkStep(JobStep):
    """Work: a job of Flux, or a process of this machine where it is local and in no group."""

    @classmethod
    def validate(cls, step: Step, scene: Scene) -> None:
        """Refuse what could not be carried out where it runs."""
        if is_here(step):
            HereStep.validate(step, scene)
        else:
            super().validate(step, scene)


Transformer.register_step(steps.WriterStep)
Transformer.register_step(steps.AuthStep)
Transformer.register_step(StageStep)
Transformer.register_step(WorkStep)
Transformer.register_step(WorkStep, name="batch")
Transformer.register_step(SeveralStep)
Transformer.register_step(GroupStep)
Transformer.register_step(HereStep)
