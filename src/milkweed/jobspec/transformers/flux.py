"""Steps on a Flux instance: a job for each piece of work, whose dependencies Flux itself keeps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...backends.flux import commands
from ...backends.flux.nodes import inventory
from ...errors import BackendError, UnreachableError
from ...options import Data
from .. import steps
from ..graph import Stage, Step, Submit
from ..plan import Action, Plan
from ..progress import Progress, StepStatus
from ..runs import Run
from ..steps import Scene
from ..tail import Show
from .flux_check import check_plan
from .flux_files import archive_name, make_entries
from .flux_output import Keeper
from .flux_steps import FluxStep, GroupStep, JobStep, SeveralStep, cancel_jobs, ids_of
from .here import HONOURED, AwayStageStep, ElsewhereTransformer, HereStep, MaybeHereStep

if TYPE_CHECKING:
    from ..driver import Running, Wake

_ELSEWHERE = "`-t local` runs a jobspec on this machine"


class Transformer(ElsewhereTransformer):
    """A Flux instance, by the `flux` command."""

    name = "flux"
    description = "jobs of a Flux instance"
    honours = HONOURED | {
        *("constraints", "dependencies", "preemptible-after", "project", "shell.options"),
        *("templates", "units", "user"),
    }
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
        """End all jobs of an instance with one word."""
        found: dict[str, list[int]] = {}
        for each in self.end_here(running):
            found.setdefault(str(each.handle.get("uri", "")), []).extend(ids_of(each.handle))
        for uri, job_ids in found.items():
            cancel_jobs(job_ids, uri)

    def let_go(self) -> None:
        """Follow nobody any more."""
        self.keeper.close()

    def finish(self, run: Run) -> None:
        """Take the archives out of the instance."""
        self._remove_archives(run)
        super().finish(run)

    def status(self, run: Run) -> Progress:
        """How every step is; who sees that all is over also takes the archives away."""
        progress = super().status(run)
        if progress.over and not run.is_driven():
            self._remove_archives(run)
        return progress

    def _remove_archives(self, run: Run) -> None:
        """Take away what was archived for a run, once; an instance that is gone took it along."""
        names = [name for action in run.plan.actions for name in archives_of(action)]
        sign = run.folder / "archives-removed"
        if not names or sign.exists():
            return
        with contextlib.suppress(BackendError):
            for name in names:
                commands.run(["archive", "remove", "--force", f"--name={name}"], uri=self.uri)
            sign.touch(mode=0o600)

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


class StageStep(AwayStageStep):
    """A file on every node of the jobs that come after: small ones travel in their jobspecs."""

    @classmethod
    def render_parcel(cls, step: Stage, scene: Scene) -> dict[str, Data]:
        """The archive of one that is too large for a jobspec."""
        small = make_entries(step, scene.run_id) is not None
        return {} if small else {"archive": archive_name(scene.run_id, step.id)}

    def send(self) -> None:
        """Put it into an archive of the instance."""
        if "archive" in self.options:
            place = cast("Transformer", self.transformer)
            place.create_archive(self.options["archive"], self.options["path"])


class WorkStep(MaybeHereStep, JobStep):
    """Work: a job of Flux, or a process of this machine."""


Transformer.register_step(steps.WriterStep)
Transformer.register_step(steps.AuthStep)
Transformer.register_step(StageStep)
Transformer.register_step(WorkStep)
Transformer.register_step(WorkStep, name="batch")
Transformer.register_step(SeveralStep)
Transformer.register_step(GroupStep)
Transformer.register_step(HereStep)
